"""The planner's decision: every slot once, none late, and of missed ones what the policy says."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.planning import AHEAD, GRACE, MARGIN, MOST_COUNTED, Change, Plan, Progress, change, plan
from jetjobs.model.schedule import Schedule, make_schedule

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
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


class Stream:
    """What stands in the streams of some queues: the ticks of one schedule by queue and slot, and its markers."""

    def __init__(self) -> None:
        self.ticks: Counter[tuple[str, datetime]] = Counter()
        self.markers: dict[str, Progress] = {}

    def change(self, new: Schedule, now: datetime, left: list[str]) -> None:
        """As the changeover does it."""
        ended = []
        for queue in left:
            done = change(new, new.predecessor, self.markers.get(queue), now, gone=True)
            self._store(queue, new, now, done, gone=True)
            ended.append(done.since)
        after = max(ended, default=None)
        self._store(new.queue, new, now, change(new, new.predecessor, self.markers.get(new.queue), now, after))

    def _store(self, queue: str, new: Schedule, now: datetime, done: Change, gone: bool = False) -> None:
        self.ticks = Counter(
            {(q, slot): count for (q, slot), count in self.ticks.items() if q != queue or slot <= done.since}
        )
        self.ticks.update((queue, tick.slot) for tick in [*done.closing, *done.opening.ticks])
        upto = done.opening.upto or done.since
        self.markers[queue] = Progress(upto, new.generation, done.missed, done.passed, gone, done.since)

    def plan(self, one: Schedule, now: datetime) -> None:
        progress = self.markers[one.queue]
        todo = plan(one, progress, now)
        self.ticks.update((one.queue, tick.slot) for tick in todo.ticks)
        if todo.upto is not None:
            self.markers[one.queue] = progress._replace(slot=todo.upto, missed=progress.missed + todo.missed)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 90.0) | st.floats(0.0, 3.0), st.booleans(), st.sampled_from("abc")),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 40),
)
def test_no_edit_loses_or_doubles_a_slot_whoever_plans_and_wherever_it_moves(
    steps: list[tuple[float, bool, str]], every: int
) -> None:
    """Each step is an edit, perhaps to another queue, perhaps long after the last; now and then somebody plans.
    With the policy `all` not even an outage loses a slot."""
    stream, now = Stream(), T0
    common = {"every": timedelta(seconds=every), "misfire": "all", "misfire_limit": 500}
    one = schedule(**common, queue="a", generation=f"{1:016d}", since=T0)
    stream.change(one, now, [])
    for number, (step, plans, queue) in enumerate(steps, 2):
        if plans:
            stream.plan(one, now)
        now += timedelta(seconds=step)
        replaced = one.model_dump(mode="json", exclude={"replaced"})
        left = [one.queue] if one.queue != queue else []
        one = schedule(**common, queue=queue, generation=f"{number:016d}", since=now, replaced=replaced)
        stream.change(one, now, left)
    stream.plan(one, now)
    placed = Counter(slot for (_, slot), count in stream.ticks.items() for _ in range(count))
    assert max(placed.values(), default=1) == 1
    expected, slot = [], one.after(T0)
    while slot is not None and slot <= now + AHEAD:
        expected.append(slot)
        slot = one.after(slot)
    assert sorted(placed) == expected
    assert stream.markers[one.queue].missed == 0


def test_slots_before_an_edit_go_by_the_definition_before_and_its_policy() -> None:
    """An hour without anybody, and then a deploy that changes it."""
    old = schedule(every=timedelta(minutes=1), misfire="last", generation=f"{1:016d}", since=T0)
    now = T0 + timedelta(hours=1, seconds=5)
    replaced = old.model_dump(mode="json")
    new = schedule(every=SECOND, misfire="all", generation=f"{2:016d}", since=now, replaced=replaced)
    done = change(new, new.predecessor, Progress(T0, old.generation), now)
    assert done.since == now + MARGIN
    assert [tick.slot for tick in done.closing] == [T0 + timedelta(hours=1)]
    assert (done.missed, done.passed) == (59, T0 + timedelta(minutes=59))
    assert done.opening.ticks[0].slot == now + MARGIN + SECOND
    assert all(tick.slot > done.since for tick in done.opening.ticks)


def test_what_was_planned_before_a_marker_that_is_gone_or_foreign_is_not_planned_again() -> None:
    old = schedule(every=SECOND, misfire="all", generation=f"{1:016d}", since=T0)
    now = T0 + timedelta(minutes=5)
    replaced = old.model_dump(mode="json")
    new = schedule(every=SECOND, misfire="all", generation=f"{9:016d}", since=now - 10 * SECOND, replaced=replaced)
    lost = change(new, new.predecessor, None, now)
    assert (lost.since, lost.closing) == (now, ())
    foreign = change(new, new.predecessor, Progress(T0, f"{5:016d}"), now)
    assert (foreign.since, foreign.closing) == (now + MARGIN, ())
    far = change(new, new.predecessor, Progress(now, old.generation, since=now + timedelta(days=9)), now)
    assert far.since == now + MARGIN


def test_a_change_to_paused_or_from_it_plans_nothing_of_the_pause() -> None:
    old = schedule(every=SECOND, generation=f"{1:016d}", since=T0)
    now = T0 + timedelta(minutes=5)
    paused = schedule(every=SECOND, paused=True, generation=f"{2:016d}", since=now, replaced=old.model_dump())
    # Also when the last change has not taken effect yet: what it had left to fire is taken back.
    stop = change(paused, paused.predecessor, Progress(now, old.generation, since=now + SECOND), now)
    assert (stop.since, stop.closing, stop.opening.ticks) == (now, (), ())
    on = schedule(every=SECOND, generation=f"{3:016d}", since=now + MINUTE, replaced=paused.model_dump())
    assert on.predecessor is None
    go = change(on, None, Progress(now, paused.generation, idle=True), now + MINUTE)
    assert (go.since, go.closing) == (now + MINUTE, ())
    assert go.opening.ticks[0].slot == now + MINUTE + SECOND
