"""Plan the ticks of a schedule from its definition, its marks, its placed ticks and the time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from jetjobs.model.schedule.schedule import EPOCH, Schedule

AHEAD = timedelta(seconds=60)
"""Ticks are placed this far ahead: the server fires them even if the leader changes."""
GRACE = timedelta(seconds=10)
"""A scheduled time planned up to this late is not missed: its tick runs under any misfire policy."""
MARGIN = timedelta(seconds=2)
"""A tick this close to its time may already be firing: it is neither removed nor placed again."""
MAX_CATCH_UP = 100
"""With misfire="all", at most this many of the newest missed times are caught up on."""
MAX_COUNTED = 1000
"""Missed times are counted up to this: a schedule of every second may have missed a million."""
MAX_REMOVED = 900
"""Ticks that one batch removes: the server accepts a thousand messages per batch."""
_INSTANT = timedelta(microseconds=1)


class Mark(NamedTuple):
    """How far a schedule is planned in a queue, as stored in the work stream. `Mark()` means none."""

    revision: int = 0
    """Revision of the definition that it was written for; 0 also if the mark cannot be read."""
    planned_until: datetime | None = None
    """Scheduled times up to this one are placed or skipped."""
    last: datetime | None = None
    """The newest placed scheduled time that was in the past when the mark was written."""
    missed: int = 0
    """How many scheduled times were skipped so far because no leader planned them in time."""
    moved_to: str | None = None
    """Set if nothing is planned here any more: the new queue of the schedule, or empty if it was deleted."""

    sequence: int = 0
    """The sequence that the next mark must replace; 0 for none."""
    written_at: datetime = EPOCH


class Tick(NamedTuple):
    """One scheduled time of a schedule, and when its job is due."""

    scheduled_time: datetime
    due: datetime


class PlacedTick(NamedTuple):
    """A tick that was placed and has not fired."""

    scheduled_time: datetime
    due: datetime
    subject: str
    sequence: int


class Plan(NamedTuple):
    """The ticks to place for one schedule."""

    ticks: tuple[Tick, ...] = ()
    upto: datetime | None = None
    """The last scheduled time that this plan places or skips; None if it does neither."""
    missed: int = 0
    """How many scheduled times are skipped, counted up to a limit."""
    passed: datetime | None = None
    """The last scheduled time that is skipped."""
    following: datetime | None = None
    """The first scheduled time after this plan; None if there is none."""
    look_at: datetime | None = None
    """When to plan again; None if there are no more scheduled times."""

    def first(self, number: int) -> Plan:
        """The part of the plan with the first `number` ticks. The rest is planned right after it."""
        if len(self.ticks) <= number:
            return self
        last = self.ticks[number - 1].scheduled_time
        return self._replace(
            ticks=self.ticks[:number], upto=last, following=self.ticks[number].scheduled_time, look_at=EPOCH
        )


class Step(NamedTuple):
    """What one batch does for one schedule in one queue: remove ticks, place others, write the mark."""

    name: str
    mark: Mark
    """The mark to write. It replaces the mark with its sequence."""
    plan: Plan = Plan()
    taken: tuple[PlacedTick, ...] = ()
    schedule: Schedule | None = None
    """The schedule whose ticks are placed; None if none are placed."""


def plan(schedule: Schedule, mark: Mark, now: datetime) -> Plan:
    """The ticks that are due now or soon and were not planned before."""
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
    """The time up to which everything is planned."""
    return max(schedule.since, mark.planned_until or schedule.since)


def step(schedule: Schedule, mark: Mark, todo: Plan, now: datetime) -> Step:
    """The step that carries out a plan made from that mark."""
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
    """Apply a new definition to a queue, with at most `most` ticks at once.

    `waiting` must have been read after the mark and before `now`, so that no tick has fired unnoticed. `others`
    are the marks of the schedule in other queues: planning continues from the furthest of them.
    """
    if schedule.paused:
        return _stop(schedule.name, mark, waiting, now, mark._replace(revision=revision, moved_to=None), True)
    cut = now + MARGIN
    left = max(others, key=_planned, default=Mark())
    # The schedule was planned here, but it is unknown how far.
    lost = mark.planned_until is None and (mark.sequence or (waiting and not left.sequence))
    base = max(schedule.since, cut if lost else min(_planned(mark), cut), _planned(left))
    if _planned(left) > _planned(mark):
        mark = mark._replace(last=left.last, missed=left.missed)
    aligned = mark._replace(revision=revision, planned_until=base, moved_to=None)
    taken = tuple(tick for tick in waiting if tick.scheduled_time > cut)
    return step(schedule, aligned, plan(schedule, aligned, now).first(most), now)._replace(taken=taken)


def to_end(marks: Mapping[str, Mark], home: str) -> dict[str, Mark]:
    """The marks in other queues that do not yet point to `home` (empty if the schedule was deleted).

    Queues that the schedule was to move to earlier come first: another leader may be about to plan there, and
    only a new mark prevents that. If such a queue has no mark, nothing was planned there: the new one continues
    from the mark that names the queue.
    """
    named = [mark for mark in sorted(marks.values(), key=_planned) if mark.moved_to and mark.moved_to != home]
    first = {mark.moved_to: marks.get(mark.moved_to, mark._replace(sequence=0)) for mark in named if mark.moved_to}
    return first | {queue: mark for queue, mark in marks.items() if home not in (queue, mark.moved_to)}


def end(
    name: str, mark: Mark, waiting: Sequence[PlacedTick], now: datetime, moved_to: str, *, at_once: bool = False
) -> Step:
    """Stop planning in a queue: the schedule has moved to another queue, or was deleted (empty).

    With `at_once`, ticks that only wait for the end of their jitter are removed too.
    """
    return _stop(name, mark, waiting, now, mark._replace(moved_to=moved_to), at_once or not moved_to)


def _stop(name: str, mark: Mark, waiting: Sequence[PlacedTick], now: datetime, ended: Mark, at_once: bool) -> Step:
    cut = now + MARGIN
    until = min(mark.planned_until or cut, cut)
    taken = tuple(tick for tick in waiting if (tick.due if at_once else tick.scheduled_time) > cut)
    if len(taken) > MAX_REMOVED:  # the rest follows in another batch; until then the mark stays as it is
        return Step(name, mark._replace(planned_until=until), taken=taken[:MAX_REMOVED])
    return Step(name, ended._replace(planned_until=until), taken=taken)


def last_scheduled_time(schedule: Schedule, mark: Mark, now: datetime) -> datetime | None:
    """The scheduled time of the newest tick in the past; None if there is none. Right after a change of the rule
    it may be an older one.
    """
    # A scheduled time after the mark was written, or shortly before, was not skipped.
    scheduled_time = schedule.before(min(now, mark.planned_until)) if mark.planned_until is not None else None
    if scheduled_time is not None and scheduled_time > max(schedule.since, mark.written_at - GRACE):
        return scheduled_time
    return mark.last


def _planned(mark: Mark) -> datetime:
    return mark.planned_until or EPOCH


class _Overdue(NamedTuple):
    """The scheduled times that are due and not planned, by the misfire policy."""

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
    """The newest scheduled times after `base` and up to `now`, at most `most`, oldest first."""
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
    """A number from 0 to 1 derived from the name, so that schedules are not all planned at the same moment."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
