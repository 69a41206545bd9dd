"""Renamed tasks: jobs that were enqueued under the old name run with the new function, wherever they wait."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, JobState, RetryPolicy, Task
from jetjobs.errors import JobFailed
from jetjobs.model.events import JobFinished
from jetjobs.model.views.dead_letter import ReplayOutcome
from tests.conftest import MakeApp
from tests.support.letters import bury, letter_of
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=20)


@pytest.fixture
def old(make_app: MakeApp) -> Task[..., Any]:
    """The task under its old name, in an app that has not been deployed again. Its first attempt fails."""
    app = make_app()
    policy = RetryPolicy(base=timedelta(seconds=1), backoff="fixed", jitter=False)

    @app.task(retry=policy)
    async def shrink(n: int, failures: int = 0) -> int:
        raise RuntimeError("the old code")

    return shrink


@pytest.fixture
def new(app: JetJobs) -> Task[..., Any]:
    @app.task(aliases=["shrink"], retry=RetryPolicy(max_attempts=1))
    async def resize(n: int, failures: int = 0) -> int:
        if failures:
            raise RuntimeError("the new code")
        return 10 * n

    return resize


def app_of(task: Task[..., Any]) -> JetJobs:
    owner = getattr(task.send, "__self__")  # noqa: B009 - typed as a callable
    assert isinstance(owner, JetJobs)
    return owner


async def test_jobs_of_the_old_name_run_from_every_lane_and_keep_their_place(
    app: JetJobs, old: Task[..., Any], new: Task[..., Any], truth: Truth, probe: Probe
) -> None:
    before = app_of(old)
    async with provisioned(before), app:
        retried = await old.enqueue(1, failures=1)
        async with running(before.worker()):
            await eventually(retried.status, where=lambda found: found.state is JobState.RETRYING)
        waiting = await old.options(delay=timedelta(seconds=1)).enqueue(2)
        keyed = await old.options(key="k").enqueue(3)
        await truth.nc.publish("jobs.work.default.returned.shrink.-.back", b'{"n": 4}')
        renamed = await new.enqueue(5)
        assert renamed.task == "resize"
        async with running(app.worker()):
            handles = [waiting, keyed, await app.job("back"), renamed]
            assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == [20, 30, 40, 50]
            # It carries its arguments, and the policy of the function that runs it: one attempt.
            with pytest.raises(JobFailed, match="the new code"):
                await retried.result(SOON)
            assert (await app.job(keyed.id)).task == "shrink"
        done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
        assert {subject.split(".", 2)[2].split(".")[0] for subject in done} == {"shrink", "resize"}
        (letter,) = (await truth.dead()).values()
        assert letter["subject"] == f"jobs.dead.default.shrink.{retried.id}"
        assert {event.task for event in await probe.finished(5)} == {"shrink", "resize"}
        await truth.until_empty()


async def test_a_dead_letter_of_the_old_name_is_replayed_and_its_handle_finds_the_result(
    app: JetJobs, new: Task[..., Any], truth: Truth
) -> None:
    async with provisioned(app):
        (dead,) = await bury(app, "shrink", [b'{"n": 6}'])
        assert (await app.dead.replay(await letter_of(app, dead))).outcome is ReplayOutcome.REPLAYED
        handle = await app.job(dead)
        assert handle.task == "shrink"
        async with running(app.worker()):
            assert await handle.result(SOON) == 60
        assert await truth.dead() == {}


async def test_a_schedule_of_the_old_name_continues(
    app: JetJobs, old: Task[..., Any], new: Task[..., Any], truth: Truth
) -> None:
    before = app_of(old)
    async with provisioned(before), app:
        await before.schedules.put("hourly", old, every=timedelta(hours=1), args={"n": 7})
        assert [finding.check for finding in await app.doctor(only=["schedules"]) if finding.level == "warn"] == []
        async with running(app.worker()):
            assert await (await app.schedules.run_now("hourly")).result(SOON) == 70
            put = await app.schedules.put("daily", "shrink", every=timedelta(days=1), args={"n": 8})
            assert put.schedule.task == "resize"


async def test_workers_without_the_alias_park_jobs_of_the_old_name_for_those_that_have_it(
    app: JetJobs, old: Task[..., Any], new: Task[..., Any], make_app: MakeApp, truth: Truth
) -> None:
    stranger, probe = make_app(queues={"unknown_task_grace": 0}), Probe()
    stranger.observe(probe)

    @stranger.task
    async def other() -> None: ...

    async with provisioned(app), stranger, app_of(old), running(app.worker()):
        (record,) = await eventually(app.workers.list)
        assert record.tasks["shrink"] == record.tasks["resize"]
        async with running(stranger.worker()):
            handles = [await task.enqueue(n) for n in range(20) for task in (old, new)]
            assert len(await asyncio.gather(*(handle.result(SOON) for handle in handles))) == 40
        assert {event.outcome for event in probe.of(JobFinished)} == {"parked"}
        assert await truth.dead() == {}
