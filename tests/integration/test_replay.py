"""Replays run each letter once, also when interrupted or repeated, and are refused when they cannot run."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from jetjobs import JetJobs, JobFailed, JobState, RetryPolicy
from jetjobs.admin import ReplayOutcome
from jetjobs.jetstream.messages.codec import decode
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.transport.nats_client import write_headers
from jetjobs.model.outcome import ErrorInfo, Retried
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.execution.settlement import Settlement
from jetjobs.worker.leases.lease_table import LeaseTable
from tests.support.letters import bury, letter_of
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)
ONCE = RetryPolicy(max_attempts=1)
broken = True


def with_task(app: JetJobs) -> None:
    global broken
    broken = True

    @app.task(retry=ONCE)
    async def work(n: int) -> int:
        if broken:
            raise LookupError(f"no {n}") if n % 2 else ValueError(f"bad {n}")
        return n


async def test_a_replayed_job_keeps_its_id_runs_once_and_records_the_replay(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    global broken
    with_task(app)
    async with provisioned(app):
        handle = await app.tasks["work"].options(key="k", priority="high", headers={"X-Tenant": "acme"}).enqueue(3)
        async with running(app.worker()):
            with pytest.raises(JobFailed):
                await handle.result(SOON)
            letter = await letter_of(app, handle.id)
            broken = False
            answer = await app.dead.replay(letter, by="ada", reason="fixed")
            assert answer.outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded")
            assert (await handle.status()).state is JobState.SUCCEEDED
            again = await app.dead.replay(letter, by="ada", reason="fixed")
            assert again.outcome is ReplayOutcome.GONE
        assert await truth.dead() == {}
        record = (await truth.done())[handle.id]
        assert record["result"] == 3
        assert record["replay"]["number"] == 1
        (provenance,) = record["replay"]["replays"]
        assert (provenance["by"], provenance["why"]) == ("ada", "fixed")
        assert provenance["died_of"] == "exhausted: LookupError: no 3"
        await truth.until_empty()


async def test_a_replayed_job_that_dies_again_keeps_its_history_and_can_be_replayed_again(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    with_task(app)
    async with provisioned(app):
        (job_id,) = await bury(app, "work", [b'{"n":1}'])
        async with running(app.worker()):
            for number in (1, 2):
                letter = await letter_of(app, job_id)
                assert len(letter.replays) == number - 1
                assert (await app.dead.replay(letter, by=f"person {number}")).outcome is ReplayOutcome.REPLAYED
                await probe.finished(number, "dead_lettered")
        letter = await letter_of(app, job_id)
        assert [entry["by"] for entry in letter.replays] == ["person 1", "person 2"]
        assert set(await truth.dead()) == {job_id}


@pytest.mark.settings(queues={"unknown_task_grace": 0})
async def test_a_letter_that_still_cannot_run_is_refused_without_changes(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    global broken
    with_task(app)
    async with provisioned(app):
        await truth.nc.publish("jobs.work.default.normal.absent", b"{}", headers={"Nats-Msg-Id": "unknown-1"})
        await truth.nc.publish(
            "jobs.work.default.normal.work", b'{"n": "x"}', headers={"Nats-Msg-Id": "invalid-1"}
        )
        async with running(app.worker()):
            await probe.finished(2, "dead_lettered")
            for job_id in ("unknown-1", "invalid-1"):
                letter = await letter_of(app, job_id)
                answer = await app.dead.replay(letter)
                assert answer.outcome is ReplayOutcome.REFUSED
                assert answer.why
            assert set(await truth.dead()) == {"unknown-1", "invalid-1"}
            broken = False
            letter = await letter_of(app, "invalid-1")
            nowhere = await app.dead.replay(letter, arguments={"n": 8}, to_queue="nowhere")
            assert nowhere.outcome is ReplayOutcome.REFUSED
            fixed = await app.dead.replay(letter, arguments={"n": 8})
            assert fixed.outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded")
        assert (await truth.done())["invalid-1"]["result"] == 8


async def test_a_letter_whose_key_has_a_live_job_is_not_replayed(app: JetJobs, truth: Truth, probe: Probe) -> None:
    with_task(app)
    async with provisioned(app):
        keyed = app.tasks["work"].options(key="k")
        first = await keyed.enqueue(1)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        await keyed.enqueue(2)
        letter = await letter_of(app, first.id)
        assert (await app.dead.replay(letter)).outcome is ReplayOutcome.ALIVE
        assert set(await truth.dead()) == {first.id}
        assert len(await truth.jobs()) == 1


async def test_a_body_at_the_limit_of_the_server_is_dead_lettered_and_replayed_completely(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    sizes: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=10)))
    async def swallow(text: str) -> None:
        sizes.append(len(text))
        if len(sizes) <= 2:
            raise RuntimeError("not yet")

    async with provisioned(app):
        filling = "x" * (truth.nc.max_payload - len(b'{"text":""}') - 100)
        await truth.nc.publish("jobs.work.default.normal.swallow", f'{{"text":"{filling}"}}'.encode())
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            (letter,) = [x async for x in app.dead.list()]
            exported = json.loads(json.dumps(await app.dead.to_json(letter)))
            assert await app.dead.delete(letter)
            assert await app.dead.from_json(exported)  # with the body in the object store
            (letter,) = [x async for x in app.dead.list()]
            assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded")
        assert sizes == [len(filling)] * 3
        assert (await truth.objects(), await truth.chunks()) == ({}, {})  # deleted with its job


async def test_a_body_that_fits_a_letter_but_not_a_job_is_replayed_completely(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    seen: list[str] = []

    @app.task
    async def swallow(text: str) -> None:
        seen.append(text)

    async with provisioned(app):
        filling = "x" * (truth.nc.max_payload - 10_000)
        (job_id,) = await bury(app, "swallow", [f'{{"text":"{filling}"}}'.encode()])
        letter = await letter_of(app, job_id)
        assert letter.body  # it is in the letter itself
        async with running(app.worker()):
            assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
            await probe.finished(1, "succeeded")
            (other,) = await bury(app, "swallow", [b"{}"])
            edited = await app.dead.replay(await letter_of(app, other), arguments={"text": "y" * 2_000_000})
            assert edited.outcome is ReplayOutcome.REPLAYED
            await probe.finished(2, "succeeded")
        assert [len(text) for text in seen] == [len(filling), 2_000_000]
        assert await truth.subjects("OBJ_jobs-payloads", "$O.jobs-payloads.C.>") == {}
        assert await truth.dead() == {}


async def test_by_and_reason_are_limited_in_length(app: JetJobs, truth: Truth) -> None:
    with_task(app)
    async with provisioned(app):
        (job_id,) = await bury(app, "work", [b'{"n":1}'])
        letter = await letter_of(app, job_id)
        for by, reason in (("x" * 501, ""), ("", "x" * 70_000)):
            answer = await app.dead.replay(letter, by=by, reason=reason)
            assert answer.outcome is ReplayOutcome.REFUSED
            assert "the limit is 500" in answer.why
        assert set(await truth.dead()) == {job_id}
        odd = "\u2603\r\nNats-Rollup: all \ud800"
        assert (await app.dead.replay(letter, by="\u2603" * 500, reason=odd)).outcome is ReplayOutcome.REPLAYED
        assert len(await truth.jobs()) == 1


@pytest.mark.parametrize("then", ["waits", "succeeded", "died again"])
async def test_a_late_retry_of_a_job_that_died_and_was_replayed_does_not_run(
    app: JetJobs, truth: Truth, probe: Probe, then: str
) -> None:
    """The confirmation of a retry is lost and requested again long after the job has moved on."""
    broken = True

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(0)))
    async def work() -> str:
        if broken:
            raise LookupError("no")
        return "done"

    async with provisioned(app):
        handle = await work.enqueue()
        subject = f"jobs.work.default.normal.work.-.{handle.id}"
        stored = await last_on(app.jetstream.connection, "jobs-work-default", subject)
        assert stored is not None
        ack = f"$JS.ACK.jobs-work-default.normal.1.{stored.sequence}.1.{int(stored.stored_at * 1e9)}.0"
        delivery = Delivery(app.jetstream.connection, subject, ack, stored.data, write_headers(stored.headers))
        attempt = Attempt(delivery, "default", "normal", time.monotonic(), 600.0)
        job = decode(delivery)
        await app.jetstream.server_clock.refresh()  # as a worker does when it starts
        leases = LeaseTable(600.0, lambda event: None)
        settlement = Settlement(app.jetstream, app, leases, "w1", 10.0, lambda event: None)
        retried = Retried(0.0, ErrorInfo("LookupError", "no"))
        await truth.api("STREAM.PURGE.jobs-work-default", {"filter": subject})  # as if it had been acked
        await settlement.settle(attempt, job, retried)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        letter = await letter_of(app, handle.id)
        if then == "succeeded":
            broken = False
        assert (await app.dead.replay(letter)).outcome is ReplayOutcome.REPLAYED
        if then != "waits":
            async with running(app.worker()):
                await probe.finished(1, "succeeded") if then == "succeeded" else await probe.finished(
                    2, "dead_lettered"
                )
        before = await truth.jobs()
        await settlement.settle(attempt, job, retried)
        assert await truth.jobs() == before
        assert len(before) == (1 if then == "waits" else 0)


async def test_the_waiting_time_of_a_replayed_job_begins_with_the_replay(app: JetJobs, probe: Probe) -> None:
    global broken
    with_task(app)
    broken = False
    async with provisioned(app):
        await bury(app, "work", [b'{"n": 2}'])
        [letter] = [one async for one in app.dead.list()]
        assert letter.died_at is not None
        yesterday = replace(letter, enqueued_at=letter.died_at - timedelta(days=1))
        assert (await app.dead.replay(yesterday)).outcome is ReplayOutcome.REPLAYED
        job = await app.jobs.get(letter.id)
        assert job.enqueued_at == yesterday.enqueued_at
        async with running(app.worker()):
            [finished] = await probe.finished(1, "succeeded")
        assert finished.wait_s < 60
