"""Edits of schedules while leaders compete, die or lag: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.admin import MoveOutcome
from jetjobs.errors import BrokerError, ScheduleConflict
from jetjobs.jetstream.schedules.store import ScheduleStore
from jetjobs.jetstream.schedules.ticks import Ticks
from jetjobs.model.schedule.schedule import time_token
from jetjobs.worker.scheduling.planner import Planner
from tests.conftest import MakeApp
from tests.support.probe import eventually, wait_until
from tests.support.schedule_edits import QUEUES, app_of, edit, every_time_once, pause, planned_past, put
from tests.support.schedules import HOUR, SECOND, aligned, now_of, placed, planning, ready
from tests.support.server import Truth
from tests.support.workers import running

SELDOM = timedelta(days=3000)

IS_OLD = contextvars.ContextVar("IS_OLD", default=False)
"""In the tasks of a leader that has an old view."""

Edit = Callable[[JetJobs], Awaitable[object]]

pytestmark = pytest.mark.timeout(150)


async def test_delete_and_put_again_with_no_leader_between(queues_app: JetJobs, truth: Truth) -> None:
    await put(queues_app)
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
    await queues_app.schedules.delete("s")
    await asyncio.sleep(1)
    since = await put(queues_app, args={"n": 2})
    async with planning(queues_app):
        await eventually(lambda: aligned(queues_app, "s"), 30)
    await every_time_once(truth, since)


async def test_edits_of_all_kinds_within_seconds(queues_app: JetJobs, truth: Truth) -> None:
    since = await put(queues_app)
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 20), 30)
        for number in range(25):
            await put(queues_app, args={"n": number}, queue=random.choice(QUEUES))
            await asyncio.sleep(random.choice((0.0, 0.1, 0.4)))
        until = await now_of(queues_app) + 5 * SECOND
        await eventually(lambda: planned_past(queues_app, truth, until), 30)
        await eventually(lambda: aligned(queues_app, "s"), 30)
    await every_time_once(truth, since)


@pytest.mark.parametrize("before_ms", [(10,), (60,), (900, 300, 20)])
async def test_edits_right_before_a_slot(queues_app: JetJobs, truth: Truth, before_ms: tuple[int, ...]) -> None:
    since = await put(queues_app, every=2 * SECOND)
    schedule = (await queues_app.schedules.get("s")).schedule
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 20), 30)
        for _ in range(3):
            scheduled_time = schedule.after(await now_of(queues_app) + SECOND)
            assert scheduled_time is not None
            for wait_ms in before_ms:
                moment = scheduled_time - timedelta(milliseconds=wait_ms)
                await asyncio.sleep(max(0.0, (moment - await now_of(queues_app)).total_seconds()))
                await put(queues_app, every=2 * SECOND)
        until = await now_of(queues_app) + 10 * SECOND
        await eventually(lambda: planned_past(queues_app, truth, until), 30)
    await every_time_once(truth, since, 2 * SECOND)


@pytest.mark.patient
async def test_two_editors_and_two_leaders_and_three_queues(make_app: MakeApp, truth: Truth) -> None:
    one, two = app_of(make_app, "one"), app_of(make_app, "two")
    random.seed(5)
    async with one, two:
        await one.provision(QUEUES)
        since = await put(one)
        async with planning(one, two):
            await eventually(lambda: placed(truth, 50), 30)

            async def move(app: JetJobs) -> None:
                for _ in range(12):
                    with contextlib.suppress(ScheduleConflict):
                        await put(app, queue=random.choice(QUEUES))
                    await asyncio.sleep(random.uniform(0.0, 0.7))

            await asyncio.gather(move(one), move(two))
            until = await now_of(one) + 10 * SECOND
            await eventually(lambda: planned_past(one, truth, until), 30)
            await eventually(lambda: aligned(one, "s"), 30)
        await every_time_once(truth, since)


async def move(app: JetJobs) -> None:
    await put(app, queue="b")


async def pause_and_resume(app: JetJobs) -> None:
    await app.schedules.pause("s")
    await eventually(lambda: aligned(app, "s"), 40)
    await app.schedules.resume("s")


@pytest.mark.parametrize("change", [edit, move, pause_and_resume])
@pytest.mark.parametrize(("batch", "stored"), [(1, False), (1, True), (2, False), (2, True)])
async def test_a_leader_that_dies_before_or_after_any_batch_of_a_change(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, change: Edit, batch: int, stored: bool
) -> None:
    """The next one goes on, a moment later. Of a move the old queue is ended then, and the new one not begun."""
    since = await put(queues_app)
    original, count = Ticks.store, 0
    died = asyncio.Event()

    async def dying(self: Ticks, *args: Any) -> Any:
        nonlocal count
        count += 1
        if count == batch and not stored:
            died.set()
        answer = await original(self, *args) if not died.is_set() else None
        if count == batch:
            died.set()
            await asyncio.Event().wait()  # until it is killed
        return answer

    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
        monkeypatch.setattr(Ticks, "store", dying)
        changing = asyncio.ensure_future(change(queues_app))
        await died.wait()
    await asyncio.sleep(1)
    monkeypatch.setattr(Ticks, "store", original)
    async with planning(queues_app):
        await changing
        until = await now_of(queues_app) + 30 * SECOND
        await eventually(lambda: aligned(queues_app, "s"), 30)
        await eventually(lambda: planned_past(queues_app, truth, until), 30)
    if change is pause_and_resume:
        since = (await queues_app.schedules.get("s")).schedule.since + 2 * SECOND  # those may belong to the pause
    await every_time_once(truth, since)


@pytest.mark.patient
@pytest.mark.parametrize("change", [edit, move, pause])
@pytest.mark.parametrize("where", ["Ticks.marks_of", "ScheduleStore.get", "Ticks.waiting", "Ticks.store"])
async def test_a_leader_with_an_old_view_changes_nothing(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, change: Edit, where: str
) -> None:
    """It stands still for some seconds in the middle of an edit; by then another leads, and has made one more."""
    since = await put(queues_app)
    kind, name = where.split(".")
    owner = {"ScheduleStore": ScheduleStore, "Ticks": Ticks}[kind]
    original, still, stands = getattr(owner, name), False, asyncio.Event()

    async def slow(self: Any, *args: Any) -> Any:
        nonlocal still
        answer = await original(self, *args) if name != "store" else None
        if still and IS_OLD.get():
            still = False
            stands.set()
            await asyncio.sleep(5)
        return answer if name != "store" else await original(self, *args)

    async def plan() -> None:
        IS_OLD.set(True)
        await Planner(queues_app.jetstream, lambda: 1).run()

    old = asyncio.create_task(plan())
    await eventually(lambda: placed(truth, 50), 30)
    monkeypatch.setattr(owner, name, slow)
    still = True
    await put(queues_app, args={"n": 1})
    await stands.wait()
    async with planning(queues_app):
        await eventually(lambda: aligned(queues_app, "s"), 30)
        await change(queues_app)
        await eventually(lambda: aligned(queues_app, "s"), 30)
        await asyncio.sleep(5)
        off = await now_of(queues_app)
        await asyncio.sleep(1)
    old.cancel()
    await asyncio.gather(old, return_exceptions=True)
    if change is pause:
        assert not await planned_past(queues_app, truth, off)
    await every_time_once(truth, since)


async def test_nothing_is_placed_for_a_schedule_that_cannot_be_checked(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failed = Ticks.waiting, 0

    async def failing(self: Ticks, queue: str, name: str) -> Any:
        nonlocal failed
        failed += name == "s"
        if name == "s":
            raise BrokerError("not now")
        return await original(self, queue, name)

    monkeypatch.setattr("jetjobs.worker.scheduling.planner.RETRY", timedelta(seconds=0.3))
    monkeypatch.setattr(Ticks, "waiting", failing)
    since = await put(queues_app)
    await queues_app.schedules.put("other", "work", every=SELDOM)
    async with planning(queues_app):
        await eventually(lambda: aligned(queues_app, "other"), 30)
        await wait_until(lambda: failed >= 3, 30)
        assert await truth.jobs() == []
        monkeypatch.setattr(Ticks, "waiting", original)
        await eventually(lambda: aligned(queues_app, "s"), 30)
    await every_time_once(truth, since)


async def test_a_clock_that_is_behind_doubles_nothing(queues_app: JetJobs, truth: Truth) -> None:
    since = await put(queues_app)
    async with planning(queues_app):
        await eventually(lambda: ready(truth, 2), 30)
        clock = queues_app.jetstream.server_clock
        assert clock._offset is not None
        clock._offset -= 10.0
        await put(queues_app, args={"n": 2})
        await eventually(lambda: aligned(queues_app, "s"), 30)
    await every_time_once(truth, since)


async def test_a_moved_tick_that_has_not_begun_keeps_no_other_from_running(
    queues_app: JetJobs, truth: Truth
) -> None:
    await put(queues_app, overlap="skip")
    async with planning(queues_app):
        await eventually(lambda: placed(truth, 50), 30)
    soon = time_token(await now_of(queues_app) + 4 * SECOND)
    subject = next(s for s in await truth.jobs(lane="later") if s.endswith(soon))
    answer = await queues_app.jobs.reschedule("-".join(subject.split(".")[5:7]), await now_of(queues_app) + HOUR)
    assert answer.outcome is MoveOutcome.MOVED

    async def ran_after() -> bool:
        done = await truth.done()
        return any(job_id.rsplit("-", 1)[1] > soon for job_id, r in done.items() if r["state"] == "succeeded")

    async with running(queues_app.worker()):
        await eventually(ran_after, 30)
