"""Plans: every scheduled time once, missed ones by the policy, and changes of schedules."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetjobs.model.schedule.plan import (
    AHEAD,
    GRACE,
    MARGIN,
    MAX_CATCH_UP,
    MAX_COUNTED,
    MAX_REMOVED,
    Mark,
    PlacedTick,
    Plan,
    Step,
    begin,
    end,
    last_scheduled_time,
    plan,
    step,
    to_end,
)
from jetjobs.model.schedule.schedule import Schedule, make_schedule

T0 = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
POLICIES = st.sampled_from(["last", "all", "skip"])


def schedule(**values: object) -> Schedule:
    return make_schedule({"name": "s", "task": "t", "since": T0, **values})


def after(one: Schedule, mark: Mark, todo: Plan, now: datetime) -> Mark:
    """The mark after the plan is carried out."""
    return step(one, mark, todo, now).mark if todo.upto is not None else mark


def scheduled_times(todo: Plan) -> list[datetime]:
    return [tick.scheduled_time for tick in todo.ticks]


def walk(one: Schedule, steps: list[float]) -> tuple[list[datetime], datetime]:
    """Plan at times this many seconds apart; returns all ticks in order."""
    now, mark, placed = T0, Mark(), []
    for seconds in steps:
        now += timedelta(seconds=seconds)
        todo = plan(one, mark, now)
        placed += scheduled_times(todo)
        mark = after(one, mark, todo, now)
    return placed, now


@given(st.integers(1, 90), st.lists(st.floats(0, 40), min_size=1, max_size=30))
def test_leaders_that_look_in_time_place_every_scheduled_time_once(every: int, steps: list[float]) -> None:
    one = schedule(every=timedelta(seconds=every))
    placed, now = walk(one, [0.0, *steps])
    first = one.after(T0)
    assert first is not None
    expected = [first + i * timedelta(seconds=every) for i in range(2000)]
    assert placed == [scheduled_time for scheduled_time in expected if scheduled_time <= now + AHEAD]


@given(st.integers(1, 600), POLICIES, st.lists(st.floats(0, 5000), min_size=1, max_size=15))
def test_no_slot_is_ever_placed_twice_and_they_come_in_order(every: int, misfire: str, steps: list[float]) -> None:
    one = schedule(every=timedelta(seconds=every), misfire=misfire)
    placed, _ = walk(one, steps)
    assert placed == sorted(set(placed))
    assert all(scheduled_time > T0 for scheduled_time in placed)


@given(st.integers(1, 600), st.floats(0, 100_000), POLICIES)
def test_of_the_slots_that_were_missed_the_policy_decides(every: int, away_s: float, misfire: str) -> None:
    one = schedule(every=timedelta(seconds=every), misfire=misfire)
    now = T0 + timedelta(seconds=away_s)
    todo = plan(one, Mark(), now)
    first = one.after(T0)
    assert first is not None
    number = (now - first) // timedelta(seconds=every) + 1 if first <= now else 0
    due = [first + i * timedelta(seconds=every) for i in range(number)]
    if not due or now - first <= GRACE:
        kept = due
    elif misfire == "last":
        kept = due[-1:]
    elif misfire == "all":
        kept = due[-MAX_CATCH_UP:]
    else:
        kept = [scheduled_time for scheduled_time in due if now - scheduled_time <= GRACE]
    assert [scheduled_time for scheduled_time in scheduled_times(todo) if scheduled_time <= now] == kept
    assert todo.missed == min(len(due) - len(kept), MAX_COUNTED)
    if todo.missed and len(due) <= MAX_COUNTED:
        assert todo.passed == [scheduled_time for scheduled_time in due if scheduled_time not in kept][-1]


@given(st.integers(1, 100_000), st.floats(0, 1000))
def test_it_looks_again_well_before_the_next_slot(every: int, at: float) -> None:
    todo = plan(schedule(every=timedelta(seconds=every)), Mark(), T0 + timedelta(seconds=at))
    assert todo.following is not None
    assert todo.look_at is not None
    assert AHEAD / 2 <= todo.following - todo.look_at <= AHEAD * 3 / 4
    assert todo.upto is None or todo.following > todo.upto


def test_a_month_away_is_not_walked_through() -> None:
    now = T0 + timedelta(days=30)
    todo = plan(schedule(cron="* * * * *", misfire="all"), Mark(), now)
    assert (
        len([scheduled_time for scheduled_time in scheduled_times(todo) if scheduled_time <= now]) == MAX_CATCH_UP
    )
    assert todo.missed == MAX_COUNTED


def test_nothing_before_its_beginning_is_planned_whatever_the_mark_says() -> None:
    one = schedule(every=SECOND, since=T0 + timedelta(seconds=100))
    todo = plan(one, Mark(1, T0), T0 + timedelta(seconds=100))
    assert (scheduled_times(todo)[0], todo.missed) == (T0 + timedelta(seconds=101), 0)


def test_a_clock_that_goes_back_places_nothing_again() -> None:
    one = schedule(every=SECOND)
    mark = after(one, Mark(), plan(one, Mark(), T0), T0)
    assert scheduled_times(plan(one, mark, T0 - timedelta(hours=1))) == []
    # A jump forward is a misfire like any other.
    jumped = plan(one, mark, T0 + timedelta(hours=1))
    assert [
        scheduled_time for scheduled_time in scheduled_times(jumped) if scheduled_time <= T0 + timedelta(hours=1)
    ] == [T0 + timedelta(hours=1)]


def test_start_and_end_are_kept() -> None:
    one = schedule(every=timedelta(seconds=10), start=T0 + timedelta(seconds=25), end=T0 + timedelta(seconds=50))
    placed, _ = walk(one, [0, 20, 20, 20])
    assert placed == [T0 + timedelta(seconds=s) for s in (30, 40, 50)]
    assert plan(one, Mark(1, placed[-1]), T0 + timedelta(seconds=51)) == Plan()


def test_a_paused_one_has_no_plan() -> None:
    assert plan(schedule(every=SECOND, paused=True), Mark(), T0 + timedelta(hours=1)) == Plan()


@given(st.integers(1, 3600), st.integers(0, 10**6))
def test_jitter_is_within_its_bound_and_the_same_for_every_leader(jitter: int, number: int) -> None:
    one = schedule(every=SECOND, jitter=timedelta(seconds=jitter))
    scheduled_time = T0 + timedelta(seconds=number)
    assert timedelta(0) <= one.due(scheduled_time) - scheduled_time < timedelta(seconds=jitter)
    assert one.due(scheduled_time) == schedule(every=SECOND, jitter=timedelta(seconds=jitter)).due(scheduled_time)


def test_jitter_spreads_the_ticks() -> None:
    one = schedule(every=SECOND, jitter=timedelta(seconds=60))
    offsets = [
        (one.due(scheduled_time) - scheduled_time).total_seconds()
        for scheduled_time in (T0 + i * SECOND for i in range(1000))
    ]
    assert 25 < sum(offsets) / 1000 < 35
    assert min(offsets) < 5 < 55 < max(offsets)


@given(st.integers(1, 20), st.integers(1, 80))
def test_a_plan_in_portions_is_the_plan(number: int, every: int) -> None:
    one = schedule(every=timedelta(seconds=every), misfire="all")
    now = T0 + timedelta(seconds=90)
    whole = scheduled_times(plan(one, Mark(), now))
    placed: list[datetime] = []
    mark = Mark()
    for _ in range(len(whole) + 1):
        todo = plan(one, mark, now).first(number)
        if len(placed) + len(todo.ticks) < len(whole):
            assert todo.look_at is not None
            assert todo.look_at <= now  # the rest is planned at once
        placed += scheduled_times(todo)
        mark = after(one, mark, todo, now)
    assert placed == whole


@pytest.mark.parametrize("misfire", ["last", "all", "skip"])
def test_ten_seconds_late_is_not_missed(misfire: str) -> None:
    one = schedule(every=timedelta(hours=1), misfire=misfire)
    scheduled_time = T0 + timedelta(hours=1)
    assert scheduled_times(plan(one, Mark(), scheduled_time + GRACE)) == [scheduled_time]
    late = plan(one, Mark(), scheduled_time + GRACE + SECOND)
    assert scheduled_times(late) == ([] if misfire == "skip" else [scheduled_time])


# Changes


def waits(*seconds: float, jitter: float = 0.0) -> list[PlacedTick]:
    """Ticks of scheduled times this many seconds after T0."""
    times = [T0 + timedelta(seconds=s) for s in seconds]
    return [
        PlacedTick(scheduled_time, scheduled_time + timedelta(seconds=jitter), "", 1) for scheduled_time in times
    ]


def test_an_edit_takes_back_what_is_scheduled_in_more_than_two_seconds() -> None:
    one = schedule(every=SECOND, since=T0 - MINUTE)
    waiting = [*waits(-5, jitter=30), *waits(1, 2, 3, 4)]
    done = begin(one, 8, Mark(7, T0 + AHEAD, sequence=5), waiting, T0)
    assert done.taken == tuple(waiting[3:])  # the one that waits for its jitter stays
    assert scheduled_times(done.plan)[0] == T0 + MARGIN + SECOND
    assert (done.mark.revision, done.mark.sequence, done.mark.planned_until) == (8, 5, T0 + AHEAD)


def test_a_pause_takes_back_what_is_due_in_more_than_two_seconds() -> None:
    waiting = [*waits(-5, jitter=30), *waits(1, 2, 3)]
    done = begin(schedule(every=SECOND, paused=True), 8, Mark(7, T0 + AHEAD), waiting, T0)
    assert done.taken == (waiting[0], waiting[3])
    assert (done.plan.ticks, done.mark.revision, done.mark.planned_until) == ((), 8, T0 + MARGIN)


def test_an_hour_of_pause_is_neither_caught_up_nor_missed() -> None:
    now = T0 + timedelta(hours=1)
    resumed = schedule(every=SECOND, misfire="all").over(schedule(every=SECOND, paused=True), now)
    done = begin(resumed, 9, Mark(8, T0 + MARGIN), [], now)
    assert (scheduled_times(done.plan)[0], done.mark.missed) == (now + SECOND, 0)


def test_another_rule_has_no_slot_before_it_was_made() -> None:
    hourly, now = schedule(every=timedelta(hours=1)), T0 + timedelta(minutes=30)
    done = begin(schedule(every=SECOND).over(hourly, now), 8, Mark(7, T0), [], now)
    assert (scheduled_times(done.plan)[0], done.mark.missed) == (now + SECOND, 0)
    # New arguments do not restart the schedule: unplanned times are still caught up on.
    later = T0 + timedelta(hours=2, minutes=30)
    done = begin(schedule(every=timedelta(hours=1), args={"n": 1}).over(hourly, later), 8, Mark(7, T0), [], later)
    assert (scheduled_times(done.plan), done.mark.missed) == ([T0 + timedelta(hours=2)], 1)


def test_what_was_planned_before_a_mark_that_cannot_be_read_or_is_gone_is_not_planned_again() -> None:
    one = schedule(every=SECOND, misfire="all", since=T0 - MINUTE)
    for mark in (Mark(sequence=9), Mark()):
        done = begin(one, 8, mark, waits(1, 2, 3), T0)
        assert (scheduled_times(done.plan)[0], len(done.taken), done.mark.missed) == (T0 + MARGIN + SECOND, 1, 0)
    assert (
        scheduled_times(begin(one, 8, Mark(), [], T0).plan)[0] == T0 - MINUTE + SECOND
    )  # never planned: nothing is lost


def test_more_ticks_than_one_batch_takes_back_need_another() -> None:
    waiting = waits(*(-number for number in range(MAX_REMOVED + 1)), jitter=10_000)
    first = end("s", Mark(7, T0), waiting, T0, "")
    assert (len(first.taken), first.mark.revision, first.mark.moved_to) == (MAX_REMOVED, 7, None)
    second = end("s", first.mark, waiting[MAX_REMOVED:], T0, "")
    assert (len(second.taken), second.mark.moved_to) == (1, "")


def test_the_last_slot_is_known_between_the_looks_of_the_leader() -> None:
    one = schedule(every=10 * SECOND)
    mark = step(one, Mark(), plan(one, Mark(), T0), T0).mark._replace(written_at=T0)
    assert last_scheduled_time(one, mark, T0 + timedelta(seconds=5)) is None
    assert last_scheduled_time(one, mark, T0 + timedelta(seconds=25)) == T0 + timedelta(seconds=20)
    back = T0 + timedelta(hours=1, seconds=5)
    skipped = schedule(every=10 * SECOND, misfire="skip", end=T0 + timedelta(minutes=2))
    mark = step(skipped, mark, plan(skipped, mark, back), back).mark._replace(written_at=back)
    assert (last_scheduled_time(skipped, mark, back), mark.missed) == (T0 + MINUTE, 6)


class World:
    """The streams of some queues with the ticks and marks of one schedule, and a clock."""

    def __init__(self) -> None:
        self.now = T0
        self.marks: dict[str, Mark] = {}
        self.later: dict[tuple[str, datetime], PlacedTick] = {}
        self.fired: Counter[datetime] = Counter()
        self.sequence = 0
        self.revision = 0

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        for key in [key for key, tick in self.later.items() if tick.due <= self.now]:
            self.fired[self.later.pop(key).scheduled_time] += 1

    def waiting(self, queue: str) -> list[PlacedTick]:
        return [tick for (where, _), tick in self.later.items() if where == queue]

    def store(self, queue: str, one: Step) -> bool:
        """Apply a batch like the server: completely or not at all."""
        if self.marks.get(queue, Mark()).sequence != one.mark.sequence:
            return False
        if any(self.later.get((queue, tick.scheduled_time)) != tick for tick in one.taken):
            return False
        for tick in one.taken:
            del self.later[queue, tick.scheduled_time]
        for scheduled_time, due in one.plan.ticks:
            assert (queue, scheduled_time) not in self.later, "placed on top of another"
            self.sequence += 1
            self.later[queue, scheduled_time] = PlacedTick(scheduled_time, due, "", self.sequence)
        self.sequence += 1
        self.marks[queue] = one.mark._replace(sequence=self.sequence, written_at=self.now)
        return True

    def steps(self, one: Schedule | None) -> list[tuple[str, Step]]:
        """The batches of a leader: first for the queues that the schedule has left, then for its own."""
        home = one.queue if one is not None else ""
        left = {queue: mark for queue, mark in self.marks.items() if queue != home}
        at_once = one is None or one.paused
        found = [
            (queue, end("s", mark, self.waiting(queue), self.now, home, at_once=at_once))
            for queue, mark in to_end(self.marks, home).items()
        ]
        left |= {queue: done.mark for queue, done in found}
        if one is not None:
            mark = self.marks.get(home, Mark())
            if mark.revision != self.revision or mark.moved_to is not None:
                begun = begin(one, self.revision, mark, self.waiting(home), self.now, left.values())
                found.append((home, begun))
            elif (todo := plan(one, mark, self.now)).upto is not None:
                found.append((home, step(one, mark, todo, self.now)))
        return found

    def lead(self, one: Schedule | None, batches: int = 9) -> None:
        for queue, done in self.steps(one)[:batches]:
            self.store(queue, done)


@pytest.mark.parametrize("before", ["a", "ba", "bca", "bcba"])
@pytest.mark.parametrize("batches", [1, 2, 9])
@pytest.mark.parametrize("to", ["c", "a", None])
def test_a_leader_that_has_ended_one_queue_cannot_begin_in_the_next_when_the_schedule_has_moved_on(
    before: str, batches: int, to: str | None
) -> None:
    """The schedule was in the queues of `before`, and one leader is about to plan in b. Then the schedule moves to
    c, back to a, or is deleted, and its leader dies after some batches. No tick is lost.
    """
    world, one = World(), schedule(every=SECOND, misfire="all")
    for queue in before:
        one, world.revision = one.model_copy(update={"queue": queue}), world.revision + 1
        world.lead(one)
        world.advance(5)
    one, world.revision = one.model_copy(update={"queue": "b"}), world.revision + 1
    *ended, (where, begun) = world.steps(one)
    assert where == "b"
    assert all(world.store(*step) for step in ended)
    world.advance(20)
    there, world.revision = one.model_copy(update={"queue": to}) if to else None, world.revision + 1
    world.lead(there, batches)
    world.lead(there)
    assert not world.store("b", begun)
    last = world.now
    world.advance(120)
    assert max(world.fired.values()) == 1
    assert (
        there is None
        or [scheduled_time for scheduled_time in between(there, T0, last) if scheduled_time not in world.fired]
        == []
    )


MOVES = st.tuples(
    st.sampled_from(["edit", "move", "off", "look", "die", "two", "late", "broken"]),
    st.floats(0.0, 3.0) | st.floats(0.0, 70.0),
    st.sampled_from("abc"),
)


@given(st.lists(MOVES, min_size=1, max_size=40), st.integers(1, 20), st.sampled_from([0, 7]), st.booleans())
@example([("move", 0.0, "b"), ("broken", 47.0, "a"), ("broken", 56.0, "a")], 1, 0, False)
def test_no_change_loses_or_doubles_a_scheduled_time_in_any_queue_under_any_leader(
    moves: list[tuple[str, float, str]], every: int, jitter: int, deletes: bool
) -> None:
    """Edits, moves, pauses and deletions, with leaders that die between two batches, two leaders that act at the
    same time, and a leader that carries out an old decision.
    """
    world = World()
    common = {"every": timedelta(seconds=every), "jitter": timedelta(seconds=jitter), "misfire": "all"}
    one, world.revision = schedule(**common, queue="a"), 1
    world.lead(one)
    on_since, wanted, allowed = T0, Counter[datetime](), Counter[datetime]()
    old: list[tuple[str, Step]] = []
    unled_s = 0.0
    for kind, seconds, queue in moves:
        steps = world.steps(one)
        old = [*old, *steps][-8:]
        if kind in ("edit", "move", "broken"):
            world.revision += 1
            one = one.model_copy(update={"queue": one.queue if kind == "edit" else queue})
            old += world.steps(one)
        elif kind == "off":
            world.lead(one)  # so that nothing is left unplanned
            off = None if deletes else one.model_copy(update={"paused": True})
            wanted.update(between(one, on_since, world.now - timedelta(seconds=jitter)))
            allowed.update(between(one, on_since, world.now + MARGIN))
            world.revision += 1
            world.lead(off)
            world.advance(seconds)
            on_since = world.now + MARGIN  # ticks within two seconds of the pause still run
            one, world.revision = one.over(off, world.now), world.revision + 1
            allowed.update(between(one, world.now, on_since))
        elif kind == "late":
            world.store(*old[int(seconds) % len(old)]) if old else None
        if kind == "two":
            for where, done in [*steps, *steps]:
                world.store(where, done)
        else:
            # Of the times that no leader planned, the newest 100 are caught up on: some leader must come through.
            broken = kind in ("die", "broken") and unled_s + seconds < 60 * every
            unled_s = unled_s + seconds if broken else 0.0
            world.lead(one, 1 if broken else 9)
        world.advance(seconds)
    world.lead(one)
    world.lead(one)
    last = world.now
    world.advance(MARGIN.total_seconds() + jitter)
    wanted.update(between(one, on_since, last))
    allowed.update(between(one, on_since, world.now))
    assert max(world.fired.values(), default=1) == 1
    assert [scheduled_time for scheduled_time in wanted if scheduled_time not in world.fired] == []
    assert [scheduled_time for scheduled_time in world.fired if scheduled_time not in allowed] == []
    assert all(mark.missed == 0 for mark in world.marks.values())


def between(one: Schedule, since: datetime, until: datetime) -> list[datetime]:
    found, scheduled_time = [], one.after(since)
    while scheduled_time is not None and scheduled_time <= until:
        found.append(scheduled_time)
        scheduled_time = one.after(scheduled_time)
    return found
