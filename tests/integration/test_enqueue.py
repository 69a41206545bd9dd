"""Enqueue: the state of the server after a stored and after a refused job."""

from __future__ import annotations

import asyncio
import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import InvalidArguments, JetJobs, JobState, RetryPolicy, Router
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import BrokerUnavailable, DefinitionError, EnqueueUnconfirmed, JobTooLarge, QueueNotFound
from jetjobs.jetstream import client
from jetjobs.model.events import ConnectionLost, ConnectionRestored
from jetjobs.model.wire.ids import key_token
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.proxy import Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)


async def test_a_job_is_one_message_with_its_arguments_by_name(app: JetJobs, truth: Truth) -> None:
    @app.task(queue="mail")
    async def send(to: str, copies: int = 1) -> None: ...

    async with provisioned(app):
        handle = await send.enqueue("ada@example.org", copies=2)
        assert await truth.jobs("mail") == [f"jobs.work.mail.normal.send.-.{handle.id}"]
        message = await truth.js.get_last_msg("jobs-work-mail", f"jobs.work.mail.normal.send.-.{handle.id}")
        assert message.data == b'{"to":"ada@example.org","copies":2}'
        assert message.headers is not None
        assert message.headers["Nats-Msg-Id"] == f"{handle.id}.{handle.run}.0"
        assert message.headers["Jetjobs-Producer"] == "test"
        assert (await handle.status()).state is JobState.QUEUED


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"to": 7.5, "copies": "many"}, "copies"),
        ({"to": "ada", "colour": "red"}, "colour"),
        ({}, "to"),
    ],
)
async def test_invalid_arguments_are_refused_and_nothing_is_stored(
    app: JetJobs, truth: Truth, arguments: dict[str, Any], problem: str
) -> None:
    @app.task
    async def send(to: str, copies: int = 1) -> None: ...

    async with provisioned(app):
        with pytest.raises(InvalidArguments) as caught:
            await send.enqueue(**arguments)
        assert problem in {name for name, _ in caught.value.problems}
        await truth.until_empty()


async def test_the_name_of_a_step_is_refused_outside_of_a_flow(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def send(to: str) -> None: ...

    async with provisioned(app):
        with pytest.raises(DefinitionError, match="names a step of a flow") as caught:
            await send.options(step="first").enqueue("ada")
        assert caught.value.hint is not None
        await truth.until_empty()


async def test_an_argument_without_a_json_form_is_named_before_anything_is_sent(
    app: JetJobs, truth: Truth
) -> None:
    @app.task
    async def send(fine: int, payload: Any) -> None: ...

    async with provisioned(app):
        with pytest.raises(InvalidArguments, match="'payload' cannot be written as JSON"):
            await send.enqueue(1, payload=object())
        await truth.until_empty()


async def test_a_job_over_64_mib_is_refused_before_anything_is_sent(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def send(text: str) -> None: ...

    async with provisioned(app):
        limit = 64 * 1024 * 1024
        with pytest.raises(
            JobTooLarge, match="the arguments are 67,108,865 bytes; the limit is 67,108,864"
        ) as caught:
            await send.enqueue("x" * (limit - len('{"text":""}') + 1))
        assert (caught.value.size, caught.value.limit) == (limit + 1, limit)
        await truth.until_empty()
        assert await truth.objects() == {}
        assert app.jetstream.connection.connected


async def test_headers_of_the_caller_are_sent_and_too_large_ones_are_refused(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def send() -> None: ...

    async with provisioned(app):
        handle = await send.options(headers={"X-Tenant": "acme"}).enqueue()
        message = await truth.js.get_last_msg("jobs-work-default", f"jobs.work.default.normal.send.-.{handle.id}")
        assert (message.headers or {})["X-Tenant"] == "acme"
        with pytest.raises(JobTooLarge):
            await send.options(headers={"X-Big": "x" * 40_000}).enqueue()
        assert len(await truth.jobs()) == 1


async def test_a_queue_or_lane_that_does_not_exist_is_refused_at_once(app: JetJobs) -> None:
    @app.task
    async def send() -> None: ...

    async with provisioned(app):
        async with asyncio.timeout(3):
            with pytest.raises(QueueNotFound, match="nowhere"):
                await send.options(queue="nowhere").enqueue()
            with pytest.raises(QueueNotFound, match="nowhere"):
                await send.options(queue="nowhere", delay=timedelta(seconds=5)).enqueue()
            report = await app.enqueue_many([send.options(queue="nowhere").bind(), send.bind()])
        assert [type(refusal.error) for refusal in report.refused] == [QueueNotFound]
        assert [refusal.index for refusal in report.refused] == [0]
        assert len(report.stored) == 1


async def test_tasks_of_included_routers_are_enqueued_through_the_app(app: JetJobs, truth: Truth) -> None:
    router = Router(queue="reports")

    @router.task
    async def build(day: str) -> None: ...

    app.include(router)
    async with provisioned(app):
        handle = await build.enqueue("monday")
        assert await truth.jobs("reports") == [f"jobs.work.reports.normal.build.-.{handle.id}"]


# Keys


async def test_a_key_blocks_while_its_job_is_scheduled_queued_running_and_retrying(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(seconds=1), jitter=False))
    async def bill(attempt_fails: bool = True) -> str:
        from jetjobs import current_job

        entered.set()
        await go_on.wait()
        if current_job().attempt == 1:
            raise RuntimeError("once")
        return "paid"

    async with provisioned(app):
        keyed = bill.options(key="order 7")
        first = await bill.options(key="order 7", delay=timedelta(milliseconds=700)).enqueue()
        assert (await first.status()).state is JobState.SCHEDULED
        assert (await keyed.enqueue()).id == first.id  # scheduled
        await eventually(first.status, where=lambda found: found.state is JobState.QUEUED)
        second = await keyed.enqueue()  # queued
        assert (second.id, second.duplicate) == (first.id, True)
        async with running(app.worker()):
            await entered.wait()
            assert (await keyed.enqueue()).duplicate  # running
            go_on.set()
            await probe.finished(1, "retried")
            assert (await first.status()).state is JobState.RETRYING
            assert (await keyed.enqueue()).duplicate  # retrying
            assert await second.result(SOON) == "paid"  # the handle of a duplicate refers to the live job
        third = await keyed.enqueue()  # released: the job has ended
        assert not third.duplicate
        assert third.id != first.id
        assert first.id.startswith(key_token("order 7"))
        assert len(await truth.jobs()) == 1


async def test_a_key_still_blocks_after_the_server_was_killed_and_restarted(
    app: JetJobs, server: EmbeddedServer
) -> None:
    @app.task
    async def bill() -> str:
        return "done"

    async with provisioned(app):
        first = await bill.options(key="a").enqueue()
        later = await bill.options(key="b", delay=timedelta(hours=1)).enqueue()
        soon = await bill.options(delay=timedelta(seconds=2)).enqueue()
        server.kill()
        server.start()
        again = await bill.options(key="a").enqueue()
        assert (again.id, again.duplicate) == (first.id, True)
        again = await bill.options(key="b").enqueue()
        assert (again.id, again.duplicate) == (later.id, True)
        async with running(app.worker()):
            assert await soon.result(SOON) == "done"


async def test_sixteen_enqueues_of_one_key_at_once_store_one_job(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def bill() -> None: ...

    async with provisioned(app):
        handles = await asyncio.gather(*(bill.options(key="k").enqueue() for _ in range(16)))
        assert len({handle.id for handle in handles}) == 1
        assert sum(not handle.duplicate for handle in handles) == 1
        assert len(await truth.jobs()) == 1


async def test_a_custom_job_id_is_stored_once_while_alive_and_again_afterwards(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def bill(n: int) -> int:
        return n

    async with provisioned(app):
        first = await bill.options(job_id="order-7").enqueue(1)
        again = await bill.options(job_id="order-7").enqueue(2)
        assert (first.id, again.id, again.duplicate) == ("order-7", "order-7", True)
        async with running(app.worker()):
            assert await first.result(SOON) == 1
            reused = await bill.options(job_id="order-7").enqueue(3)
            assert not reused.duplicate
            assert await reused.result(SOON) == 3  # not the record of the old run
        assert {id: record["result"] for id, record in (await truth.done()).items()} == {"order-7": 3}


# Delays


async def test_a_delayed_job_waits_in_lane_later_and_runs_when_due_by_the_clock_of_the_server(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    ran_at: list[datetime] = []

    @app.task
    async def remind() -> None:
        ran_at.append(datetime.now(UTC))

    async with provisioned(app):
        due = datetime.now(UTC) + timedelta(seconds=1)
        handle = await remind.options(run_at=due).enqueue()
        assert await truth.jobs(lane="later") == [f"jobs.work.default.later.remind.-.{handle.id}"]
        async with running(app.worker()):
            await handle.result(SOON)
        assert timedelta(0) <= ran_at[0] - due < timedelta(seconds=1)
        await truth.until_empty()


# Batches


async def test_enqueue_many_stores_thousands_in_several_batches(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def send(n: int) -> None: ...

    async with provisioned(app):
        report = await app.enqueue_many([send.bind(n) for n in range(2500)])
        assert report.refused == []
        assert [handle.id for handle in report.handles if handle] == [handle.id for handle in report.stored]
        on_server = await truth.jobs()
        assert len(on_server) == 2500
        assert {subject.rsplit(".", 1)[1] for subject in on_server} == {handle.id for handle in report.stored}


async def test_enqueue_many_reports_stored_duplicate_and_refused_jobs(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def send(text: str) -> None: ...

    async with provisioned(app):
        there = await send.options(key="taken").enqueue("before")
        keyed = send.options(key="new")
        requests = [
            send.bind("plain"),
            send.options(key="taken").bind("again"),
            keyed.bind("first"),
            keyed.bind("second"),
            send.bind("x" * (64 * 1024 * 1024)),
            send.options(delay=timedelta(hours=1)).bind("later"),
        ]
        report = await app.enqueue_many(requests)
        handles = report.handles
        assert [h.duplicate if h else None for h in handles] == [False, True, False, True, None, False]
        assert handles[1] is not None
        assert handles[1].id == there.id
        assert [(r.index, type(r.error)) for r in report.refused] == [(4, JobTooLarge)]
        with pytest.raises(JobTooLarge):
            report.raise_for_refused()
        assert len(await truth.jobs()) == 4
        assert len(await truth.jobs(lane="later")) == 1


# Faults


async def test_an_enqueue_survives_a_server_restart_and_is_stored_once(
    app: JetJobs, server: EmbeddedServer, truth: Truth
) -> None:
    @app.task
    async def send(n: int) -> None: ...

    async with provisioned(app):
        server.stop()
        enqueueing = asyncio.gather(*(send.enqueue(n) for n in range(20)))
        await asyncio.sleep(0)
        server.start()
        handles = await enqueueing
        assert sorted(await truth.jobs()) == sorted(f"jobs.work.default.normal.send.-.{h.id}" for h in handles)


async def test_without_confirmation_the_error_says_that_the_outcome_is_unknown_and_how_to_repeat_it(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 1.0)
    app = make_app()
    probe = Probe()
    app.observe(probe)

    @app.task
    async def send() -> None: ...

    async with provisioned(app):
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(EnqueueUnconfirmed, match="may or may not be stored") as caught:
                await send.enqueue()
        finally:
            server.process.send_signal(signal.SIGCONT)
        job_id = caught.value.job_id
        assert job_id in (caught.value.hint or "")
        await send.options(job_id=job_id).enqueue()  # following the hint stores one job in any case
        assert await truth.jobs() == [f"jobs.work.default.normal.send.-.{job_id}"]


async def test_without_a_connection_the_error_says_that_nothing_was_stored(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 0.5)
    app = make_app()
    probe = Probe()
    app.observe(probe)

    @app.task
    async def send() -> None: ...

    async with provisioned(app):
        server.stop()
        await probe.wait(ConnectionLost)
        with pytest.raises(BrokerUnavailable, match="the connection to the server is lost; nothing was stored"):
            await send.enqueue()
        server.start()
        await probe.wait(ConnectionRestored)
        assert await truth.jobs() == []


@pytest.mark.parametrize("options", [{}, {"key": "k"}, {"job_id": "mine"}])
async def test_a_lost_confirmation_leads_to_one_copy(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth, options: dict[str, Any]
) -> None:
    proxy = Proxy(server.url)
    async with proxy.running():
        app = make_app(nats={"url": proxy.url})

        @app.task
        async def send() -> None: ...

        async with provisioned(app):
            lost: list[bytes] = []

            def lose_one(data: bytes) -> bytes:
                if not lost and b'"stream":"jobs-work-default"' in data:
                    lost.append(data)
                    return b""
                return data

            proxy.to_client = lose_one
            handle = await send.options(**options).enqueue()
            assert lost, "the confirmation was not lost: the test proves nothing"
            assert not handle.duplicate
            assert [s.rsplit(".", 1)[1] for s in await truth.jobs()] == [handle.id.rsplit("-", 1)[-1]]


async def test_a_batch_whose_confirmation_is_lost_is_stored_once(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth
) -> None:
    proxy = Proxy(server.url)
    async with proxy.running():
        app = make_app(nats={"url": proxy.url})

        @app.task
        async def send(n: int) -> None: ...

        async with provisioned(app):
            lost: list[bytes] = []

            def lose_commit(data: bytes) -> bytes:
                if not lost and b'"batch":' in data:
                    lost.append(data)
                    proxy.cut()  # the answer is lost with the connection
                    return b""
                return data

            proxy.to_client = lose_commit
            report = await app.enqueue_many([send.bind(n) for n in range(100)])
            assert lost, "the confirmation was not lost: the test proves nothing"
            assert report.refused == []
            assert len(await truth.jobs()) == 100
