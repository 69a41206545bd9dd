"""Every way an attempt can end, and where the job is on the server afterwards."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, JobFailed, JobState, Reject, Retry, RetryPolicy, Snooze, current_job
from jetjobs.errors import PERMANENT, JobTimeout, Verdict
from jetjobs.model.events import JobFinished, JobStarted, SettleFailed
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)
ONCE = RetryPolicy(max_attempts=1)


# Outcomes of an attempt


async def test_a_plain_function_runs_in_a_thread_and_sees_its_job(app: JetJobs) -> None:
    @app.task
    def where() -> list[str]:
        return [threading.current_thread().name, current_job().task]

    async with provisioned(app):
        handle = await where.enqueue()
        async with running(app.worker()):
            thread, task = await handle.result(SOON)
        assert thread.startswith("jetjobs")
        assert task == "where"


def raise_(error: BaseException) -> Any:
    raise error


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


ODD_ENDS: dict[str, tuple[Callable[[], Any], str, bool]] = {
    "exit": (lambda: sys.exit(3), "SystemExit", True),
    "interrupt": (lambda: raise_(KeyboardInterrupt("odd")), "KeyboardInterrupt", True),
    "generator exit": (lambda: raise_(GeneratorExit("odd")), "GeneratorExit", True),
    "group": (lambda: raise_(ExceptionGroup("several", [ValueError(1), KeyError("k")])), "ExceptionGroup", True),
    "stop iteration": (lambda: next(iter([])), "RuntimeError", True),
    "cancelled": (lambda: raise_(asyncio.CancelledError()), "CancelledError", False),
    "cancels itself": (cancel_itself, "CancelledError", False),
    "unserialisable": (object, "UnstorableValue", True),
}
"""What a task does, the error that is reported, and whether a plain function may do it."""


@pytest.mark.parametrize(
    ("kind", "plain"),
    [(kind, plain) for kind in ODD_ENDS for plain in (False, True) if ODD_ENDS[kind][2] or not plain],
)
async def test_any_exception_or_invalid_result_is_a_failed_attempt_and_the_worker_survives(
    app: JetJobs, truth: Truth, kind: str, plain: bool
) -> None:
    end, shown, _ = ODD_ENDS[kind]

    @app.task(retry=ONCE)
    def odd_plain() -> Any:
        return end()

    @app.task(retry=ONCE)
    async def odd() -> Any:
        found = end()
        return await found if asyncio.iscoroutine(found) else found

    @app.task
    async def fine() -> str:
        return "fine"

    async with provisioned(app):
        bad = await (odd_plain if plain else odd).enqueue()
        async with running(app.worker(slots=1)):
            with pytest.raises(JobFailed) as caught:
                await bad.result(SOON)
            assert await (await fine.enqueue()).result(SOON) == "fine"
        assert caught.value.reason == ("permanent" if kind == "unserialisable" else "exhausted")
        # A GeneratorExit from a thread would close the coroutine that awaits it, so another error reports it.
        shown = "RuntimeError" if plain and kind == "generator exit" else shown
        assert caught.value.error_type.rpartition(".")[2] == shown
        assert set(await truth.dead()) == {bad.id}
        await truth.until_empty()


async def test_a_task_over_its_timeout_is_stopped_and_fails(app: JetJobs, truth: Truth, probe: Probe) -> None:
    cleaned: list[str] = []

    @app.task(timeout=timedelta(milliseconds=200), retry=ONCE)
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append("async")

    let_go = threading.Event()

    @app.task(timeout=timedelta(milliseconds=200), retry=ONCE)
    def stuck() -> None:
        let_go.wait(30)

    async with provisioned(app):
        handles = [await slow.enqueue(), await stuck.enqueue()]
        async with running(app.worker()):
            for handle in handles:
                with pytest.raises(JobFailed) as caught:
                    await handle.result(SOON)
                assert caught.value.error_type.endswith(JobTimeout.__name__)
        let_go.set()
        assert cleaned == ["async"]
        assert set(await truth.dead()) == {handle.id for handle in handles}


async def test_a_failing_job_is_retried_from_lane_retry_with_its_history_and_then_dead_lettered(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    attempts: list[int] = []

    @app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(seconds=2), backoff="fixed", jitter=False))
    async def fragile(n: int) -> None:
        attempts.append(current_job().attempt)
        raise ValueError(f"attempt {current_job().attempt}")

    async with provisioned(app):
        handle = await fragile.options(headers={"X-Tenant": "acme"}, priority="high").enqueue(1)
        async with running(app.worker()):
            await probe.finished(1, "retried")

            async def waits() -> bool:
                return await truth.jobs() == [f"jobs.work.default.retry.fragile.-.{handle.id}"]

            await eventually(waits)
            assert (await handle.status()).state is JobState.RETRYING
            await truth.until_idle("high")  # backoff holds no slot
            with pytest.raises(JobFailed, match="attempt 3") as caught:
                await handle.result(timedelta(seconds=30))
        assert attempts == [1, 2, 3]
        assert "fragile" in caught.value.traceback
        letter = (await truth.dead())[handle.id]
        assert letter["headers"]["X-Tenant"] == "acme"
        assert letter["headers"]["Jetjobs-Run"] == handle.run
        history = json.loads(letter["headers"]["Jetjobs-Errors"])
        assert [(e["attempt"], e["text"]) for e in history] == [(n, f"attempt {n}") for n in (1, 2, 3)]
        assert letter["body"] == b'{"n":1}'
        assert not [name for name in letter["headers"] if name.startswith("Nats-Schedule")]
        await truth.until_empty()
        assert (await handle.status()).state is JobState.DEAD


async def test_a_job_past_its_deadline_is_dead_lettered_unrun(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def late() -> None: ...

    async with provisioned(app):
        handle = await late.options(deadline=datetime.now(UTC) - timedelta(seconds=1)).enqueue()
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        assert (await truth.dead())[handle.id]["reason"] == "expired"
        assert not probe.of(JobStarted)


# Signals and classification


async def test_a_task_that_snoozes_five_times_within_the_duplicate_window_still_runs(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    calls: list[tuple[int, int]] = []

    @app.task
    async def patient() -> str:
        calls.append((current_job().attempt, current_job().delivery))
        if len(calls) <= 5:
            raise Snooze(timedelta(milliseconds=50))
        return "at last"

    async with provisioned(app):
        handle = await patient.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == "at last"
        assert calls == [(1, 1)] * 6  # no attempt used up, no delivery counted
        assert len(probe.of(JobFinished, lambda e: e.outcome == "snoozed")) == 5
        await truth.until_empty()


async def test_the_classification_of_an_error_by_task_or_app_decides_the_outcome(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    class Busy(Exception): ...

    class Gone(Exception): ...

    @app.classify(Busy, Gone)
    def judge(error: Exception) -> Verdict:
        return Verdict(True, 0.05) if isinstance(error, Busy) else PERMANENT

    long = RetryPolicy(base=timedelta(hours=1), jitter=False)

    @app.task(retry=long)
    async def work(kind: str) -> str:
        if current_job().attempt > 1:
            return "second"
        if kind == "retry":
            raise Retry(timedelta(milliseconds=50))
        if kind == "reject":
            raise Reject("never mind")
        raise {"busy": Busy, "gone": Gone, "other": ValueError}[kind]("x")

    async with provisioned(app):
        handles = {kind: await work.enqueue(kind) for kind in ("retry", "reject", "busy", "gone", "other")}
        own = work.options(retry=RetryPolicy(base=timedelta(milliseconds=50), jitter=False))
        handles["own policy"] = await own.enqueue("other")
        async with running(app.worker()):
            for kind in ("retry", "busy", "own policy"):
                assert await handles[kind].result(SOON) == "second"
            for kind in ("reject", "gone"):
                with pytest.raises(JobFailed) as caught:
                    await handles[kind].result(SOON)
                assert caught.value.reason == "permanent"
            assert (await handles["other"].status()).state is JobState.RETRYING  # in an hour, by the task's policy
        assert (await truth.dead())[handles["reject"].id]["text"] == "never mind"


# Regressions


async def test_a_move_is_made_even_if_its_message_id_was_used_before(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=50)))
    async def work(n: int) -> int:
        if n == 7 and current_job().attempt == 1:
            raise RuntimeError("once")
        return n

    async with provisioned(app):
        handle = await work.enqueue(7)
        forged = {"Nats-Msg-Id": f"{handle.id}.{handle.run}.1"}
        await truth.js.publish("jobs.work.default.normal.work", b'{"n": 1}', headers=forged)
        async with running(app.worker()):
            assert await handle.result(SOON) == 7


@pytest.mark.settings(queues={"lease": "1s", "max_crashes": 1})
async def test_a_job_whose_outcome_cannot_be_stored_is_held_and_not_counted_as_a_crash(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        return "kept"

    async with provisioned(app):
        await truth.js.delete_stream("KV_jobs-done-default")
        handle = await work.enqueue()
        worker = app.worker()
        async with running(worker):
            await probe.wait(SettleFailed)
            await asyncio.sleep(3)  # three leases
            assert not worker.ready
            await app.provision()
            assert await handle.result(SOON) == "kept"
        assert len(probe.of(JobStarted)) == len(probe.of(SettleFailed)) == 1
        assert await truth.dead() == {}
