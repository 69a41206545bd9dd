"""The planner's decision: every slot once, none late, and of missed ones what the policy says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.planning import AHEAD, GRACE, MOST_COUNTED, Plan, Progress, carried_on, plan
from jetjobs.model.schedule import Schedule, make_schedule

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
G, OLDER = f"{2:016d}", f"{1:016d}"
POLICIES = st.sampled_from(["last", "all", "skip"])


def schedule(**values: object) -> Schedule:
    return make_schedule({"name": "s", "task": "t", "since": T0, "generation": G, **values})


def after(one: Schedule, progress: Progress | None, todo: Plan) -> Progress | None:
    """How far it got once the plan is carried out."""
    if todo.upto is None:
        return progress
    return Progress(todo.upto, one.generation, (progress.missed if progress else 0) + todo.missed, todo.passed)


def slots(todo: Plan) -> list[datetime]:
    return [tick.slot for tick in todo.ticks]


def walk(one: Schedule, steps: list[float]) -> tuple[list[datetime], Progress | None, datetime]:
    """Plan at moments that are so many seconds apart; all ticks in order."""
    now, progress, placed = T0, None, []
    for step in steps:
        now += timedelta(seconds=step)
        todo = plan(one, progress, now)
        placed += slots(todo)
        progress = after(one, progress, todo)
    return placed, progress, now


@given(st.integers(1, 90), st.lists(st.floats(0, 40), min_size=1, max_size=30))
def test_whoever_looks_in_time_places_every_slot_once(every: int, steps: list[float]) -> None:
    one = schedule(every=timedelta(seconds=every))
    placed, _, now = walk(one, [0.0, *steps])
    first = one.after(T0)
    assert first is not None
    expected = [first + i * timedelta(seconds=every) for i in range(2000)]
    assert placed == [slot for slot in expected if slot <= now + AHEAD]


@given(st.integers(1, 600), POLICIES, st.lists(st.floats(0, 5000), min_size=1, max_size=15))
def test_no_slot_is_ever_placed_twice_and_they_come_in_order(every: int, misfire: str, steps: list[float]) -> None:
    one = schedule(every=timedelta(seconds=every), misfire=misfire)
    placed, _, _ = walk(one, steps)
    assert placed == sorted(set(placed))
    assert all(slot > T0 for slot in placed)


@given(st.integers(1, 600), st.floats(0, 100_000), POLICIES, st.integers(1, 50))
def test_of_the_slots_that_were_missed_the_policy_decides(
    every: int, away_s: float, misfire: str, limit: int
) -> None:
    one = schedule(every=timedelta(seconds=every), misfire=misfire, misfire_limit=limit)
    now = T0 + timedelta(seconds=away_s)
    todo = plan(one, None, now)
    first = one.after(T0)
    assert first is not None
    number = (now - first) // timedelta(seconds=every) + 1 if first <= now else 0
    due = [first + i * timedelta(seconds=every) for i in range(number)]
    if not due or now - first <= GRACE:
        kept = due
    elif misfire == "last":
        kept = due[-1:]
    elif misfire == "all":
        kept = due[-limit:]
    else:
        kept = [slot for slot in due if now - slot <= GRACE]
    assert [slot for slot in slots(todo) if slot <= now] == kept
    assert todo.missed == min(len(due) - len(kept), MOST_COUNTED)
    if todo.missed and len(due) <= MOST_COUNTED:
        assert todo.passed == [slot for slot in due if slot not in kept][-1]


@given(st.integers(1, 100_000), st.floats(0, 1000))
def test_it_looks_again_well_before_the_next_slot(every: int, at: float) -> None:
    todo = plan(schedule(every=timedelta(seconds=every)), None, T0 + timedelta(seconds=at))
    assert todo.following is not None
    assert todo.look_at is not None
    assert AHEAD / 2 <= todo.following - todo.look_at <= AHEAD * 3 / 4
    assert todo.upto is None or todo.following > todo.upto


def test_three_days_away() -> None:
    now = T0 + timedelta(days=3, minutes=30)
    hourly = {"cron": "0 * * * *"}
    assert slots(plan(schedule(**hourly, misfire="last"), None, now)) == [T0 + timedelta(days=3)]
    assert slots(plan(schedule(**hourly, misfire="skip"), None, now)) == []
    every = [T0 + timedelta(hours=i) for i in range(1, 73)]
    assert slots(plan(schedule(**hourly, misfire="all"), None, now)) == every
    assert slots(plan(schedule(**hourly, misfire="all", misfire_limit=10), None, now)) == every[-10:]


def test_a_second_behind_after_a_month_away_does_not_walk_through_all_of_it() -> None:
    now = T0 + timedelta(days=30)
    todo = plan(schedule(cron="* * * * * *", misfire="all", misfire_limit=50), None, now)
    assert len([slot for slot in slots(todo) if slot <= now]) == 50
    assert todo.missed == MOST_COUNTED


def test_another_generation_begins_at_its_own_time() -> None:
    one = schedule(every=SECOND, since=T0 + timedelta(seconds=100))
    todo = plan(one, Progress(T0 + timedelta(seconds=300), OLDER), T0 + timedelta(seconds=100))
    assert slots(todo)[0] == T0 + timedelta(seconds=101)


def test_a_clock_that_goes_back_places_nothing_again() -> None:
    one = schedule(every=SECOND)
    progress = after(one, None, plan(one, None, T0))
    assert slots(plan(one, progress, T0 - timedelta(hours=1))) == []
    # And one that goes forward is a misfire like any other.
    jumped = plan(one, progress, T0 + timedelta(hours=1))
    assert [slot for slot in slots(jumped) if slot <= T0 + timedelta(hours=1)] == [T0 + timedelta(hours=1)]


def test_start_and_end_are_kept() -> None:
    one = schedule(every=timedelta(seconds=10), start=T0 + timedelta(seconds=25), end=T0 + timedelta(seconds=50))
    placed, _, _ = walk(one, [0, 20, 20, 20])
    assert placed == [T0 + timedelta(seconds=s) for s in (30, 40, 50)]
    assert plan(one, Progress(placed[-1], G), T0 + timedelta(seconds=51)) == Plan()


def test_a_paused_one_has_no_plan() -> None:
    assert plan(schedule(every=SECOND, paused=True), None, T0 + timedelta(hours=1)) == Plan()


@given(st.integers(1, 3600), st.integers(0, 10**6))
def test_jitter_is_within_its_bound_and_the_same_for_whoever_plans(jitter: int, number: int) -> None:
    one = schedule(every=SECOND, jitter=timedelta(seconds=jitter))
    slot = T0 + timedelta(seconds=number)
    assert timedelta(0) <= one.due(slot) - slot < timedelta(seconds=jitter)
    assert one.due(slot) == schedule(every=SECOND, jitter=timedelta(seconds=jitter)).due(slot)


def test_jitter_spreads_the_ticks() -> None:
    one = schedule(every=SECOND, jitter=timedelta(seconds=60))
    offsets = [(one.due(slot) - slot).total_seconds() for slot in (T0 + i * SECOND for i in range(1000))]
    assert 25 < sum(offsets) / 1000 < 35
    assert min(offsets) < 5 < 55 < max(offsets)


@given(st.integers(1, 20), st.integers(1, 80))
def test_a_plan_in_portions_is_the_plan(number: int, every: int) -> None:
    one = schedule(every=timedelta(seconds=every), misfire="all", misfire_limit=40)
    now = T0 + timedelta(seconds=200)
    whole = slots(plan(one, None, now))
    placed: list[datetime] = []
    progress: Progress | None = Progress(whole[0] - timedelta(seconds=1), G) if whole else None
    for _ in range(len(whole) + 1):
        todo = plan(one, progress, now).first(number)
        placed += slots(todo)
        progress = after(one, progress, todo)
    assert placed == whole


@pytest.mark.parametrize("misfire", ["last", "all", "skip"])
def test_ten_seconds_late_is_not_missed(misfire: str) -> None:
    one = schedule(every=timedelta(hours=1), misfire=misfire)
    slot = T0 + timedelta(hours=1)
    assert slots(plan(one, None, slot + GRACE)) == [slot]
    late = plan(one, None, slot + GRACE + SECOND)
    assert slots(late) == ([] if misfire == "skip" else [slot])


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.booleans()), min_size=1, max_size=40), st.integers(1, 4))
def test_edits_in_quick_succession_lose_and_double_no_slot(steps: list[tuple[float, bool]], every: int) -> None:
    """Each step is an edit that takes back what is after its time, and now and then somebody plans."""
    now, placed = T0, set[datetime]()
    one = schedule(every=timedelta(seconds=every), generation=f"{0:016d}", since=T0)
    progress = Progress(T0, f"{0:016d}")
    for number, (step, plans) in enumerate(steps, 1):
        if plans:
            todo = plan(one, progress, now)
            assert not placed & set(slots(todo))
            placed |= set(slots(todo))
            progress = after(one, progress, todo) or progress
        now += timedelta(seconds=step)
        one = schedule(every=timedelta(seconds=every), generation=f"{number:016d}", since=now)
        progress = Progress(carried_on(progress, now), one.generation)
        placed = {slot for slot in placed if slot <= now}
        if now - progress.slot > GRACE - timedelta(seconds=3):
            todo = plan(one, progress, now)
            placed |= set(slots(todo))
            progress = after(one, progress, todo) or progress
    todo = plan(one, progress, now)
    assert not placed & set(slots(todo))
    placed |= set(slots(todo))
    expected, slot = [], one.after(T0)
    while slot is not None and slot <= now + AHEAD:
        expected.append(slot)
        slot = one.after(slot)
    assert sorted(placed) == expected


def test_what_was_long_ago_or_idle_is_not_carried_on() -> None:
    since = T0 + timedelta(minutes=1)
    assert carried_on(None, since) == since
    assert carried_on(Progress(since - GRACE, "a"), since) == since - GRACE
    assert carried_on(Progress(since - GRACE - SECOND, "a"), since) == since
    assert carried_on(Progress(since - SECOND, "a", idle=True), since) == since
    assert carried_on(Progress(since + SECOND, "a"), since) == since
