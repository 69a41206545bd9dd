"""Progress: shown in the status, published to watchers, throttled, and without cost for jobs that report none."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, JobFailed, JobState, JobStatus, RetryPolicy, current_job
from jetjobs.worker.leases.loop_monitor import TICK_S
from tests.integration import kept_tasks
from tests.support.probe import eventually, wait_until
from tests.support.server import Truth
from tests.support.workers import running

SOON = timedelta(seconds=40)


async def listen(truth: Truth) -> list[tuple[str, dict[str, Any]]]:
    """Every event of the namespace, as it arrives."""
    heard: list[tuple[str, dict[str, Any]]] = []

    async def hear(message: Any) -> None:
        heard.append((message.subject, json.loads(message.data)))

    await truth.nc.subscribe("jobs.events.job.>", cb=hear)
    await truth.nc.flush()
    return heard


@pytest.mark.parametrize(
    ("task", "progress", "message"),
    [
        (kept_tasks.in_loop, 0.25, "on the loop"),
        (kept_tasks.in_thread, 0.5, "in a thread"),
        (kept_tasks.in_child, 0.75, "in a child"),
        (kept_tasks.in_child_loop, 1.0, "on the child's loop"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_the_status_shows_progress_wherever_the_task_runs(
    kept_app: JetJobs, truth: Truth, tmp_path: Path, task: Any, progress: float, message: str
) -> None:
    go_on = tmp_path / "go"
    heard = await listen(truth)
    async with running(kept_app.worker(name="w1")):
        handle = await task.enqueue(str(go_on))

        async def shown() -> JobStatus | None:
            status: JobStatus = await handle.status()
            return status if status.progress == progress else None

        status = await eventually(shown, 40)
        assert (status.state, status.message, status.worker) == (JobState.RUNNING, message, "w1")
        record = json.loads(
            (await truth.js.get_last_msg("KV_jobs-running", f"$KV.jobs-running.{handle.id}")).data or b""
        )
        assert (record["progress"], record["message"], record["attempt"]) == (progress, message, 1)
        assert record["run"] == handle.run
        go_on.touch()
        await handle.result(SOON)
    subjects, events = zip(*heard, strict=True)
    assert set(subjects) == {f"jobs.events.job.progress.default.{handle.task}.{handle.id}"}
    assert events[0].keys() == record.keys()
    assert progress in {event["progress"] for event in events if event["attempt"] == 1}


async def test_a_job_without_progress_shows_none_and_publishes_nothing(opened: JetJobs, truth: Truth) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @opened.task
    async def work() -> None:
        begun.set()
        await go_on.wait()

    await opened.provision()
    heard = await listen(truth)
    async with running(opened.worker()):
        handle = await work.enqueue()

        async def shown() -> JobStatus | None:
            status = await handle.status()
            return status if status.state is JobState.RUNNING else None

        status = await eventually(shown, 30)
        assert (status.progress, status.message) == (None, None)
        record = await truth.js.get_last_msg("KV_jobs-running", f"$KV.jobs-running.{handle.id}")
        assert "progress" not in json.loads(record.data or b"")
        go_on.set()
        await handle.result(SOON)
    await truth.nc.flush()
    assert heard == []


async def test_a_short_job_publishes_its_last_progress_and_writes_no_record(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    async def work() -> None:
        current_job().progress(0.5)
        current_job().progress(1, "all")

    await opened.provision()
    heard = await listen(truth)
    async with running(opened.worker()):
        started = time.monotonic()
        await (await work.enqueue()).result(SOON)
        quick = time.monotonic() - started < TICK_S
        await wait_until(lambda: bool(heard), 30)
    assert [(event["progress"], event["message"]) for _, event in heard] == [(1.0, "all")]
    if quick:  # otherwise it may have run long enough to be shown
        assert (await truth.api("STREAM.INFO.KV_jobs-running"))["state"]["last_seq"] == 0


async def test_progress_is_throttled_and_the_last_one_is_published(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    async def work() -> float:
        job, started = current_job(), time.monotonic()
        while time.monotonic() < started + 1.5:
            for _ in range(100):
                job.progress(0.5, "many")
            await asyncio.sleep(0)
        job.progress(0.99, "last")
        return time.monotonic() - started

    await opened.provision()
    heard = await listen(truth)
    async with running(opened.worker()):
        took = await (await work.enqueue()).result(SOON)
        await wait_until(lambda: bool(heard) and heard[-1][1]["progress"] == 0.99, 30)
    # One per tick, and the last. A tick is never shorter than that.
    assert len(heard) <= took / TICK_S + 2
    records = (await truth.api("STREAM.INFO.KV_jobs-running"))["state"]["last_seq"]
    assert records <= took / TICK_S + 3  # and the one that deletes the record


async def test_an_invalid_progress_fails_the_attempt_with_a_clear_error(opened: JetJobs, truth: Truth) -> None:
    @opened.task(retry=RetryPolicy(max_attempts=1))
    async def work() -> None:
        current_job().progress(40)

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        with pytest.raises(JobFailed, match="progress must be from 0 to 1, not 40") as caught:
            await handle.result(SOON)
    assert caught.value.error_type.endswith("ValueError")
    assert (await truth.dead())[handle.id]["reason"] == "exhausted"


# Following


async def test_following_a_job_yields_each_change_until_it_has_ended(opened: JetJobs) -> None:
    steps: list[asyncio.Event] = [asyncio.Event() for _ in range(3)]

    @opened.task
    async def work() -> None:
        for n, step in enumerate(steps):
            current_job().progress(n / 4, f"step {n}")
            await step.wait()

    await opened.provision()
    handle = await work.enqueue()
    following = handle.follow()
    first = await anext(following)
    seen: list[JobStatus] = []
    async with asyncio.timeout(50), running(opened.worker()):
        async for status in following:
            seen.append(status)
            if status.progress is not None:
                steps[int(status.progress * 4)].set()
    assert first.state is JobState.QUEUED
    reported = [status.progress for status in seen if status.progress is not None]
    assert reported == [0.0, 0.25, 0.5]
    assert seen[-1].state is JobState.SUCCEEDED


async def test_following_an_unknown_job_ends(opened: JetJobs) -> None:
    @opened.task(store_result=False)
    async def work() -> None: ...

    await opened.provision()
    async with asyncio.timeout(50), running(opened.worker()):
        handle = await work.enqueue()
        seen = [status async for status in handle.follow()]
    assert seen[-1].state is None


async def test_a_follower_without_events_still_sees_the_progress(opened: JetJobs) -> None:
    """A user that may not subscribe to events: polling every second replaces them."""
    go_on = asyncio.Event()

    @opened.task
    async def work() -> None:
        current_job().progress(0.5)
        await go_on.wait()

    await opened.provision()
    handle = await work.enqueue()
    nc = opened.jetstream.connection.nc
    listen_to = nc.listen

    async def deaf(subject: str, sink: Any) -> int:
        return await listen_to(subject, (lambda *_: None) if ".events." in subject else sink)

    nc.listen = deaf  # type: ignore[method-assign]
    seen = []
    async with asyncio.timeout(50), running(opened.worker()):
        async for status in handle.follow():
            seen.append(status.progress)
            if status.progress is not None:
                go_on.set()
    assert 0.5 in seen
