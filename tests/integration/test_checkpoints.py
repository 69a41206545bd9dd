"""Checkpoints: kept for the next run of a job and deleted with the job."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, JobFailed, Reject, Snooze, current_job
from jetjobs.errors import BrokerError, CheckpointError, UnstorableValue
from jetjobs.model.events import JobFinished
from tests.integration import kept_tasks
from tests.support.checkpoints import BUCKET, checkpoints, gone
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import running

SOON = timedelta(seconds=40)


# Kept for the next run, wherever the task runs


@pytest.mark.parametrize(
    ("task", "step"),
    [
        (kept_tasks.in_loop, 7),
        (kept_tasks.in_thread, 8),
        (kept_tasks.in_child, 9),
        (kept_tasks.in_child_loop, 10),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_the_next_attempt_gets_the_last_checkpoint(
    kept_app: JetJobs, truth: Truth, tmp_path: Path, task: Any, step: int
) -> None:
    go_on = tmp_path / "go"
    go_on.touch()
    async with running(kept_app.worker()):
        handle = await task.enqueue(str(go_on))
        found = await handle.result(SOON)
        assert (found[0], found[2]) == (step, 2)
        await gone(truth)
    assert await truth.jobs() == []
    assert list(await truth.done()) == [handle.id]


async def test_a_checkpoint_is_on_the_server_when_the_call_returns(opened: JetJobs, truth: Truth) -> None:
    seen: dict[str, Any] = {}

    @opened.task
    async def work() -> None:
        assert await current_job().resume() is None
        await current_job().checkpoint({"step": 3})
        seen.update(await checkpoints(truth))
        message = await truth.js.get_last_msg(f"KV_{BUCKET}", f"$KV.{BUCKET}.{next(iter(seen))}")
        assert (message.headers or {})["Nats-TTL"] == f"{30 * 86400}s"

    await opened.provision()
    async with running(opened.worker(name="w1")):
        handle = await work.enqueue()
        await handle.result(SOON)
        await gone(truth)
    (record,) = seen.values()
    assert list(seen) == [f"{handle.id}.{handle.run}"]
    assert record["value"] == {"step": 3}
    assert (
        record.items()
        >= {
            "id": handle.id,
            "run": handle.run,
            "task": "work",
            "queue": "default",
            "attempt": 1,
            "hop": 0,
            "delivery": 1,
            "worker": "w1",
        }.items()
    )


async def test_a_snoozed_and_a_released_job_keep_their_checkpoint(
    opened: JetJobs, truth: Truth, probe: Probe
) -> None:
    @opened.task
    async def work() -> int:
        step = await current_job().resume(int) or 0
        await current_job().checkpoint(step + 1)
        if step == 0:
            raise Snooze(timedelta(milliseconds=10))
        if step == 1:
            await asyncio.sleep(600)
        return step

    await opened.provision()
    first = opened.worker()
    async with running(first):
        handle = await work.enqueue()

        async def second_run() -> bool:
            return [record["value"] for record in (await checkpoints(truth)).values()] == [2]

        await eventually(second_run, 30)
        first.stop(now=True)
    assert len(probe.of(JobFinished, lambda e: e.outcome == "released")) == 1
    assert len(await checkpoints(truth)) == 1
    async with running(opened.worker()):
        assert await handle.result(SOON) == 2
        await gone(truth)


# Deleted with the job


async def test_a_dead_job_keeps_no_checkpoint_and_a_replay_starts_over(opened: JetJobs, truth: Truth) -> None:
    found: list[Any] = []

    @opened.task
    async def work() -> None:
        found.append(await current_job().resume())
        await current_job().checkpoint(5)
        if len(found) == 1:
            raise Reject("no")

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        with pytest.raises(JobFailed):
            await handle.result(SOON)
        await gone(truth)
        letter = await opened.dead.get(handle.id)
        assert letter is not None
        await opened.dead.replay(letter)
        await eventually(lambda: _two(found), 30)
        await gone(truth)
    assert found == [None, None]
    assert await truth.jobs() == []


async def _two(found: list[Any]) -> bool:
    return len(found) == 2


@pytest.mark.settings(queues={"unknown_task_grace": 0})
async def test_a_job_dead_lettered_without_a_run_leaves_no_checkpoint(
    opened: JetJobs, truth: Truth, probe: Probe
) -> None:
    @opened.task
    async def work() -> None:
        await current_job().checkpoint(5)
        raise Snooze(timedelta(seconds=1))

    await opened.provision()
    async with running(opened.worker()):
        await work.enqueue()
        await probe.finished(1, "snoozed", timeout=30)
    assert len(await checkpoints(truth)) == 1
    del opened.tasks["work"]  # now it is unknown

    @opened.task
    async def other() -> None: ...

    async with running(opened.worker()):
        await probe.finished(1, "dead_lettered", timeout=30)
        await gone(truth)
    assert {letter["reason"] for letter in (await truth.dead()).values()} == {"unknown_task"}


async def test_a_job_without_checkpoints_reads_and_writes_nothing(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    async def work() -> None: ...

    await opened.provision()
    before = (await truth.api(f"STREAM.INFO.KV_{BUCKET}"))["state"]["last_seq"]
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    await truth.nc.subscribe(f"$JS.API.STREAM.*.KV_{BUCKET}", cb=hear)
    await truth.nc.subscribe(f"$JS.API.STREAM.MSG.GET.KV_{BUCKET}", cb=hear)
    await truth.nc.flush()
    async with running(opened.worker()):
        await (await work.enqueue()).result(SOON)
    await truth.nc.flush()
    assert heard == []
    assert (await truth.api(f"STREAM.INFO.KV_{BUCKET}"))["state"]["last_seq"] == before


# Invalid input


async def test_invalid_checkpoints_are_refused_in_the_task(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    async def work() -> None:
        job = current_job()
        for value in ("x" * 65_535, object()):
            with pytest.raises(UnstorableValue):
                await job.checkpoint(value)
        assert await checkpoints(truth) == {}
        await job.checkpoint("x" * 65_534)  # plus two quotes
        with pytest.raises(CheckpointError, match="does not fit"):
            await job.resume(int)
        job.checkpoint_sync(1)

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.options(max_attempts=1).enqueue()
        with pytest.raises(JobFailed, match="does not work here"):
            await handle.result(SOON)
        await gone(truth)


async def test_a_plain_function_may_run_its_own_event_loop(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    def work() -> int | None:
        async def inside() -> int | None:
            await current_job().checkpoint(4)
            return await current_job().resume(int)

        return asyncio.run(inside())

    await opened.provision()
    async with running(opened.worker()):
        assert await (await work.enqueue()).result(SOON) == 4
        await gone(truth)


async def test_a_child_process_gets_the_same_errors(kept_app: JetJobs, truth: Truth) -> None:
    async with running(kept_app.worker()):
        errors = await (await kept_tasks.refused_in_child.enqueue()).result(SOON)
        await gone(truth)
    assert errors[:4] == ["UnstorableValue", "UnstorableValue", "ValueError", "JetJobsError"]
    assert errors[4].startswith("CheckpointError: the checkpoint does not fit State")
    assert errors[5] == "[1, 'a']"


async def test_a_missing_bucket_is_reported(opened: JetJobs, truth: Truth) -> None:
    errors: list[BrokerError] = []

    @opened.task
    async def work() -> None:
        try:
            await current_job().checkpoint(1)
        except BrokerError as error:
            errors.append(error)

    await opened.provision()
    await truth.js.delete_stream(f"KV_{BUCKET}")
    async with running(opened.worker()):
        await (await work.enqueue()).result(SOON)
    assert errors[0].hint == "jetjobs setup apply"
