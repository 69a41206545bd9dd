"""Ticks with overlap="skip" are skipped only before they have started."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, Snooze, current_job
from jetjobs.jetstream.schedules.ticks import tick_job
from jetjobs.model.events import JobStarted
from jetjobs.model.schedule.plan import Mark, Plan, Step, Tick
from tests.conftest import MakeApp
from tests.support.probe import Probe
from tests.support.schedules import HOUR, SECOND, now_of, planning
from tests.support.server import Truth
from tests.support.workers import provisioned, running

pytestmark = pytest.mark.timeout(90)


async def place_two(app: JetJobs, task: str, second_is_due: timedelta) -> tuple[str, str]:
    """Two ticks in an order changed by jitter: the first waits for an hour. Returns their ids."""
    schedule = (await app.schedules.put("s", task, every=SECOND, overlap="skip", jitter=HOUR)).schedule
    now = (await app.jetstream.server_clock.now()).replace(microsecond=0)
    due = (Tick(now, now + HOUR), Tick(now + SECOND, now + second_is_due))
    one = Step("s", Mark(1, now), Plan(due), schedule=schedule)
    assert await app.jetstream.ticks.store("default", [one], now)
    first, second = (tick_job(schedule, tick, now.timestamp()).id for tick in due)
    return first, second


async def test_a_tick_that_has_snoozed_is_not_skipped(app: JetJobs, probe: Probe) -> None:
    first = second = ""
    runs: Counter[str] = Counter()
    earlier_runs, later_is_back = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        job = current_job().id
        runs[job] += 1
        if job == first:
            earlier_runs.set()
            await later_is_back.wait()
        elif runs[job] == 1:
            await earlier_runs.wait()
            raise Snooze(timedelta(milliseconds=100))
        else:
            later_is_back.set()

    async with provisioned(app):
        first, second = await place_two(app, "work", -SECOND)
        async with running(app.worker(schedules=False)):
            await probe.wait(JobStarted, 1, lambda event: event.job_id == second)
            await app.jobs.run_now(first)
            ended = await probe.finished(3)
            later_is_back.set()
    assert [event.outcome for event in ended] == ["snoozed", "succeeded", "succeeded"]
    assert runs == {first: 1, second: 2}


async def test_a_tick_that_was_released_at_a_stop_is_not_skipped(make_app: MakeApp, truth: Truth) -> None:
    app, probe = make_app(worker={"stop_timeout": "200ms"}), Probe()
    app.observe(probe)
    first = second = ""
    runs: Counter[str] = Counter()
    later_is_back = asyncio.Event()

    @app.task
    async def work() -> None:
        job = current_job().id
        runs[job] += 1
        if job == second and runs[job] == 2:
            later_is_back.set()
        await later_is_back.wait()

    async with provisioned(app):
        first, second = await place_two(app, "work", -SECOND)
        async with running(app.worker(schedules=False)):
            await probe.wait(JobStarted, 1, lambda event: event.job_id == second)
            await app.jobs.run_now(first)
            await probe.wait(JobStarted, 1, lambda event: event.job_id == first)
        assert len(await truth.jobs(lane="returned")) == 2
        async with running(app.worker(schedules=False)):
            ended = await probe.finished(4)
            later_is_back.set()
    assert [event.outcome for event in ended] == ["released", "released", "succeeded", "succeeded"]
    assert runs == {first: 2, second: 2}


async def test_a_tick_that_was_only_moved_is_skipped(app: JetJobs, probe: Probe) -> None:
    first = second = ""
    later_is_gone = asyncio.Event()

    @app.task
    async def work() -> None:
        assert current_job().id == first
        await later_is_gone.wait()

    async with provisioned(app):
        first, second = await place_two(app, "work", HOUR)
        async with running(app.worker(schedules=False)):
            await app.jobs.run_now(first)
            await probe.wait(JobStarted)
            await app.jobs.run_now(second)
            [gone] = await probe.finished(1)
            later_is_gone.set()
            await probe.finished(1, "succeeded")
    assert (gone.job_id, gone.outcome) == (second, "cancelled")


# With and without overlap


async def test_with_overlap_skip_a_tick_is_skipped_while_an_earlier_one_is_alive(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    release = asyncio.Event()
    ran: list[str] = []

    @app.task
    async def slow() -> None:
        ran.append(current_job().id)
        await release.wait()

    async with provisioned(app):
        await app.schedules.put("s", slow, every=SECOND, overlap="skip")
        async with running(app.worker(schedules=False)), planning(app):
            cancelled = await probe.finished(2, "cancelled", 30)
            assert len(ran) == 1
            release.set()
            await probe.finished(2, "succeeded", 30)
            await app.schedules.pause("s")
        done = await truth.done()
        record = done[cancelled[0].job_id]
        assert record["state"] == "cancelled"
        assert "earlier tick" in json.dumps(record)
        assert cancelled[0].job_id > ran[0]


async def test_with_overlap_skip_an_earlier_tick_that_waits_for_its_jitter_is_not_alive(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        schedule = (await app.schedules.put("s", work, every=SECOND, overlap="skip", jitter=HOUR)).schedule
        now = (await now_of(app)).replace(microsecond=0)
        ticks = app.jetstream.ticks
        due = (Tick(now, now + HOUR), Tick(now + SECOND, now - SECOND))
        assert await ticks.store("default", [Step("s", Mark(1, now), Plan(due), schedule=schedule)], now)
        job = tick_job(schedule, due[1], now.timestamp())
        assert not await ticks.earlier(job)
        # Once it has fired it is alive, even if its task has changed.
        [later] = await truth.jobs(lane="later")
        message = await truth.js.get_last_msg("jobs-work-default", later)
        await truth.js.publish(later.replace(".later.work.", ".normal.other."), message.data or b"")
        assert await ticks.earlier(job)


async def test_with_overlap_allow_ticks_run_concurrently(app: JetJobs, probe: Probe) -> None:
    running_now = 0
    most = asyncio.Event()

    @app.task
    async def slow() -> None:
        nonlocal running_now
        running_now += 1
        if running_now == 2:
            most.set()
        await most.wait()

    async with provisioned(app):
        await app.schedules.put("s", slow, every=SECOND)
        async with running(app.worker(schedules=False)), planning(app):
            await probe.finished(2, "succeeded", 30)
