"""What the leader does for a schedule: a pure function of its definition, its marks, its ticks, and the time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from jetjobs.model.schedule.schedule import EPOCH, Schedule

AHEAD = timedelta(seconds=60)
"""Ticks are placed this far ahead: the server fires them, whichever worker leads by then."""
GRACE = timedelta(seconds=10)
"""A scheduled time that is planned this late is not missed yet: its tick runs whatever the misfire policy."""
MARGIN = timedelta(seconds=2)
"""A tick this close to its time may already be firing: it is neither taken back nor placed again."""
MAX_CATCH_UP = 100
"""With misfire="all": the newest scheduled times that were missed, at most this many."""
MAX_COUNTED = 1000
"""Of the scheduled times that were missed: a schedule of every second may have missed a million."""
MAX_REMOVED = 900
"""Ticks that one batch takes back: the server's limit is a thousand messages."""
_INSTANT = timedelta(microseconds=1)


class Mark(NamedTuple):
    """How far a schedule is planned in a queue, as the mark in its stream says. `Mark()`: there is none."""

    revision: int = 0
    """Of the definition that it was written for; 0 also where the mark cannot be read."""
    planned_until: datetime | None = None
    """Slots up to here are settled: placed, or passed over."""
    last: datetime | None = None
    """The newest scheduled time that was placed and had come when the mark was written."""
    missed: int = 0
    """Slots that were passed over so far, because nobody could plan them in time."""
    moved_to: str | None = None
    """Set where nothing is planned any more: the schedule's new queue, or empty for one that is deleted."""

    sequence: int = 0
    """What the next mark must expect; 0 for none."""
    written_at: datetime = EPOCH


class Tick(NamedTuple):
    """One scheduled time of a schedule, and when its job is to run."""

    scheduled_time: datetime
    due: datetime


class PlacedTick(NamedTuple):
    """A tick that was placed and has not fired."""

    scheduled_time: datetime
    due: datetime
    subject: str
    sequence: int


class Plan(NamedTuple):
    """What is to be done for one schedule."""

    ticks: tuple[Tick, ...] = ()
    upto: datetime | None = None
    """The last scheduled time this plan settles, placed or passed over; None when it settles none."""
    missed: int = 0
    """How many are passed over; counted up to a limit."""
    passed: datetime | None = None
    """The last scheduled time that is passed over."""
    following: datetime | None = None
    """The first scheduled time that is not settled; None when there will be none."""
    look_at: datetime | None = None
    """When to plan again; None when there will be no more scheduled times."""

    def first(self, number: int) -> Plan:
        """The part of it that settles so many ticks; the rest is to be planned at once."""
        if len(self.ticks) <= number:
            return self
        last = self.ticks[number - 1].scheduled_time
        return self._replace(
            ticks=self.ticks[:number], upto=last, following=self.ticks[number].scheduled_time, look_at=EPOCH
        )


class Step(NamedTuple):
    """What one batch does for one schedule in one queue: take ticks back, place others, write the mark."""

    name: str
    mark: Mark
    """The mark to write, over the one of its sequence."""
    plan: Plan = Plan()
    taken: tuple[PlacedTick, ...] = ()
    schedule: Schedule | None = None
    """Whose ticks are placed; None where none are."""


def plan(schedule: Schedule, mark: Mark, now: datetime) -> Plan:
    """All that is due or soon will be, and was not settled before."""
    if schedule.paused:
        return Plan()
    base = settled(schedule, mark)
    overdue = _Overdue.of(schedule, base, now)
    coming = [*_times_between(schedule, max(base, now), now + AHEAD)]
    ticks = tuple(
        Tick(scheduled_time, schedule.due(scheduled_time)) for scheduled_time in [*overdue.kept, *coming]
    )
    upto = coming[-1] if coming else overdue.upto
    following = schedule.after(upto or max(base, now))
    look_at = following and following - AHEAD / 2 - AHEAD / 4 * _share(schedule.name)
    return Plan(ticks, upto, overdue.missed, overdue.passed, following, look_at)


def settled(schedule: Schedule, mark: Mark) -> datetime:
    """Up to where nothing is left to plan."""
    return max(schedule.since, mark.planned_until or schedule.since)


def step(schedule: Schedule, mark: Mark, todo: Plan, now: datetime) -> Step:
    """Carry out a plan over the mark that it was made from."""
    due = [tick.scheduled_time for tick in todo.ticks if tick.scheduled_time <= now]
    last = due[-1] if due else last_scheduled_time(schedule, mark, now)
    until, missed = todo.upto or mark.planned_until, mark.missed + todo.missed
    return Step(
        schedule.name, mark._replace(planned_until=until, last=last, missed=missed), todo, schedule=schedule
    )


def begin(
    schedule: Schedule,
    revision: int,
    mark: Mark,
    waiting: Sequence[PlacedTick],
    now: datetime,
    others: Iterable[Mark] = (),
    most: int = MAX_COUNTED,
) -> Step:
    """Bring a queue in line with a definition that its mark does not know, `most` ticks at once.

    `waiting` must have been read after the mark and before `now`, so that none of them has fired unseen. `others`
    are the marks that it left in other queues: it goes on from there.
    """
    if schedule.paused:
        return _stop(schedule.name, mark, waiting, now, mark._replace(revision=revision, moved_to=None), True)
    cut = now + MARGIN
    left = max(others, key=_planned, default=Mark())
    # It was planned here, but nobody knows how far.
    lost = mark.planned_until is None and (mark.sequence or (waiting and not left.sequence))
    base = max(schedule.since, cut if lost else min(_planned(mark), cut), _planned(left))
    if _planned(left) > _planned(mark):
        mark = mark._replace(last=left.last, missed=left.missed)
    aligned = mark._replace(revision=revision, planned_until=base, moved_to=None)
    taken = tuple(tick for tick in waiting if tick.scheduled_time > cut)
    return step(schedule, aligned, plan(schedule, aligned, now).first(most), now)._replace(taken=taken)


def to_end(marks: Mapping[str, Mark], home: str) -> dict[str, Mark]:
    """The marks in other queues that do not say yet that the schedule is in `home` (empty: that it is deleted).

    First those of queues that it was to move to before: another leader may be about to begin there, over the mark
    that stands there or none, and only a new mark refuses that. Where there is none, the new one goes on from the
    mark that names the queue: nothing was planned there.
    """
    named = [mark for mark in sorted(marks.values(), key=_planned) if mark.moved_to and mark.moved_to != home]
    first = {mark.moved_to: marks.get(mark.moved_to, mark._replace(sequence=0)) for mark in named if mark.moved_to}
    return first | {queue: mark for queue, mark in marks.items() if home not in (queue, mark.moved_to)}


def end(
    name: str, mark: Mark, waiting: Sequence[PlacedTick], now: datetime, moved_to: str, *, at_once: bool = False
) -> Step:
    """Plan no more in a queue: the schedule has moved to another, or is deleted (empty). `at_once`: ticks are
    taken back whose scheduled time has come too, while they wait for the end of their jitter."""
    return _stop(name, mark, waiting, now, mark._replace(moved_to=moved_to), at_once or not moved_to)


def _stop(name: str, mark: Mark, waiting: Sequence[PlacedTick], now: datetime, ended: Mark, at_once: bool) -> Step:
    cut = now + MARGIN
    until = min(mark.planned_until or cut, cut)
    taken = tuple(tick for tick in waiting if (tick.due if at_once else tick.scheduled_time) > cut)
    if len(taken) > MAX_REMOVED:  # the rest in another batch: until then the mark keeps what it says
        return Step(name, mark._replace(planned_until=until), taken=taken[:MAX_REMOVED])
    return Step(name, ended._replace(planned_until=until), taken=taken)


def last_scheduled_time(schedule: Schedule, mark: Mark, now: datetime) -> datetime | None:
    """Slot of the newest tick that has come; None when there was none. Right after a change of the rule it may be
    an older one."""
    # What came after the mark was written, or shortly before, was not passed over.
    scheduled_time = schedule.before(min(now, mark.planned_until)) if mark.planned_until is not None else None
    if scheduled_time is not None and scheduled_time > max(schedule.since, mark.written_at - GRACE):
        return scheduled_time
    return mark.last


def _planned(mark: Mark) -> datetime:
    return mark.planned_until or EPOCH


class _Overdue(NamedTuple):
    """The scheduled times that are due and not settled, by the misfire policy."""

    kept: list[datetime]
    missed: int = 0
    passed: datetime | None = None
    upto: datetime | None = None

    @classmethod
    def of(cls, schedule: Schedule, base: datetime, now: datetime) -> _Overdue:
        first, last = schedule.after(base), schedule.before(now)
        if first is None or last is None or first > now:
            return cls([])
        if now - first <= GRACE:
            return cls([*_times_between(schedule, base, now)], upto=last)
        if schedule.misfire == "skip":
            kept = _newest(schedule, max(base, now - GRACE - _INSTANT), now, MAX_CATCH_UP)
        else:
            kept = _newest(schedule, base, now, MAX_CATCH_UP if schedule.misfire == "all" else 1)
        missed = itertools.takewhile(
            lambda scheduled_time: not kept or scheduled_time < kept[0], _times_between(schedule, base, now)
        )
        count = sum(1 for _ in itertools.islice(missed, MAX_COUNTED))
        passed = schedule.before(kept[0] - _INSTANT) if kept else last
        return cls(kept, count, passed if count else None, last)


def _newest(schedule: Schedule, base: datetime, now: datetime, most: int) -> list[datetime]:
    """Up to `most` scheduled times after `base`, the newest by `now`, oldest first."""
    found: list[datetime] = []
    scheduled_time = schedule.before(now)
    while scheduled_time is not None and scheduled_time > base and len(found) < most:
        found.append(scheduled_time)
        scheduled_time = schedule.before(scheduled_time - _INSTANT)
    return found[::-1]


def _times_between(schedule: Schedule, base: datetime, upto: datetime) -> Iterator[datetime]:
    scheduled_time = schedule.after(base)
    while scheduled_time is not None and scheduled_time <= upto:
        yield scheduled_time
        scheduled_time = schedule.after(scheduled_time)


def _share(name: str) -> float:
    """From 0 to 1, by the name: so that not all schedules are looked at in the same moment."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
