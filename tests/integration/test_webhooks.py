"""The end of a job with a callback stores one job of queue `webhooks`, also if the process that ends it dies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from jetjobs import JetJobs, RetryPolicy, Secret, Snooze, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.events import JobFinished, JobStarted, SettleFailed
from jetjobs.model.wire.ids import webhook_id
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from tests.conftest import MakeApp
from tests.integration.test_crashes import deliver_to_the_end, pull
from tests.support.probe import Probe, eventually
from tests.support.roles import GuardedServer, Removed
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

URL = "https://example.com/hooks/7?a=b"
SOON = timedelta(seconds=10)
AT_ONCE = RetryPolicy(max_attempts=3, base="10ms", cap="10ms")


class Stored:
    """The webhooks in their work stream: messages by id."""

    def __init__(self, truth: Truth) -> None:
        self._truth = truth

    async def all(self) -> dict[str, dict[str, Any]]:
        if not await self._truth.has_stream("jobs-work-webhooks"):
            return {}
        found = {}
        for subject in await self._truth.jobs("webhooks"):
            message = await self._truth.js.get_last_msg("jobs-work-webhooks", subject)
            found[subject.rsplit(".", 1)[1]] = {"headers": message.headers, **json.loads(message.data or b"{}")}
        return found

    async def one(self) -> dict[str, Any]:
        """The data of the only webhook, once it is there."""
        found = await eventually(self.all)
        assert len(found) == 1
        return next(iter(found.values()))


@pytest.fixture
def stored(truth: Truth) -> Stored:
    return Stored(truth)


# Ends


async def test_a_success_stores_a_webhook_and_creates_its_queue(
    app: JetJobs, truth: Truth, stored: Stored
) -> None:
    @app.task
    async def work(n: int) -> dict[str, int]:
        return {"twice": 2 * n}

    async with provisioned_worker(app):
        assert not await truth.has_stream("jobs-work-webhooks")
        handle = await work.options(callback=URL).enqueue(4)
        assert await handle.result(SOON) == {"twice": 8}
        found = await stored.one()
        await truth.until_empty()
        assert found["url"] == URL
        data = found["message"]["data"]
        assert (data["id"], data["task"], data["queue"], data["state"]) == (
            handle.id,
            "work",
            "default",
            "succeeded",
        )
        assert data["result"] == {"twice": 8}
        assert list(await stored.all()) == [webhook_id("default", "work", handle.id, handle.run)]
        assert found["headers"]["Jetjobs-Parent"] == handle.id
        lanes = (await truth.api("CONSUMER.NAMES.jobs-work-webhooks"))["consumers"]
        assert sorted(lanes) == ["high", "low", "normal", "returned"]


async def test_a_job_without_a_callback_stores_nothing_else(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned_worker(app):
        await (await work.enqueue()).result(SOON)
        await truth.until_empty()
    assert not await truth.has_stream("jobs-work-webhooks")


async def test_a_task_that_stores_no_result_calls_back_without_a_record(
    app: JetJobs, truth: Truth, stored: Stored
) -> None:
    @app.task(store_result=False)
    async def work() -> str:
        return "unseen"

    async with provisioned_worker(app):
        await work.options(callback=URL).enqueue()
        data = (await stored.one())["message"]["data"]
        assert (data["state"], data["result_omitted"]) == ("succeeded", "not stored")
        assert await truth.done() == {}


async def test_a_dead_job_calls_back_with_its_error(app: JetJobs, stored: Stored) -> None:
    @app.task(retry=AT_ONCE)
    async def work() -> None:
        raise ValueError(f"no {current_job().attempt} \udc80")

    async with provisioned_worker(app):
        await work.options(callback=URL).enqueue()
        message = (await stored.one())["message"]
    assert message["type"] == "job.dead"
    assert message["data"]["attempt"] == 3
    assert message["data"]["error"] == {"reason": "exhausted", "type": "ValueError", "text": "no 3 ?"}


async def test_an_expired_job_calls_back(app: JetJobs, stored: Stored) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned_worker(app):
        await work.options(callback=URL, deadline=datetime.now(UTC)).enqueue()
        assert (await stored.one())["message"]["data"]["error"]["reason"] == "expired"


async def test_a_job_that_cannot_be_read_calls_back(app: JetJobs, truth: Truth, stored: Stored) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned_worker(app):
        headers = {"Jetjobs-Callback": URL, "Jetjobs-Attempt": "x"}
        await truth.js.publish("jobs.work.default.normal.work", b"{}", headers=headers)
        assert (await stored.one())["message"]["data"]["error"]["reason"] == "malformed"


async def test_secrets_of_a_result_are_masked_and_large_results_are_left_out(
    app: JetJobs, truth: Truth, stored: Stored
) -> None:
    @app.task
    async def secret() -> Annotated[str, Secret()]:
        return "hidden"

    @app.task
    async def large(size: int) -> str:
        return "x" * size

    async with provisioned_worker(app):
        await secret.options(callback=URL).enqueue()
        await large.options(callback=URL).enqueue(100_000)
        await large.options(callback=URL).enqueue(2_000_000)
        found = await eventually(stored.all, where=lambda all_: len(all_) == 3)
    shown = [
        one["message"]["data"].get("result", one["message"]["data"].get("result_omitted"))
        for one in found.values()
    ]
    assert sorted(shown) == ["***", "too large", "too large"]


async def test_a_cancelled_waiting_job_calls_back(app: JetJobs, stored: Stored) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        for call in (work.options(callback=URL, delay=3600), work.options(callback=URL)):
            handle = await call.enqueue()
            await app.jobs.cancel(handle.id, by="ada", reason="late")
        found = await stored.all()
    assert [one["message"]["data"]["cancel"] for one in found.values()] == [{"by": "ada", "reason": "late"}] * 2


async def test_a_job_cancelled_while_it_runs_calls_back(app: JetJobs, probe: Probe, stored: Stored) -> None:
    @app.task
    async def work() -> None:
        await asyncio.sleep(60)

    async with provisioned_worker(app):
        handle = await work.options(callback=URL).enqueue()
        await probe.wait(JobStarted)
        await app.jobs.cancel(handle.id, by="ada")
        assert (await stored.one())["message"]["type"] == "job.cancelled"


# Moves


async def test_the_callback_survives_every_move(app: JetJobs, truth: Truth, stored: Stored) -> None:
    seen: list[str | None] = []

    @app.task(retry=AT_ONCE)
    async def work(body: str) -> None:
        seen.append(current_job().job.headers.get("Jetjobs-Callback"))
        if len(seen) == 1:
            raise Snooze("10ms")
        if len(seen) == 2:
            raise ValueError("once")

    async with provisioned(app):
        handle = await work.options(callback=URL, delay=3600).enqueue("x" * 1_200_000)
        await app.jobs.set_priority(handle.id, "high")
        await app.jobs.run_now(handle.id)
        status = await eventually(lambda: app.jobs.get(handle.id), where=lambda one: one.state == "queued")
        assert status.callback == URL
        async with running(app.worker()):
            await handle.result(SOON)
        assert seen == [URL] * 3
        assert (await stored.one())["message"]["data"]["attempt"] == 2


async def test_a_released_and_a_parked_job_keep_their_callback(
    make_app: MakeApp, truth: Truth, stored: Stored
) -> None:
    app, other = make_app(), make_app("other")

    @other.task
    async def unknown_here() -> None: ...

    @app.task
    async def waits() -> None:
        await asyncio.sleep(60)

    async with app, other:
        await app.provision()
        await other.provision()
        await unknown_here.options(callback=URL).enqueue()
        await waits.options(callback=URL).enqueue()
        async with running(app.worker()) as worker:
            await eventually(lambda: truth.jobs(lane="retry"))
            worker.stop(now=True)
        for lane in ("retry", "returned"):
            (subject,) = await truth.jobs(lane=lane)
            message = await truth.js.get_last_msg("jobs-work-default", subject)
            assert (message.headers or {})["Jetjobs-Callback"] == URL


async def test_a_replay_calls_back_again_under_another_id(app: JetJobs, truth: Truth, stored: Stored) -> None:
    fixed = False

    @app.task(retry=1)
    async def work() -> None:
        if not fixed:
            raise ValueError("no")

    async with provisioned_worker(app):
        handle = await work.options(callback=URL).enqueue()
        await stored.one()
        letters = await eventually(truth.dead)
        assert letters[handle.id]["headers"]["Jetjobs-Callback"] == URL
        assert (await app.jobs.get(handle.id)).callback == URL
        fixed = True
        letter = await app.dead.get(handle.id)
        assert letter is not None
        await app.dead.replay(letter)
        found = await eventually(stored.all, where=lambda all_: len(all_) == 2)
    types = sorted(one["message"]["type"] for one in found.values())
    assert types == ["job.dead", "job.succeeded"]
    assert {one["message"]["data"]["id"] for one in found.values()} == {handle.id}


async def test_a_batch_may_have_callbacks(app: JetJobs, stored: Stored) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async with provisioned_worker(app):
        report = await app.enqueue_many([work.options(callback=URL).bind(n) for n in range(20)])
        found = await eventually(stored.all, where=lambda all_: len(all_) == 20)
    assert {one["message"]["data"]["id"] for one in found.values()} == {handle.id for handle in report.stored}


# Redeliveries


async def _deliver_and_die(truth: Truth) -> None:
    """Take the next job like a worker that dies with it."""
    subscription = await truth.js.pull_subscribe_bind("normal", "jobs-work-default")
    await subscription.fetch(1, timeout=5)
    await subscription.unsubscribe()


@asynccontextmanager
async def _died_after_record(app: JetJobs, truth: Truth, place: str) -> AsyncIterator[str]:
    """A job whose worker has died after it stored the end of the job, and before anything else."""

    @app.task(retry=1)
    async def work() -> None:
        raise AssertionError("it has ended")

    async with provisioned(app):
        handle = await work.options(callback=URL).enqueue()
        await _deliver_and_die(truth)
        if place == "dead":
            cause = {"reason": "permanent", "type": "ValueError", "text": "no", "at": 1794798669.5}
            headers = {"Jetjobs-Run": handle.run, "Jetjobs-Cause": json.dumps(cause)}
            await truth.js.publish(f"jobs.dead.default.work.{handle.id}", b"{}", headers=headers)
        else:
            record = {"state": place, "run": handle.run, "result": 7, "by": "ada", "ended_at": 1794798669.5}
            await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", json.dumps(record).encode())
        yield handle.id


@pytest.mark.settings(queues={"lease": "1s"})
@pytest.mark.parametrize("place", ["succeeded", "cancelled", "dead"])
async def test_a_redelivery_that_finds_its_record_stores_the_webhook_and_acks(
    app: JetJobs, truth: Truth, probe: Probe, stored: Stored, place: str
) -> None:
    async with _died_after_record(app, truth, place) as job_id, running(app.worker()):
        message = (await stored.one())["message"]
        await truth.until_empty()
    assert (message["type"], message["data"]["id"]) == (f"job.{place}", job_id)
    assert message["timestamp"].startswith("2026-11-16T")
    assert not probe.of(JobStarted)


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_redelivery_does_not_store_a_second_webhook(app: JetJobs, truth: Truth) -> None:
    async with _died_after_record(app, truth, "succeeded") as job_id:
        job = (await app.jobs.get(job_id)).run
        await app.provision(["webhooks"])
        uid = webhook_id("default", "work", job_id, job)
        await truth.js.publish(f"jobs.work.webhooks.retry.jetjobs_webhook.-.{uid}", b"{}")
        async with running(app.worker()):
            await truth.until_empty()
        assert await truth.jobs("webhooks") == [f"jobs.work.webhooks.retry.jetjobs_webhook.-.{uid}"]


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_webhook_that_cannot_be_stored_now_holds_the_job(
    app: JetJobs, server: EmbeddedServer, truth: Truth, probe: Probe, stored: Stored
) -> None:
    """A stream of that name with other subjects: the queue cannot be created until an operator removes it."""

    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        await truth.js.add_stream(name="jobs-work-webhooks", subjects=["other.>"])
        async with running(app.worker()):
            handle = await work.options(callback=URL).enqueue()
            failed = await probe.wait(SettleFailed)
            assert failed[0].kind == "outcome"
            assert await truth.jobs() != []
            await truth.js.delete_stream("jobs-work-webhooks")
            assert (await stored.one())["message"]["data"]["id"] == handle.id
            await truth.until_empty()
        assert [one.outcome for one in probe.of(JobFinished)] == ["succeeded"]


@pytest.mark.settings(queues={"lease": "1s", "max_crashes": 1})
@pytest.mark.parametrize("settled", [False, True])
async def test_a_job_that_the_server_no_longer_delivers_calls_back(
    app: JetJobs, truth: Truth, stored: Stored, settled: bool
) -> None:
    """The leader dead-letters it, or finds that its worker died after it had stored the end."""

    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.options(callback=URL).enqueue()
        await deliver_to_the_end(truth)
        if settled:
            record = json.dumps({"state": "succeeded", "run": handle.run, "result": 7}).encode()
            await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", record)
        await app.jetstream.server_clock.refresh("jobs-work-default")
        sweep = StrandedJobs(app.jetstream, "tester", 0.1, lambda event: None)

        async def repaired() -> bool:
            await pull(truth, expires_s=0.5)  # the server stops delivering it at the next pull
            return (await sweep.sweep("default")).repaired == 1

        await eventually(repaired)
        message = (await stored.one())["message"]
        await truth.until_empty()
    assert (message["type"], message["data"]["id"]) == (f"job.{'succeeded' if settled else 'dead'}", handle.id)
    assert settled or message["data"]["error"]["reason"] == "crashed"


# Permissions


async def test_a_worker_that_may_not_store_webhooks_reports_it_and_finishes_the_job(tmp_path: Path) -> None:
    denied = Removed("worker", "publish", "jobs.work.webhooks.normal.jetjobs_webhook.>")
    with GuardedServer(tmp_path, denied) as server:
        truth = await _root(server)
        probe = Probe()
        app = _guarded_app(server, "worker", probe)
        async with _guarded_app(server, "setup") as setup:
            await setup.provision(["default", "webhooks"])
        async with app, running(app.worker(schedules=False)):
            await app.tasks["work"].options(callback=URL).enqueue()
            failed = await probe.wait(SettleFailed)
            await probe.finished(1, "succeeded")
            assert failed[0].kind == "webhook"
            assert "jobs.work.webhooks" in failed[0].error
            await truth.until_empty()
            assert await truth.jobs("webhooks") == []
        await truth.close()


async def test_the_roles_of_the_example_store_webhooks(tmp_path: Path) -> None:
    with GuardedServer(tmp_path) as server:
        truth = await _root(server)
        async with _guarded_app(server, "setup") as setup:
            await setup.provision(["default", "webhooks"])
        async with _guarded_app(server, "worker") as app, running(app.worker(schedules=False)):
            await app.tasks["work"].options(callback=URL).enqueue()
            await eventually(lambda: truth.jobs("webhooks"))
        async with _guarded_app(server, "operator") as app:
            handle = await app.tasks["work"].options(callback=URL, delay=3600).enqueue()
            await app.jobs.cancel(handle.id, queue="default", task="work")
        assert len(await truth.jobs("webhooks")) == 2
        await truth.close()


async def _root(server: GuardedServer) -> Truth:
    import nats

    return Truth(await nats.connect(server.url, user="root", password="secret"))


def _guarded_app(server: GuardedServer, role: str, probe: Probe | None = None) -> JetJobs:
    app = JetJobs("test", settings=server.settings_of(role))
    if probe is not None:
        app.observe(probe)

    @app.task
    async def work() -> None: ...

    return app


# What lists and commands show


async def test_lists_leave_the_callback_out(app: JetJobs) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.options(callback=URL).enqueue()
        assert (await app.jobs.get(handle.id)).callback == URL
        assert [listed.status.callback async for listed in app.jobs.list()] == [None]
