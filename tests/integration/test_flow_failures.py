"""Flows of which a step fails, is cancelled or is late: who waits, who goes on, and what a replay does."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import Failed, Flow, FlowHandle, FlowState, JetJobs, JobState, RetryPolicy
from jetjobs.admin import FlowCancelOutcome, ReplayOutcome
from jetjobs.errors import FlowCancelled, FlowFailed, FlowNotFound, ResultNotReady
from jetjobs.model.events import JobFinished, JobStarted
from jetjobs.model.wire.ids import flow_key
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from tests.conftest import MakeApp
from tests.integration.test_crashes import deliver_to_the_end, pull
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

ONCE = RetryPolicy(max_attempts=1)


class Tasks:
    """Tasks of which `check` fails for numbers that are not allowed yet."""

    def __init__(self, app: JetJobs) -> None:
        self.allowed: set[int] = set()
        self.held = asyncio.Event()

        @app.task(retry=ONCE)
        async def check(n: int) -> int:
            if n < 0 and n not in self.allowed:
                raise ValueError(f"{n} is negative")
            return n

        @app.task(queue="slow")
        async def slow(n: int) -> int:
            return n

        @app.task
        async def hold(n: int) -> int:
            await self.held.wait()
            return n

        @app.task
        async def total(ns: list[int]) -> int:
            return sum(ns)

        @app.task
        async def settled(ns: list[int | Failed]) -> list[str]:
            return [n.reason if isinstance(n, Failed) else str(n) for n in ns]

        @app.task
        async def alarm(text: str) -> str:
            return text

        self.check, self.slow, self.hold, self.alarm = check, slow, hold, alarm
        self.total, self.settled = total, settled


async def until(handle: FlowHandle[Any], state: FlowState) -> Any:
    return await eventually(handle.status, where=lambda status: status.state is state)


async def replay(app: JetJobs, job_id: str) -> ReplayOutcome:
    letter = await app.dead.get(job_id)
    assert letter is not None
    return (await app.dead.replay(letter)).outcome


def starts(probe: Probe) -> Counter[str]:
    return Counter(event.task for event in probe.of(JobStarted))


# wait


async def test_a_join_waits_for_a_dead_job_and_a_replay_goes_on(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("wait")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1, -2, 3]))))
        with pytest.raises(FlowFailed, match=r"jobs are dead: k\w+-check-1 \(exhausted\)") as caught:
            await handle.result(10)
        [failure] = caught.value.failures
        assert (failure.reason, failure.error) == ("exhausted", "ValueError: -2 is negative")
        await truth.until_idle()
        assert await truth.jobs(lane="gate") == await truth.jobs(), "only the join is left"
        tasks.allowed.add(-2)
        assert await replay(app, failure.job_id) is ReplayOutcome.REPLAYED
        assert await handle.result(10) == 2
        assert starts(probe) == {"check": 4, "total": 1}
        await truth.until_empty()
        key = flow_key(handle.id)
        assert await truth.subjects("jobs-ledger") == {
            f"jobs.ledger.{key}.check.3.end": 3,
            f"jobs.ledger.{key}.check.3.dead": 1,
            f"jobs.ledger.{key}.total.1.end": 1,
        }


async def test_a_flow_is_retried_from_its_failed_steps(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("retry")
        checked = flow.map(tasks.check, [1, -2, -3])
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, checked)))
        await probe.finished(2, "dead_lettered")
        assert len((await until(handle, FlowState.FAILED)).failures) == 2
        assert (await handle.retry("total")).replayed == ()
        tasks.allowed |= {-2, -3}
        assert sorted((await handle.retry("check")).replayed) == [
            f"{flow_key(handle.id)}-check-{n}" for n in (1, 2)
        ]
        assert await handle.result(10) == -4
        assert (await handle.retry()).replayed == ()
        assert starts(probe)["total"] == 1


async def test_a_letter_that_is_replayed_twice_runs_once(app: JetJobs, probe: Probe, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("twice")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1, -2]))))
        async with running(app.worker()):
            [failure] = (await until(handle, FlowState.FAILED)).failures
        tasks.allowed.add(-2)
        answers = await asyncio.gather(*(replay(app, failure.job_id) for _ in range(2)), return_exceptions=True)
        assert ReplayOutcome.REPLAYED in answers
        async with running(app.worker()):
            assert await handle.result(10) == -1
            await truth.until_empty()
        assert starts(probe) == {"check": 3, "total": 1}


async def test_a_job_that_is_cancelled_counts_as_a_failure(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("cancelled")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1, 2]))))
        await app.jobs.cancel(f"{flow_key(handle.id)}-check-1", by="ada", reason="not needed")
        async with running(app.worker()):
            [failure] = (await until(handle, FlowState.FAILED)).failures
            assert (failure.reason, failure.error) == ("cancelled", "cancelled by ada: not needed")


async def test_the_dead_join_of_a_flow_is_replayed_with_its_arguments(app: JetJobs, truth: Truth) -> None:
    allowed = False

    @app.task
    async def one(n: int) -> int:
        return n

    @app.task(retry=ONCE)
    async def total(ns: list[int]) -> int:
        if not allowed:
            raise ValueError("not yet")
        return sum(ns)

    async with provisioned_worker(app):
        flow = Flow("join")
        handle = await app.enqueue_flow(flow.returns(flow.add(total, flow.map(one, [1, 2, 3]))))
        [failure] = (await until(handle, FlowState.FAILED)).failures
        assert (await app.jobs.get(failure.job_id)).arguments == {"ns": [1, 2, 3]}
        # The letter is all that is left of the flow: nothing else is needed to run the join.
        await truth.js.purge_stream("jobs-ledger")
        allowed = True
        await replay(app, failure.job_id)
        assert await handle.result(10) == 6


# settled


async def test_a_settled_step_goes_on_without_a_dead_job(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("settled")
        results = flow.map(tasks.check.settled, [1, -2, 3])
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.settled, results)))
        assert await handle.result(10) == ["1", "exhausted", "3"]
        tasks.allowed.add(-2)
        await replay(app, f"{flow_key(handle.id)}-check-1")
        await probe.finished(4, "succeeded")
        await truth.until_empty()
        assert starts(probe) == {"check": 4, "settled": 1}, "the join does not run again"
        assert await handle.result(10) == ["1", "exhausted", "3"]


async def test_a_job_that_is_replayed_before_its_siblings_end_counts_with_its_success(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("settled")
        results = [
            flow.add(tasks.check.settled, -2),
            flow.add(tasks.hold.settled, 1),
        ]
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.settled, results)))
        await probe.finished(1, "dead_lettered")
        tasks.allowed.add(-2)
        await replay(app, f"{flow_key(handle.id)}-check")
        await probe.finished(1, "succeeded")
        assert starts(probe)["settled"] == 0
        tasks.held.set()
        assert await handle.result(10) == ["-2", "1"]


async def test_an_entry_too_many_does_not_fire_a_join_early(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)

    @app.task(retry=ONCE)
    async def each(n: int) -> int:
        call = tasks.check if n < 0 else tasks.hold
        result: int = await call(n)
        return result

    async with provisioned_worker(app):
        flow = Flow("group")
        results = flow.map(each.settled, [-1, -2, 3])
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.settled, results)))
        await probe.finished(2, "dead_lettered")
        tasks.allowed.add(-1)
        await replay(app, f"{flow_key(handle.id)}-each-0")
        await probe.finished(1, "succeeded")
        # Three entries of a group of three, for two of its jobs.
        assert (await truth.subjects("jobs-ledger"))[f"jobs.ledger.{flow_key(handle.id)}.each.3.end"] == 3
        assert starts(probe)["settled"] == 0
        tasks.held.set()
        assert await handle.result(10) == ["-1", "exhausted", "3"]


async def test_the_process_that_cancels_the_last_job_of_a_settled_step_fires_the_join(
    app: JetJobs, make_app: MakeApp, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("settled")
        results = [flow.add(tasks.check.settled, 1), flow.add(tasks.slow.settled, 2)]
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.settled, results)))
        async with running(app.worker(queues={"default": None})):
            await probe.finished(1)
            async with make_app("operator") as operator:
                await operator.jobs.cancel(f"{flow_key(handle.id)}-slow", by="ada")
            assert await handle.result(10) == ["1", "cancelled"]


async def test_a_returned_flow_that_fails_settles_the_place_of_its_job(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)

    @app.task
    async def inner(n: int) -> Flow[int]:
        flow = Flow("inner")
        return flow.returns(flow.add(tasks.total, flow.map(tasks.check, [n, 1])))

    async with provisioned_worker(app):
        flow = Flow("outer")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.settled, flow.map(inner.settled, [5, -5]))))
        assert await handle.result(10) == ["6", "exhausted"]


# cancel


async def test_with_cancel_the_first_failure_cancels_the_flow(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("fast", on_failure="cancel")
        held = [flow.add(tasks.hold, n) for n in range(3)]
        flow.add(tasks.total, held)
        flow.add(tasks.check, -1)
        flow.on_failed(tasks.alarm, "failed")
        handle = await app.enqueue_flow(flow)
        with pytest.raises(FlowCancelled, match=r"cancelled by jetjobs: job k\w+-check failed"):
            await handle.result(10)
        await probe.finished(3, "cancelled")
        [alarm] = await probe.wait(JobFinished, 1, lambda event: event.task == "alarm")
        assert alarm.outcome == "succeeded"
        assert starts(probe) == {"hold": 3, "check": 1, "alarm": 1}
        await truth.until_empty()


async def test_the_task_of_on_failed_runs_once_if_a_flow_fails(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("alarm")
        flow.add(tasks.total, flow.map(tasks.check, [-1, -2]))
        flow.on_failed(tasks.alarm, text="failed")
        handle = await app.enqueue_flow(flow)
        await probe.finished(2, "dead_lettered")
        [alarm] = await probe.wait(JobFinished, 1, lambda event: event.task == "alarm")
        assert alarm.outcome == "succeeded"
        await truth.until_idle()
        assert starts(probe)["alarm"] == 1
        assert (await handle.status()).state is FlowState.FAILED


async def test_the_task_of_on_failed_is_removed_when_the_flow_has_ended(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("fine")
        flow.add(tasks.check, 1)
        flow.add(tasks.check, 2)
        flow.on_failed(tasks.alarm, text="failed")
        handle = await app.enqueue_flow(flow)
        assert await handle.result(10) is None
        await truth.until_empty()
        assert starts(probe) == {"check": 2}


async def test_a_flow_can_be_cancelled(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)

    @app.task
    async def later(n: int) -> int:
        raise ValueError("later")

    async with provisioned(app):
        flow = Flow("cancel")
        flow.map(later.options(retry=RetryPolicy(base=timedelta(hours=1), cap=timedelta(hours=1))), range(10))
        flow.add(tasks.total, flow.map(tasks.hold, range(50)))
        flow.map(tasks.slow, range(10))
        flow.on_failed(tasks.alarm, text="failed")
        handle = await app.enqueue_flow(flow)
        other = await tasks.check.enqueue(7)
        async with running(app.worker(queues={"default": None}, slots=20)):
            await probe.finished(10, "retried")
            await probe.wait(JobStarted, 20, lambda event: event.task == "hold")
            answer = await handle.cancel(by="ada", reason="not needed")
            assert answer.outcome is FlowCancelOutcome.CANCELLED
            assert answer.removed == 1 + 1 + 10, "the gates of total and on_failed, and the retries"
            begun = starts(probe)
            await probe.finished(20, "cancelled")
            assert await other.result(10) == 7
            await truth.until_empty()
            begun["check"] = 1
            assert starts(probe) == begun, "no job of the flow begins after the answer"
        with pytest.raises(FlowCancelled, match="was cancelled by ada: not needed"):
            await handle.result(10)
        assert (await handle.cancel()).outcome is FlowCancelOutcome.CANCELLED, "repeating it changes nothing"
        with pytest.raises(FlowCancelled, match="its jobs are dropped"):
            await handle.retry()
        # Queue `slow` had no worker until now.
        async with running(app.worker(queues={"slow": None})):
            await truth.until_empty("slow")
        assert starts(probe)["slow"] == 0
        assert len(await truth.done()) == 21, "what was dropped has no record"


async def test_a_flow_that_has_ended_is_not_cancelled(app: JetJobs) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("ended")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.check, 1)))
        assert await handle.result(10) == 1
        assert (await handle.cancel()).outcome is FlowCancelOutcome.ENDED
        with pytest.raises(FlowNotFound):
            await app.flows.cancel("unknown")


# Deadline


async def test_a_join_is_dead_at_the_deadline_and_a_retry_goes_on(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned(app), running(app.worker(queues={"default": None})):
        flow = Flow("late", deadline=timedelta(seconds=1))
        results = [flow.add(tasks.slow, 1), flow.add(tasks.check, 2)]
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, results)))
        [dead] = await probe.finished(1, "dead_lettered")
        assert (dead.task, dead.reason) == ("total", "expired")
        [letter] = (await truth.dead()).values()
        assert letter["text"] == "its flow has expired: step 'slow', which it waits for, has not ended"
        with pytest.raises(FlowFailed, match="not ended by its deadline"):
            await handle.result(10)
        # Replayed too early it waits again; the step that it waits for fires it.
        assert (await handle.retry()).replayed == (f"{flow_key(handle.id)}-total",)
        assert (await app.jobs.get(f"{flow_key(handle.id)}-total")).state is JobState.WAITING
        async with running(app.worker(queues={"slow": None})):
            assert await handle.result(10) == 3
        assert starts(probe)["total"] == 1


async def test_a_dead_join_whose_steps_have_ended_since_runs_when_it_is_replayed(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned(app), running(app.worker(queues={"default": None})):
        flow = Flow("late", deadline=timedelta(seconds=1))
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, [flow.add(tasks.slow, 1)])))
        await probe.finished(1, "dead_lettered")
        async with running(app.worker(queues={"slow": None})):
            await probe.finished(1, "succeeded")
        await replay(app, f"{flow_key(handle.id)}-total")
        await probe.finished(2, "succeeded")
        assert await handle.result(10) == 1
        assert starts(probe)["total"] == 1


async def test_close_to_the_deadline_the_server_fires_the_gate_and_its_worker_binds_it(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        flow = Flow("close", deadline=timedelta(seconds=1.5))
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1, 2]))))
        await probe.finished(2)
        assert len(await truth.jobs(lane="gate")) == 1, "left to the clock"
        assert await handle.result(10) == 3
        assert starts(probe)["total"] == 1


async def test_a_map_that_the_clock_fires_is_expanded(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)

    @app.task
    async def numbers(n: int) -> list[int]:
        return list(range(n))

    async with provisioned_worker(app):
        flow = Flow("close", deadline=timedelta(seconds=1))
        handle = await app.enqueue_flow(flow.returns(flow.map(tasks.check, flow.add(numbers, 3))))
        await probe.finished(4)
        counts = {step.name: step.ended for step in (await handle.status()).steps}
        assert counts == {"numbers": 1, "check": 3}
        await truth.until_empty()


async def test_the_task_of_on_failed_runs_at_the_deadline(app: JetJobs, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned(app), running(app.worker(queues={"default": None})):
        flow = Flow("late", deadline=timedelta(seconds=1))
        flow.add(tasks.slow, 1)
        flow.on_failed(tasks.alarm, text="late")
        await app.enqueue_flow(flow)
        [alarm] = await probe.wait(JobFinished, 1, lambda event: event.task == "alarm")
        assert alarm.outcome == "succeeded"


# What cannot go on


@pytest.mark.settings(queues={"lease": "1s", "max_crashes": 1})
async def test_a_job_that_the_leader_dead_letters_is_a_failure_of_its_flow(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("stranded")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1]))))
        await deliver_to_the_end(truth)
        await app.jetstream.server_clock.refresh("jobs-work-default")
        sweep = StrandedJobs(app.jetstream, "leader", 0.1, lambda event: None)

        async def repaired() -> bool:
            await pull(truth, expires_s=0.5)  # the server stops delivering it at the next pull
            return (await sweep.sweep("default")).repaired == 1

        await eventually(repaired)
        [failure] = (await handle.status()).failures
        assert failure.reason == "crashed"
        await truth.until_idle()
        async with running(app.worker()):
            await handle.retry()
            assert await handle.result(10) == 1


async def test_a_map_over_something_that_is_not_a_list_is_dead(app: JetJobs, truth: Truth, probe: Probe) -> None:
    tasks = Tasks(app)

    @app.task
    async def wrong(n: int) -> list[int]:
        return {"n": n}  # type: ignore[return-value]

    async with provisioned_worker(app):
        flow = Flow("wrong")
        handle = await app.enqueue_flow(flow.returns(flow.map(tasks.check, flow.add(wrong, 1))))
        with pytest.raises(FlowFailed):
            await handle.result(10)
        [letter] = (await truth.dead()).values()
        assert letter["reason"] == "malformed"
        assert "which is not a list but dict" in letter["text"]


async def test_a_returned_flow_whose_id_is_taken_is_refused_and_its_job_acked(
    app: JetJobs, truth: Truth, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = Tasks(app)

    @app.task
    async def returns(n: int) -> Flow[int]:
        flow = Flow("inner", id="taken")
        return flow.returns(flow.add(tasks.check, n))

    async with provisioned_worker(app):
        for number in (1, 2):
            await returns.enqueue(number)
            await probe.wait(JobFinished, number, lambda event: event.task == "returns")
        await truth.until_empty()
        refused = [record for record in caplog.records if vars(record).get("event") == "flow.refused"]
        assert ["flow 'taken' exists with another content" in vars(record)["error"] for record in refused] == [
            True
        ]
        assert await (await app.flows.handle("taken")).result(10) == 1


async def test_a_result_that_is_gone_makes_the_step_that_needs_it_dead(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)

    @app.task
    async def large(n: int) -> str:
        return "x" * n

    @app.task
    async def lengths(texts: list[str], ns: list[int]) -> int:
        return len(texts)

    async with provisioned_worker(app):
        flow = Flow("gone")
        texts = flow.map(large, [100_000, 1])
        handle = await app.enqueue_flow(flow.returns(flow.add(lengths, texts, [flow.add(tasks.hold, 1)])))
        await probe.finished(2)
        for name in await truth.objects():
            await app.jetstream.payloads.delete(name)
        tasks.held.set()
        [failure] = (await until(handle, FlowState.FAILED)).failures
        assert failure.reason == "malformed"
        assert "is not in jobs-payloads" in failure.error


async def test_a_step_of_a_task_that_was_renamed_waits_for_a_worker_that_knows_it(
    app: JetJobs, probe: Probe
) -> None:
    @app.task
    async def one(n: int) -> int:
        return n

    @app.task(name="old")
    async def new(n: int) -> int:
        return n

    async with provisioned(app):
        flow = Flow("renamed")
        handle = await app.enqueue_flow(flow.returns(flow.add(new, flow.add(one, 1))))
        task = app.tasks.pop("old")
        async with running(app.worker()):
            await probe.finished(1, "parked")
            app.tasks["old"] = task
            assert await handle.result(10) == 1


async def test_a_queue_that_is_purged_leaves_its_flow_to_the_deadline(app: JetJobs, probe: Probe) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("purged", deadline=timedelta(seconds=2))
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1, 2]))))
        assert (await app.queues.purge("default", scheduled=True)).queued == 2
        with pytest.raises(ResultNotReady):
            await handle.result(0.1)
        async with running(app.worker()):
            [dead] = await probe.finished(1, "dead_lettered")
            assert (dead.task, dead.reason) == ("total", "expired")
        assert (await handle.status()).state is FlowState.EXPIRED


async def test_forged_entries_neither_fire_a_gate_nor_stop_a_flow(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    tasks = Tasks(app)
    async with provisioned(app):
        flow = Flow("forged", id="forged")
        handle = await app.enqueue_flow(flow.returns(flow.add(tasks.total, flow.map(tasks.check, [1, 2, 3]))))
        key = flow_key("forged")
        for count, headers in (
            (3, {"Nats-Incr": "1000"}),
            (3, {"Nats-Incr": "1", "Jetjobs-Index": "9", "Jetjobs-State": "succeeded"}),
            (2, {"Nats-Incr": "1", "Jetjobs-Index": "0", "Jetjobs-State": "succeeded"}),
            (3, {"Nats-Incr": "1", "Jetjobs-Index": "1", "Jetjobs-State": "fine", "Jetjobs-Result": "[["}),
        ):
            await truth.js.publish(f"jobs.ledger.{key}.check.{count}.end", b"", headers=headers)
        async with running(app.worker(slots=1)):
            assert await handle.result(10) == 6
        assert starts(probe) == {"check": 3, "total": 1}


async def test_jobs_with_headers_of_a_flow_that_cannot_be_read_are_dead(app: JetJobs, truth: Truth) -> None:
    tasks = Tasks(app)
    async with provisioned_worker(app):
        for number, headers in enumerate(
            [
                {"Jetjobs-Flow": "x", "Jetjobs-Step": "no step"},
                {"Jetjobs-Flow": "x"},
                {"Jetjobs-Flow": "x", "Jetjobs-Step": "a.0.1", "Jetjobs-After": "[]"},
                {"Jetjobs-Flow": "x", "Jetjobs-Step": "a.0.1", "Jetjobs-Next": "a.b"},
            ]
        ):
            await truth.js.publish(f"jobs.work.default.normal.check.-.j{number}", b'{"n": 1}', headers=headers)
        await truth.until_empty()
        assert {letter["reason"] for letter in (await truth.dead()).values()} == {"malformed"}
        assert len(await truth.dead()) == 4
        del tasks
