"""Cancel jobs in every state: each has one ending, and the answer is correct."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import threading
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, JobCancelled, JobState, RetryPolicy, current_job
from jetjobs.admin import CancelOutcome, MoveOutcome
from jetjobs.jetstream.jobs.locator import JobLocator
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.model.errors import JobNotFound, ResultNotReady, TopologyMissing
from jetjobs.model.events import JobStarted
from jetjobs.model.wire.ids import anonymous_id
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=20)
HOUR = timedelta(hours=1)


async def test_a_waiting_job_is_removed_and_never_runs(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async with provisioned(app):
        handles = [await work.enqueue(1), await work.options(delay=HOUR, key="k").enqueue(2)]
        for handle in handles:
            answer = await app.jobs.cancel(handle.id, by="ada", reason="no longer needed")
            assert (answer.outcome, answer.state) == (CancelOutcome.CANCELLED, JobState.CANCELLED)
            again = await app.jobs.cancel(handle.id)
            assert again.outcome is CancelOutcome.CANCELLED  # repeating it has no effect
        assert await truth.jobs() == []
        assert (await truth.consumer())["num_pending"] == 0
        record = (await truth.done())[handles[0].id]
        assert (record["state"], record["by"], record["reason"]) == ("cancelled", "ada", "no longer needed")
        assert (await app.jobs.get(handle.id)).cancel == {"by": "ada", "reason": "no longer needed"}
        assert not (await work.options(key="k").enqueue(3)).duplicate  # the key is free
        async with running(app.worker()):
            with pytest.raises(JobCancelled, match="by ada: no longer needed"):
                await handles[0].result(SOON)
            await probe.finished(1, "succeeded")
        assert len(probe.of(JobStarted)) == 1


async def test_a_job_of_a_frozen_worker_is_not_reported_as_cancelled(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        # As if a worker had started it and was then frozen until the registry dropped it.
        lane = await truth.js.pull_subscribe_bind("normal", "jobs-work-default")
        await lane.fetch(1)
        status = await handle.status()
        record = {"id": handle.id, "run": status.run, "task": "work", "queue": "default", "worker": "frozen"}
        await truth.nc.request(f"$KV.jobs-running.{handle.id}", json.dumps(record).encode())
        answer = await app.jobs.cancel(handle.id, timeout=timedelta(seconds=0.5))
        assert (answer.outcome, answer.state) == (CancelOutcome.UNCONFIRMED, JobState.RUNNING)
        assert answer.detail == "no answer from frozen"
        assert len(await truth.jobs()) == 1
        # Its record expires after two leases.
        await truth.js.purge_stream("KV_jobs-running")
        assert (await app.jobs.cancel(handle.id)).outcome is CancelOutcome.CANCELLED
        assert await truth.jobs() == []


async def test_a_missing_bucket_of_cancel_marks_is_reported_at_once(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        async with running(app.worker(queues={"default": None})):  # it watches the bucket
            handle = await work.options(delay=HOUR).enqueue()
            await truth.js.delete_stream("KV_jobs-cancelled")
            with pytest.raises(TopologyMissing, match="jobs-cancelled"):
                await app.jobs.cancel(handle.id)
        assert len(await truth.jobs(lane="later")) == 1


async def test_a_running_async_job_stops_within_a_second(app: JetJobs, truth: Truth) -> None:
    begun = asyncio.Event()
    cleaned: list[str] = []

    @app.task
    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(current_job().id)

    async with provisioned(app):
        async with running(app.worker()):
            handle = await work.enqueue()
            await begun.wait()
            loop = asyncio.get_running_loop()
            started = loop.time()
            answer = await app.jobs.cancel(handle.id)
            assert loop.time() - started < 1.0
            assert (answer.outcome, answer.state) == (CancelOutcome.CANCELLED, JobState.CANCELLED)
            assert answer.detail == "it was stopped while it ran"
            with pytest.raises(JobCancelled):
                await handle.result(SOON)
        assert cleaned == [handle.id]
        await truth.until_empty()
        assert await truth.dead() == {}
        assert (await truth.done())[handle.id]["state"] == "cancelled"


async def test_a_job_in_a_thread_is_reported_as_not_stoppable_and_does_not_run_again(
    app: JetJobs, truth: Truth
) -> None:
    go_on, begun = threading.Event(), threading.Event()

    @app.task(retry=RetryPolicy(base=timedelta(milliseconds=10)))
    def work() -> None:
        begun.set()
        go_on.wait(30)
        raise RuntimeError("would be retried")

    async with provisioned(app):
        async with running(app.worker()):
            handle = await work.enqueue()
            await asyncio.to_thread(begun.wait, 20)
            answer = await app.jobs.cancel(handle.id)
            assert (answer.outcome, answer.state) == (CancelOutcome.NOT_STOPPABLE, JobState.RUNNING)
            assert "thread" in answer.detail
            assert len(await truth.jobs()) == 1  # it keeps running
            go_on.set()
            with pytest.raises(JobCancelled):
                await handle.result(SOON)
        await truth.until_empty()
        assert await truth.dead() == {}
        assert (await truth.done())[handle.id]["state"] == "cancelled"


async def test_a_job_that_ignores_the_cancellation_is_reported_as_stopping(app: JetJobs) -> None:
    begun, end = asyncio.Event(), asyncio.Event()

    @app.task
    async def stubborn() -> str:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await end.wait()
        return "finished all the same"

    async with provisioned_worker(app):
        handle = await stubborn.enqueue()
        await begun.wait()
        answer = await app.jobs.cancel(handle.id, timeout=timedelta(milliseconds=300))
        assert answer.outcome is CancelOutcome.STOPPING
        end.set()
        assert await handle.result(SOON) == "finished all the same"
        assert (await app.jobs.cancel(handle.id)).outcome is CancelOutcome.ENDED


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_cancelled_job_does_not_run_after_a_restart_of_its_worker(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        # Delivered to a consumer that died: the message waits for its lease to expire.
        inbox = truth.nc.new_inbox()
        replies = await truth.nc.subscribe(inbox)
        await truth.nc.publish(
            "$JS.API.CONSUMER.MSG.NEXT.jobs-work-default.normal", b'{"batch":1,"expires":5000000000}', reply=inbox
        )
        await replies.next_msg(timeout=10)
        assert (await app.jobs.cancel(handle.id)).outcome is CancelOutcome.CANCELLED
        async with running(app.worker()):
            assert (await handle.status()).state is JobState.CANCELLED
            await truth.until_empty()
            await truth.until_idle()
        assert probe.of(JobStarted) == []


@pytest.mark.timeout(180)
@pytest.mark.alone
async def test_a_thousand_cancelled_jobs_in_all_states_have_one_ending_each_and_correct_answers(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app(queues={"lease": "5s"})
    ran: Counter[str] = Counter()

    @app.task
    async def quick(n: int) -> int:
        ran[current_job().id] += 1
        return n

    @app.task
    async def slow(n: int) -> int:
        ran[current_job().id] += 1
        await asyncio.sleep(0.2)
        return n

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=300)))
    async def fragile(n: int) -> None:
        ran[current_job().id] += 1
        raise RuntimeError("no")

    draw = random.Random(7)
    async with provisioned(app):
        tasks = (quick, slow, fragile)
        requests = [
            draw.choice(tasks)
            .options(delay=timedelta(milliseconds=draw.choice([0, 500, 1000, 1500, 2000, 60_000])))
            .bind(n)
            for n in range(1000)
        ]
        report = await app.enqueue_many(requests)
        handles = report.stored
        assert len(handles) == 1000
        async with running(app.worker(slots=20)), running(app.worker(slots=20, name="second")):
            chosen = draw.sample(handles, 1000)
            gate = asyncio.Semaphore(8)

            async def cancel(job_id: str, queue: str, task: str) -> tuple[str, CancelOutcome, JobState | None]:
                async with gate:
                    answer = await app.jobs.cancel(job_id, queue=queue, task=task)
                    return job_id, answer.outcome, answer.state

            answers = await asyncio.gather(*(cancel(h.id, h.queue, h.task) for h in chosen))
            await eventually(lambda: _empty(truth), 60)
        done, dead = await truth.done(), await truth.dead()
        for job_id, outcome, state in answers:
            places = [done[job_id]["state"]] if job_id in done else []
            places += ["dead"] if job_id in dead else []
            assert len(places) == 1, (job_id, outcome, places)
            if outcome is CancelOutcome.CANCELLED:
                assert places == ["cancelled"], (job_id, places)
            else:
                assert outcome is CancelOutcome.ENDED, (job_id, outcome)
                assert places == [state], (job_id, state, places)
        counts = Counter(outcome for _, outcome, _ in answers)
        assert counts[CancelOutcome.CANCELLED] > 200
        assert counts[CancelOutcome.ENDED] > 20


async def _empty(truth: Truth) -> bool:
    return await truth.jobs() == []


@pytest.mark.parametrize("named", ["no token: é", None])
async def test_a_job_published_without_an_id_is_found_and_cancelled_by_the_id_of_the_list(
    app: JetJobs, truth: Truth, probe: Probe, named: str | None
) -> None:
    @app.task
    async def send(n: int) -> int:
        return n

    async with provisioned(app):
        for number in range(3):
            headers = {"Nats-Msg-Id": f"{named}{number}"} if named else None
            await truth.js.publish("jobs.work.default.normal.send", b'{"n": %d}' % number, headers=headers)
        ids = [item.status.id for item in (await app.jobs.page()).items]
        assert len(set(ids)) == 3
        for job_id in ids:
            status = await app.jobs.get(job_id)
            assert (status.id, status.state, status.task) == (job_id, JobState.QUEUED, "send")
        handle = await app.job(ids[0])
        with pytest.raises(ResultNotReady):  # it waits and does not count as ended
            await handle.result(timedelta(milliseconds=300))
        answer = await app.jobs.cancel(ids[1], by="ada", reason="a test")
        assert (answer.outcome, answer.state) == (CancelOutcome.CANCELLED, JobState.CANCELLED)
        assert [item.status.id for item in (await app.jobs.page()).items] == [ids[0], ids[2]]
        assert (await app.jobs.get(ids[1])).state is JobState.CANCELLED
        moved = await app.jobs.set_priority(ids[0], "high")
        assert moved.outcome is MoveOutcome.TOO_LATE
        assert "published without jetjobs and has not moved yet, so its priority cannot be changed" in moved.detail
        async with running(app.worker()):
            assert await handle.result(SOON) == 0
            await probe.finished(2, "succeeded")
        assert {status["state"] for status in (await truth.done()).values()} == {"succeeded", "cancelled"}
        assert [(await app.jobs.get(job_id)).result for job_id in (ids[0], ids[2])] == [0, 2]
        await truth.until_empty()
        pin = await at_sequence(app.jetstream.connection, "jobs-work-default", 1)
        assert pin is not None
        for none in (anonymous_id(pin.stored_at, 1), ids[0].replace("-", "-9")):
            with pytest.raises(JobNotFound):
                await app.jobs.cancel(none)


async def test_a_message_id_finds_the_job_while_it_runs_and_after_its_first_move(
    app: JetJobs, truth: Truth
) -> None:
    begun = asyncio.Event()

    @app.task(retry=RetryPolicy(base=timedelta(hours=1)))
    async def send(n: int) -> None:
        if n:
            raise RuntimeError("again in an hour")
        begun.set()
        await asyncio.sleep(60)

    async with provisioned(app):
        for number in range(2):
            headers = {"Nats-Msg-Id": f"mine{number}"}
            await truth.js.publish("jobs.work.default.normal.send", b'{"n": %d}' % number, headers=headers)
        assert [item.status.id for item in (await app.jobs.page()).items] == ["mine0", "mine1"]
        for change in (app.jobs.get("mine0"), app.jobs.cancel("mine0")):
            with pytest.raises(JobNotFound) as caught:
                await change
            assert "may not have its id yet: `jetjobs jobs list --task TASK` shows it" in str(caught.value.hint)
        async with running(app.worker()):
            await begun.wait()
            await eventually(lambda: _is(app, "mine0", JobState.RUNNING))
            with pytest.raises(ResultNotReady):
                await (await app.job("mine0")).result(timedelta(milliseconds=300))
            answer = await app.jobs.cancel("mine0")
            assert (answer.outcome, answer.state) == (CancelOutcome.CANCELLED, JobState.CANCELLED)
            await eventually(lambda: _is(app, "mine1", JobState.RETRYING))
        assert (await app.jobs.cancel("mine1")).outcome is CancelOutcome.CANCELLED
        assert await truth.jobs() == []


async def test_a_job_running_under_a_message_id_does_not_count_as_ended_when_its_worker_died(
    app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def send(n: int) -> int:
        return n

    looked = set[str]()
    look = JobLocator.running_without_id

    async def looking(places: JobLocator, queue: str, task: str, job_id: str) -> dict[str, Any]:
        record = await look(places, queue, task, job_id)
        looked.add(job_id)
        return record

    monkeypatch.setattr(JobLocator, "running_without_id", looking)

    async def seen() -> bool:
        return "mine0" in looked and (await app.jobs.get("mine1")).cancel is not None

    async with provisioned(app):
        for number in range(2):
            headers = {"Nats-Msg-Id": f"mine{number}"}
            await truth.js.publish("jobs.work.default.normal.send", b'{"n": %d}' % number, headers=headers)
        held = await (await truth.js.pull_subscribe_bind("normal", "jobs-work-default")).fetch(2)
        for item in (await app.jobs.page()).items:
            record = {"run": item.status.run, "queue": "default", "task": "send", "worker": "dead"}
            await truth.nc.request(f"$KV.jobs-running.{item.status.id}", json.dumps(record).encode())
        waiting = asyncio.create_task((await app.job("mine0")).result(SOON))
        cancelling = asyncio.create_task(app.jobs.cancel("mine1", timeout=SOON))
        await eventually(seen)
        await truth.js.purge_stream("KV_jobs-running")  # as their TTL would
        assert (await cancelling).outcome is CancelOutcome.CANCELLED
        assert await truth.jobs() == ["jobs.work.default.normal.send"]
        for message in held:
            await message.nak()
        async with running(app.worker()):
            assert await waiting == 0
        assert (await app.jobs.get("mine1")).state is JobState.CANCELLED


async def _is(app: JetJobs, job_id: str, state: JobState) -> bool:
    with contextlib.suppress(JobNotFound):
        return (await app.jobs.get(job_id)).state is state
    return False


async def test_a_job_that_ignores_the_cancellation_keeps_its_time_limit(app: JetJobs, truth: Truth) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.task(timeout=timedelta(seconds=2))
    async def deaf() -> None:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    async with provisioned(app):
        async with running(app.worker()):
            handle = await deaf.enqueue()
            await begun.wait()
            answer = await app.jobs.cancel(handle.id, timeout=timedelta(0))
            assert answer.outcome is CancelOutcome.STOPPING
            await asyncio.wait_for(ended.wait(), 20)
            with pytest.raises(JobCancelled):
                await handle.result(SOON)
        await truth.until_empty()


async def test_jobs_with_the_same_id_in_two_queues_are_cancelled_independently(app: JetJobs, truth: Truth) -> None:
    go_on, begun = threading.Event(), threading.Event()
    runs: list[int] = []

    @app.task(queue="mail", retry=RetryPolicy(base=timedelta(milliseconds=10)))
    def work() -> None:
        runs.append(current_job().attempt)
        begun.set()
        go_on.wait(30)
        raise RuntimeError("would be retried")

    @app.task
    async def other() -> None: ...

    async with provisioned(app):
        async with running(app.worker()):
            handle = await work.options(job_id="twice").enqueue()
            await other.options(job_id="twice", delay=timedelta(hours=1)).enqueue()
            await asyncio.to_thread(begun.wait, 20)
            assert (await app.jobs.cancel("twice", queue="mail")).outcome is CancelOutcome.NOT_STOPPABLE
            assert (await app.jobs.cancel("twice", queue="default")).outcome is CancelOutcome.CANCELLED
            go_on.set()
            with pytest.raises(JobCancelled):
                await handle.result(SOON)
        assert runs == [1]
        await truth.until_empty()


async def test_a_cancel_does_not_delete_data_of_another_job_with_that_id(app: JetJobs) -> None:
    kept, go_on = asyncio.Event(), asyncio.Event()

    @app.task(queue="mail")
    async def work() -> int | None:
        await current_job().checkpoint(42)
        kept.set()
        await go_on.wait()
        return await current_job().resume(int)

    @app.task
    async def other() -> None: ...

    async with provisioned_worker(app):
        handle = await work.options(job_id="twice").enqueue()
        await kept.wait()
        await other.options(job_id="twice", delay=timedelta(hours=1)).enqueue()
        assert (await app.jobs.cancel("twice", queue="default")).outcome is CancelOutcome.CANCELLED
        go_on.set()
        assert await handle.result(SOON) == 42
