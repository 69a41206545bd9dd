"""Edits, pauses, moves and deletions of schedules: one write each, and the leader brings the queues in line."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, RetryPolicy
from jetjobs.admin.reschedule import MoveOutcome
from jetjobs.errors import BrokerError, ScheduleConflict, ScheduleNotFound
from jetjobs.jetstream.schedules.store import ScheduleStore
from jetjobs.jetstream.schedules.ticks import Ticks
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.schedule.plan import Mark, Plan, Step, Tick
from jetjobs.model.schedule.schedule import time_of_token, time_token
from jetjobs.worker.scheduling.planner import Planner
from tests.conftest import MakeApp
from tests.integration.test_schedules import (
    HOUR,
    MINUTE,
    SECOND,
    aligned,
    now_of,
    placed,
    planning,
    ready,
    set_back,
    slots_of,
    standing,
)
from tests.support.probe import Probe, background, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

QUEUES = ("default", "b", "c")
SELDOM = timedelta(days=3000)
IS_OLD = contextvars.ContextVar("IS_OLD", default=False)
"""In the tasks of a leader that has an old view."""
Edit = Callable[[JetJobs], Awaitable[object]]

pytestmark = pytest.mark.timeout(150)


def app_of(make_app: MakeApp, name: str = "test") -> JetJobs:
    app = make_app(name)

    @app.task
    async def work(n: int = 0) -> None: ...

    return app


@pytest.fixture
async def opened(make_app: MakeApp) -> AsyncIterator[JetJobs]:
    async with app_of(make_app) as app:
        await app.provision(QUEUES)
        yield app


async def put(app: JetJobs, **options: Any) -> datetime:
    """Put schedule "s" of every second; since when it counts."""
    return (await app.schedules.put("s", "work", **{"every": SECOND, **options})).schedule.since


async def every_slot_once(truth: Truth, since: datetime, every: timedelta = SECOND, queues: Any = QUEUES) -> None:
    """All scheduled times from the first after `since` to the last that is placed, over all queues."""

    async def once() -> list[str] | None:
        found = [subject for queue in queues for subject in await standing(truth, queue)]
        lanes = Counter((s.split(".")[2], s.split(".", 4)[4]) for s in found)
        return None if max(lanes.values()) > 1 else slots_of(found)  # one that is being fired is seen in two lanes

    scheduled_times = [
        scheduled_time for scheduled_time in await eventually(once, 10) if scheduled_time > time_token(since)
    ]
    assert [scheduled_time for scheduled_time, count in Counter(scheduled_times).items() if count > 1] == [], (
        "doubled"
    )
    first = time_of_token(scheduled_times[0])
    assert first is not None
    assert first - since <= every, "the first is missing"
    assert scheduled_times == [time_token(first + i * every) for i in range(len(scheduled_times))], (
        "one is missing"
    )


async def planned_past(app: JetJobs, truth: Truth, moment: datetime) -> bool:
    found = [scheduled_time for queue in QUEUES for scheduled_time in slots_of(await standing(truth, queue))]
    return max(found, default="") > time_token(moment)


# What each of them does


async def test_a_put_without_a_leader_only_writes_the_definition(
    opened: JetJobs, truth: Truth, caplog: pytest.LogCaptureFixture
) -> None:
    since = await put(opened)
    assert await truth.jobs() == []
    assert not await opened.schedules.has_leader()
    info = await opened.schedules.get("s")
    assert (info.revision, info.planned_by) == (1, None)
    async with planning(opened):
        await eventually(lambda: aligned(opened, "s"), 30)
    await put(opened, args={"n": 2})
    info = await opened.schedules.get("s")
    assert (info.revision, info.planned_by) == (2, 1)
    async with running(opened.worker()):
        await eventually(opened.schedules.has_leader, 30)
        await eventually(lambda: aligned(opened, "s"), 30)
    assert (await opened.schedules.get("s")).schedule.since == since


async def test_a_pause_takes_back_what_is_due_and_a_resume_goes_on_from_then(
    opened: JetJobs, truth: Truth
) -> None:
    await put(opened)
    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
        paused = await opened.schedules.pause("s")
        assert (paused.state, paused.next) == ("paused", None)
        await eventually(lambda: aligned(opened, "s"), 10)
        left = slots_of(await standing(truth))
        seen = await now_of(opened)
        assert max(left) <= time_token(seen + 2 * SECOND)
        assert (await opened.schedules.pause("s")).revision == paused.revision  # it was already
        await asyncio.sleep(3)
        since = (await opened.schedules.resume("s")).schedule.since
        await eventually(lambda: placed(truth, 50), 30)
    assert slots_of(await standing(truth))[: len(left)] == left
    await every_slot_once(truth, since)


async def test_an_hour_of_pause_is_not_caught_up(opened: JetJobs, truth: Truth) -> None:
    await put(opened, misfire="all", paused=True)
    await set_back(opened, truth, "s", await now_of(opened) - HOUR, paused=True)
    since = (await opened.schedules.resume("s")).schedule.since
    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
    assert (await opened.schedules.get("s")).missed == 0
    assert min(slots_of(await standing(truth))) > time_token(since)
    await every_slot_once(truth, since)


async def test_an_edit_has_the_new_arguments_and_rule_two_seconds_later(opened: JetJobs, truth: Truth) -> None:
    await put(opened, every=3 * SECOND, args={"n": 1})
    async with planning(opened):
        await eventually(lambda: placed(truth, 15), 30)
        since = await put(opened, every=5 * SECOND, args={"n": 2})
        await eventually(lambda: aligned(opened, "s"), 10)
        cut = time_token(await now_of(opened) + 2 * SECOND)
    found = [subject for subject in await standing(truth) if subject.rsplit(".", 1)[1] > time_token(since)]
    for subject in found:
        message = await truth.js.get_last_msg("jobs-work-default", subject)
        new = json.loads(message.data or b"") == {"n": 2}
        assert new or subject.rsplit(".", 1)[1] <= cut
    later = [time_of_token(uid) for uid in slots_of(found) if uid > cut]
    assert {b - a for a, b in itertools.pairwise(later) if a and b} == {5 * SECOND}


async def test_an_edit_leaves_alone_what_waits_for_its_jitter(opened: JetJobs, truth: Truth) -> None:
    since = await put(opened, jitter=30 * SECOND, args={"n": 1})
    async with planning(opened):
        await eventually(lambda: ready(truth, 3), 40)
        before = time_token(await now_of(opened))
        await put(opened, jitter=30 * SECOND, args={"n": 2})
        await eventually(lambda: aligned(opened, "s"), 10)
        waits = [s for s in await truth.jobs(lane="later") if s.rsplit(".", 1)[1] <= before]
        assert waits
        for subject in waits:
            message = await truth.js.get_last_msg("jobs-work-default", subject)
            assert json.loads(message.data or b"") == {"n": 1}
    await every_slot_once(truth, since)


async def test_delete_takes_back_what_was_planned_but_no_tick_that_is_retried(
    app: JetJobs, truth: Truth, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.5)
    monkeypatch.setattr("jetjobs.worker.scheduling.alignment.KEPT", timedelta(0))

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
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 0.5)
    monkeypatch.setattr("jetjobs.worker.scheduling.alignment.KEPT", timedelta(0))
    since = await put(opened)
    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
        await put(opened, queue="b")
        await eventually(lambda: placed(truth, 50, "b"), 30)

        async def left() -> bool:
            marks = await truth.subjects("jobs-work-default", "jobs.work.default.mark.schedule.s")
            return not marks and not await truth.jobs(lane="later")

        await eventually(left, 30)
    await every_slot_once(truth, since)


async def pause(app: JetJobs) -> None:
    await app.schedules.pause("s")


async def delete(app: JetJobs) -> None:
    await app.schedules.delete("s")


@pytest.mark.parametrize("off", [pause, delete])
async def test_pause_and_delete_take_back_what_was_moved_or_waits_for_its_jitter_in_a_queue_it_has_left(
    opened: JetJobs, truth: Truth, off: Edit
) -> None:
    await put(opened, jitter=HOUR)
    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
        await put(opened, jitter=HOUR, queue="b")
        await eventually(lambda: placed(truth, 50, "b"), 30)
        assert await truth.jobs(lane="later"), "the definition before keeps the scheduled times of two seconds"
        first, *_, last = (s.split(".") for s in await truth.jobs("b", "later"))
        by_time = await opened.jobs.reschedule(f"{last[5]}-{last[6]}", await now_of(opened) + 2 * HOUR)
        by_lane = await opened.jobs.set_priority(f"{first[5]}-{first[6]}", "high")
        assert (by_time.outcome, by_lane.outcome) == (MoveOutcome.MOVED, MoveOutcome.MOVED)
        await off(opened)

        async def taken_back() -> bool:
            return not await truth.jobs(lane="later") and not await truth.jobs("b", "later")

        await eventually(taken_back, 10)


async def test_more_ticks_than_one_batch_removes_are_taken_back(opened: JetJobs, truth: Truth) -> None:
    await put(opened, jitter=HOUR)
    schedule = (await opened.schedules.get("s")).schedule
    now = (await now_of(opened)).replace(microsecond=0)
    ticks = tuple(Tick(now - i * SECOND, now + HOUR) for i in range(950))
    one = Step("s", Mark(1, now), Plan(ticks), schedule=schedule)
    assert await opened.jetstream.ticks.store("default", [one], now)
    await opened.schedules.pause("s")
    async with planning(opened):
        await eventually(lambda: aligned(opened, "s"), 30)
    assert await truth.jobs() == []


async def test_what_was_last_is_known_through_edits(opened: JetJobs, truth: Truth) -> None:
    await put(opened)
    async with planning(opened):
        await eventually(lambda: ready(truth, 2), 30)
        for edit in (put(opened, every=HOUR), opened.schedules.pause("s"), opened.schedules.resume("s")):
            await edit
            await eventually(lambda: aligned(opened, "s"), 10)
            last = (await opened.schedules.get("s")).last
            assert last is not None
            assert last >= await now_of(opened) - MINUTE


# Nothing lost, nothing doubled


async def test_delete_and_put_again_with_no_leader_between(opened: JetJobs, truth: Truth) -> None:
    await put(opened)
    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
    await opened.schedules.delete("s")
    await asyncio.sleep(1)
    since = await put(opened, args={"n": 2})
    async with planning(opened):
        await eventually(lambda: aligned(opened, "s"), 30)
    await every_slot_once(truth, since)


async def test_edits_of_all_kinds_within_seconds(opened: JetJobs, truth: Truth) -> None:
    since = await put(opened)
    async with planning(opened):
        await eventually(lambda: placed(truth, 20), 30)
        for number in range(25):
            await put(opened, args={"n": number}, queue=random.choice(QUEUES))
            await asyncio.sleep(random.choice((0.0, 0.1, 0.4)))
        until = await now_of(opened) + 5 * SECOND
        await eventually(lambda: planned_past(opened, truth, until), 30)
        await eventually(lambda: aligned(opened, "s"), 30)
    await every_slot_once(truth, since)


@pytest.mark.parametrize("before_ms", [(10,), (60,), (900, 300, 20)])
async def test_edits_right_before_a_slot(opened: JetJobs, truth: Truth, before_ms: tuple[int, ...]) -> None:
    since = await put(opened, every=2 * SECOND)
    schedule = (await opened.schedules.get("s")).schedule
    async with planning(opened):
        await eventually(lambda: placed(truth, 20), 30)
        for _ in range(3):
            scheduled_time = schedule.after(await now_of(opened) + SECOND)
            assert scheduled_time is not None
            for wait_ms in before_ms:
                moment = scheduled_time - timedelta(milliseconds=wait_ms)
                await asyncio.sleep(max(0.0, (moment - await now_of(opened)).total_seconds()))
                await put(opened, every=2 * SECOND)
        until = await now_of(opened) + 10 * SECOND
        await eventually(lambda: planned_past(opened, truth, until), 30)
    await every_slot_once(truth, since, 2 * SECOND)


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
        await every_slot_once(truth, since)


async def edit(app: JetJobs) -> None:
    await put(app, args={"n": 2})


async def move(app: JetJobs) -> None:
    await put(app, queue="b")


async def pause_and_resume(app: JetJobs) -> None:
    await app.schedules.pause("s")
    await eventually(lambda: aligned(app, "s"), 40)
    await app.schedules.resume("s")


@pytest.mark.parametrize("change", [edit, move, pause_and_resume])
@pytest.mark.parametrize(("batch", "stored"), [(1, False), (1, True), (2, False), (2, True)])
async def test_a_leader_that_dies_before_or_after_any_batch_of_a_change(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, change: Edit, batch: int, stored: bool
) -> None:
    """The next one goes on, a moment later. Of a move the old queue is ended then, and the new one not begun."""
    since = await put(opened)
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

    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
        monkeypatch.setattr(Ticks, "store", dying)
        changing = asyncio.ensure_future(change(opened))
        await died.wait()
    await asyncio.sleep(1)
    monkeypatch.setattr(Ticks, "store", original)
    async with planning(opened):
        await changing
        until = await now_of(opened) + 30 * SECOND
        await eventually(lambda: aligned(opened, "s"), 30)
        await eventually(lambda: planned_past(opened, truth, until), 30)
    if change is pause_and_resume:
        since = (await opened.schedules.get("s")).schedule.since + 2 * SECOND  # those may belong to the pause
    await every_slot_once(truth, since)


@pytest.mark.patient
@pytest.mark.parametrize("change", [edit, move, pause])
@pytest.mark.parametrize("where", ["Ticks.marks_of", "ScheduleStore.get", "Ticks.waiting", "Ticks.store"])
async def test_a_leader_with_an_old_view_changes_nothing(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, change: Edit, where: str
) -> None:
    """It stands still for some seconds in the middle of an edit; by then another leads, and has made one more."""
    since = await put(opened)
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
        await Planner(opened.jetstream, lambda: 1).run()

    old = asyncio.create_task(plan())
    await eventually(lambda: placed(truth, 50), 30)
    monkeypatch.setattr(owner, name, slow)
    still = True
    await put(opened, args={"n": 1})
    await stands.wait()
    async with planning(opened):
        await eventually(lambda: aligned(opened, "s"), 30)
        await change(opened)
        await eventually(lambda: aligned(opened, "s"), 30)
        await asyncio.sleep(5)
        off = await now_of(opened)
        await asyncio.sleep(1)
    old.cancel()
    await asyncio.gather(old, return_exceptions=True)
    if change is pause:
        assert not await planned_past(opened, truth, off)
    await every_slot_once(truth, since)


async def test_nothing_is_placed_for_one_that_cannot_be_looked_at(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failed = Ticks.waiting, 0

    async def failing(self: Ticks, queue: str, name: str) -> Any:
        nonlocal failed
        failed += name == "s"
        if name == "s":
            raise BrokerError("not now")
        return await original(self, queue, name)

    async def tried() -> bool:
        return failed >= 3

    monkeypatch.setattr("jetjobs.worker.scheduling.planner.AGAIN", timedelta(seconds=0.3))
    monkeypatch.setattr(Ticks, "waiting", failing)
    since = await put(opened)
    await opened.schedules.put("other", "work", every=SELDOM)
    async with planning(opened):
        await eventually(lambda: aligned(opened, "other"), 30)
        await eventually(tried, 30)
        assert await truth.jobs() == []
        monkeypatch.setattr(Ticks, "waiting", original)
        await eventually(lambda: aligned(opened, "s"), 30)
    await every_slot_once(truth, since)


async def test_a_clock_that_is_behind_doubles_nothing(opened: JetJobs, truth: Truth) -> None:
    since = await put(opened)
    async with planning(opened):
        await eventually(lambda: ready(truth, 2), 30)
        clock = opened.jetstream.server_clock
        assert clock._offset is not None
        clock._offset -= 10.0
        await put(opened, args={"n": 2})
        await eventually(lambda: aligned(opened, "s"), 30)
    await every_slot_once(truth, since)


async def test_a_moved_tick_that_has_not_begun_keeps_no_other_from_running(opened: JetJobs, truth: Truth) -> None:
    await put(opened, overlap="skip")
    async with planning(opened):
        await eventually(lambda: placed(truth, 50), 30)
    soon = time_token(await now_of(opened) + 4 * SECOND)
    subject = next(s for s in await truth.jobs(lane="later") if s.endswith(soon))
    answer = await opened.jobs.reschedule("-".join(subject.split(".")[5:7]), await now_of(opened) + HOUR)
    assert answer.outcome is MoveOutcome.MOVED

    async def ran_after() -> bool:
        done = await truth.done()
        return any(job_id.rsplit("-", 1)[1] > soon for job_id, r in done.items() if r["state"] == "succeeded")

    async with running(opened.worker()):
        await eventually(ran_after, 30)


# Queues that do not answer


@contextlib.asynccontextmanager
async def leading(app: JetJobs, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[set[str]]:
    """A leader that plans 6 s ahead, and gets no answer from the queues in the set."""
    silent: set[str] = set()
    leads = contextvars.ContextVar("leads", default=False)
    monkeypatch.setattr("jetjobs.model.schedule.plan.AHEAD", 6 * SECOND)
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 1.0)

    def cut(name: str, timeout_s: float) -> None:
        original = getattr(Ticks, name)

        async def asked(self: Ticks, queue: str, *args: Any) -> Any:
            if queue in silent and leads.get():
                await asyncio.sleep(timeout_s)
                raise BrokerUnavailable(f"{queue} does not answer")
            return await original(self, queue, *args)

        monkeypatch.setattr(Ticks, name, asked)

    for name, timeout_s in (("mark", 0.5), ("marks", 0.5), ("waiting", 0.5), ("store", 15.0)):
        cut(name, timeout_s)

    async def lead() -> None:
        leads.set(True)
        await Planner(app.jetstream, lambda: 1).run()

    async with background(lead()):
        yield silent


async def test_an_edit_does_not_need_a_queue_where_the_schedule_never_was(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = await put(opened)
    async with leading(opened, monkeypatch) as silent:
        silent.add("c")
        await eventually(lambda: aligned(opened, "s"), 10)
        await put(opened, args={"n": 2})
        await eventually(lambda: aligned(opened, "s"), 10)
        await put(opened, args={"n": 2}, queue="b")
        await eventually(lambda: aligned(opened, "s"), 10)
        await opened.schedules.put("new", "work", every=SELDOM)
        await eventually(lambda: aligned(opened, "new"), 10)
        until = await now_of(opened) + 8 * SECOND
        await eventually(lambda: planned_past(opened, truth, until), 30)
    await every_slot_once(truth, since)


@pytest.mark.parametrize("gone", ["b", "c"])
async def test_a_schedule_is_planned_where_it_was_until_it_can_move(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    """It goes from b to c, and one of them does not answer: then neither c is begun, nor b ended."""

    async def is_told() -> bool:
        return any(vars(record).get("event") == "schedule.unplaced" for record in caplog.records)

    since = await put(opened, queue="b", misfire="all")
    async with leading(opened, monkeypatch) as silent:
        await eventually(lambda: placed(truth, 4, "b"), 10)
        silent.add(gone)
        await put(opened, queue="c", misfire="all")
        await eventually(is_told, 10)
        until = await now_of(opened) + 8 * SECOND
        if gone == "c":
            await eventually(lambda: planned_past(opened, truth, until), 12)
        assert await standing(truth, "c") == []
        silent.clear()
        await eventually(lambda: aligned(opened, "s"), 30)
        await eventually(lambda: planned_past(opened, truth, until), 30)
    await every_slot_once(truth, since)


async def test_queues_that_do_not_answer_hold_up_no_other(
    opened: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = await put(opened)
    for queue in ("b", "c"):
        await opened.schedules.put(f"a-{queue}", "work", every=SECOND, queue=queue)
    async with leading(opened, monkeypatch) as silent:
        await eventually(lambda: aligned(opened, "s"), 10)
        silent |= {"b", "c"}
        for _ in range(3):  # each of them takes 15 s to fail
            until = time_token(await now_of(opened) + 6 * SECOND)

            async def fired(until: str = until) -> bool:
                return any(uid >= until for uid in slots_of(await truth.jobs(lane="normal")))

            await eventually(fired, 8)
    await every_slot_once(truth, since, queues=("default",))


async def test_the_event_loop_is_shared_while_many_schedules_are_taken_over(
    opened: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        await opened.schedules.put(f"s{number}", "work", cron=f"{number % 60} 3 * * *")

    async def all_aligned() -> bool:
        return len(await opened.jetstream.ticks.marks("default")) == 200

    async with planning(opened):
        await eventually(all_aligned, 30)
    counts, most = Counter[str](), Counter[str]()

    def counted(where: str) -> None:
        original = getattr(importlib.import_module(where.rpartition(".")[0]), where.rpartition(".")[2])

        def call(*args: Any) -> Any:
            counts[where] += 1
            return original(*args)

        monkeypatch.setattr(where, call)

    parse, plan = "jetjobs.jetstream.schedules.store.read_schedule", "jetjobs.worker.scheduling.planner.plan"
    counted(parse)
    counted(plan)

    async def others() -> None:
        while True:
            before = counts.copy()
            await asyncio.sleep(0)
            most[parse] = max(most[parse], counts[parse] - before[parse])
            most[plan] = max(most[plan], counts[plan] - before[plan])

    async def done() -> bool:
        return counts[parse] >= 200 and counts[plan] >= 200

    async with background(others()), planning(opened):
        await eventually(done, 30)
    assert most[parse] <= 50
    assert most[plan] <= 50
