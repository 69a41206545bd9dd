"""Edits, pauses, moves and deletions of schedules: one write each, which the leader applies to the queues."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin import MoveOutcome
from jetjobs.errors import ScheduleNotFound
from jetjobs.model.schedule.plan import Mark, Plan, Step, Tick
from jetjobs.model.schedule.schedule import time_of_token, time_token
from tests.support.probe import Probe, eventually
from tests.support.schedule_edits import every_time_once, pause, put
from tests.support.schedules import (
    HOUR,
    MINUTE,
    SECOND,
    aligned,
    now_of,
    placed,
    planning,
    ready,
    set_back,
    ticks_in,
    times_of,
)
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SELDOM = timedelta(days=3000)

Edit = Callable[[JetJobs], Awaitable[object]]

pytestmark = pytest.mark.timeout(150)


async def test_a_put_without_a_leader_only_writes_the_definition(
    queues_app: JetJobs, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    since = await put(queues_app)
    assert await truth.jobs() == []
    assert not await queues_app.schedules.has_leader()
    info = await queues_app.schedules.get("s")
    assert (info.revision, info.planned_by) == (1, None)
    async with planning(queues_app):
        await eventually(lambda: aligned(queues_app, "s"), 30)
    await put(queues_app, args={"n": 2})
    info = await queues_app.schedules.get("s")
    assert (info.revision, info.planned_by) == (2, 1)
    async with running(queues_app.worker()):
        await eventually(queues_app.schedules.has_leader, 30)
        await eventually(lambda: aligned(queues_app, "s"), 30)
    assert (await queues_app.schedules.get("s")).schedule.since == since


async def test_a_pause_removes_placed_ticks_and_a_resume_continues_from_then_on(
    queues_app: JetJobs, truth: Truth
) -> None:
    await put(queues_app)
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
        paused = await queues_app.schedules.pause("s")
        assert (paused.state, paused.next) == ("paused", None)
        await eventually(lambda: aligned(queues_app, "s"), 10)
        left = times_of(await ticks_in(truth))
        seen = await now_of(queues_app)
        assert max(left) <= time_token(seen + 2 * SECOND)
        assert (await queues_app.schedules.pause("s")).revision == paused.revision  # it was paused already
        await asyncio.sleep(3)
        since = (await queues_app.schedules.resume("s")).schedule.since
        await eventually(lambda: placed(truth, 50), 30)
    assert times_of(await ticks_in(truth))[: len(left)] == left
    await every_time_once(truth, since)


async def test_an_hour_of_pause_is_not_caught_up(queues_app: JetJobs, truth: Truth) -> None:
    await put(queues_app, misfire="all", paused=True)
    await set_back(queues_app, truth, "s", await now_of(queues_app) - HOUR, paused=True)
    since = (await queues_app.schedules.resume("s")).schedule.since
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
    assert (await queues_app.schedules.get("s")).missed == 0
    assert min(times_of(await ticks_in(truth))) > time_token(since)
    await every_time_once(truth, since)


async def test_an_edit_takes_effect_two_seconds_later(queues_app: JetJobs, truth: Truth) -> None:
    await put(queues_app, every=3 * SECOND, args={"n": 1})
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 15), 30)
        since = await put(queues_app, every=5 * SECOND, args={"n": 2})
        await eventually(lambda: aligned(queues_app, "s"), 10)
        cut = time_token(await now_of(queues_app) + 2 * SECOND)
    found = [subject for subject in await ticks_in(truth) if subject.rsplit(".", 1)[1] > time_token(since)]
    for subject in found:
        message = await truth.js.get_last_msg("jobs-work-default", subject)
        new = json.loads(message.data or b"") == {"n": 2}
        assert new or subject.rsplit(".", 1)[1] <= cut
    later = [time_of_token(uid) for uid in times_of(found) if uid > cut]
    assert {b - a for a, b in itertools.pairwise(later) if a and b} == {5 * SECOND}


async def test_an_edit_does_not_change_ticks_that_wait_for_their_jitter(queues_app: JetJobs, truth: Truth) -> None:
    since = await put(queues_app, jitter=30 * SECOND, args={"n": 1})
    async with planning(queues_app):
        await eventually(lambda: ready(truth, 3), 40)
        before = time_token(await now_of(queues_app))
        await put(queues_app, jitter=30 * SECOND, args={"n": 2})
        await eventually(lambda: aligned(queues_app, "s"), 10)
        waits = [s for s in await truth.jobs(lane="later") if s.rsplit(".", 1)[1] <= before]
        assert waits
        for subject in waits:
            message = await truth.js.get_last_msg("jobs-work-default", subject)
            assert json.loads(message.data or b"") == {"n": 1}
    await every_time_once(truth, since)


async def test_delete_removes_placed_ticks_but_no_tick_that_is_retried(
    app: JetJobs, truth: Truth, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.5)
    monkeypatch.setattr("jetjobs.worker.scheduling.reconciler.KEEP_MARK", timedelta(0))

    @app.task(retry=RetryPolicy(base=HOUR, cap=HOUR))
    async def fails() -> None:
        raise RuntimeError("no")

    async with provisioned(app):
        await app.schedules.put("s", "fails", every=2 * SECOND)
        await app.schedules.put("stays", "fails", every=SELDOM)
        async with running(app.worker(schedules=False)), planning(app):
            await probe.finished(2, "retried", 30)
            await app.schedules.delete("s")
            with pytest.raises(ScheduleNotFound):
                await app.schedules.get("s")

            async def mark_is_gone() -> bool:
                marks = await truth.subjects("jobs-work-default", "jobs.work.default.mark.schedule.*")
                return {name for name in marks if "._" not in name} == {"jobs.work.default.mark.schedule.stays"}

            await eventually(mark_is_gone, 30)
            assert await truth.jobs(lane="later") == []
            assert len(await truth.jobs(lane="retry")) >= 2


async def test_a_schedule_that_moves_leaves_nothing_behind(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.5)
    monkeypatch.setattr("jetjobs.worker.scheduling.reconciler.KEEP_MARK", timedelta(0))
    since = await put(queues_app)
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
        await put(queues_app, queue="b")
        await eventually(lambda: placed(truth, 50, "b"), 30)

        async def left() -> bool:
            marks = await truth.subjects("jobs-work-default", "jobs.work.default.mark.schedule.s")
            return not marks and not await truth.jobs(lane="later")

        await eventually(left, 30)
    await every_time_once(truth, since)


async def delete(app: JetJobs) -> None:
    await app.schedules.delete("s")


@pytest.mark.parametrize("off", [pause, delete])
async def test_pause_and_delete_remove_ticks_in_a_queue_that_the_schedule_has_left(
    queues_app: JetJobs, truth: Truth, off: Edit
) -> None:
    await put(queues_app, jitter=HOUR)
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
        await put(queues_app, jitter=HOUR, queue="b")
        await eventually(lambda: placed(truth, 50, "b"), 30)
        assert await truth.jobs(lane="later"), "the definition before keeps the scheduled times of two seconds"
        first, *_, last = (s.split(".") for s in await truth.jobs("b", "later"))
        by_time = await queues_app.jobs.reschedule(f"{last[5]}-{last[6]}", await now_of(queues_app) + 2 * HOUR)
        by_lane = await queues_app.jobs.set_priority(f"{first[5]}-{first[6]}", "high")
        assert (by_time.outcome, by_lane.outcome) == (MoveOutcome.MOVED, MoveOutcome.MOVED)
        await off(queues_app)

        async def taken_back() -> bool:
            return not await truth.jobs(lane="later") and not await truth.jobs("b", "later")

        await eventually(taken_back, 10)


async def test_more_ticks_than_fit_one_batch_are_removed(queues_app: JetJobs, truth: Truth) -> None:
    await put(queues_app, jitter=HOUR)
    schedule = (await queues_app.schedules.get("s")).schedule
    now = (await now_of(queues_app)).replace(microsecond=0)
    ticks = tuple(Tick(now - i * SECOND, now + HOUR) for i in range(950))
    one = Step("s", Mark(1, now), Plan(ticks), schedule=schedule)
    assert await queues_app.jetstream.ticks.store("default", [one], now)
    await queues_app.schedules.pause("s")
    async with planning(queues_app):
        await eventually(lambda: aligned(queues_app, "s"), 30)
    assert await truth.jobs() == []


async def test_the_last_scheduled_time_is_kept_through_edits(queues_app: JetJobs, truth: Truth) -> None:
    await put(queues_app)
    async with planning(queues_app):
        await eventually(lambda: ready(truth, 2), 30)
        for edit in (
            put(queues_app, every=HOUR),
            queues_app.schedules.pause("s"),
            queues_app.schedules.resume("s"),
        ):
            await edit
            await eventually(lambda: aligned(queues_app, "s"), 10)
            last = (await queues_app.schedules.get("s")).last
            assert last is not None
            assert last >= await now_of(queues_app) - MINUTE
