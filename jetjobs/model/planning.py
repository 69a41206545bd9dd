"""Which ticks of a schedule are to be placed: a pure function of its definition, how far it got, and the time."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from jetjobs.model.schedule import MAX_CATCH_UP, Schedule

AHEAD = timedelta(seconds=60)
"""Ticks are placed so far ahead: the server fires them, whoever leads by then."""
GRACE = timedelta(seconds=10)
"""A slot that is planned so late is not missed yet: its tick runs whatever the misfire policy."""


MARGIN = timedelta(seconds=2)
"""So long before it is due a tick may already be on its way: it is neither taken back nor placed anew."""

MOST_COUNTED = 1000
"""Of the slots that were missed: a schedule of every second may have missed a million."""
_INSTANT = timedelta(microseconds=1)


class Progress(NamedTuple):
    """How far a schedule has been planned."""

    slot: datetime
    """The last slot that was placed, or passed over."""
    generation: str
    missed: int = 0
    """Slots that were passed over so far, because nobody could plan them in time."""
    passed: datetime | None = None
    """The last of those."""
    idle: bool = False
    """Nothing is planned for this generation: it is paused, or no more."""
    since: datetime | None = None
    """Slots up to here are those of the generations before this one."""


class Tick(NamedTuple):
    """One slot of a schedule, and when its job is to run."""

    slot: datetime
    due: datetime


class Plan(NamedTuple):
    """What is to be done for one schedule."""

    ticks: tuple[Tick, ...] = ()
    upto: datetime | None = None
    """The last slot this plan settles, placed or passed over; None when it settles none."""
    missed: int = 0
    """How many are passed over; counted up to a limit."""
    passed: datetime | None = None
    """The last slot that is passed over."""
    following: datetime | None = None
    """The first slot that is not settled; None when there will be none."""
    look_at: datetime | None = None
    """When to plan again; None when there will be no more slots."""

    def first(self, number: int) -> Plan:
        """The part of it that settles so many ticks; the rest is to be planned at once."""
        if len(self.ticks) <= number:
            return self
        last = self.ticks[number - 1].slot
        return self._replace(ticks=self.ticks[:number], upto=last, following=self.ticks[number].slot, look_at=last)


def plan(schedule: Schedule, progress: Progress | None, now: datetime) -> Plan:
    """All that is due or soon will be, and was not settled before."""
    if schedule.paused:
        return Plan()
    base = settled(schedule, progress)
    overdue = _Overdue.of(schedule, base, now)
    coming = [*_slots(schedule, max(base, now), now + AHEAD)]
    ticks = tuple(Tick(slot, schedule.due(slot)) for slot in [*overdue.kept, *coming])
    upto = coming[-1] if coming else overdue.upto
    following = schedule.after(upto or max(base, now))
    look_at = following and following - AHEAD / 2 - AHEAD / 4 * _share(schedule.name)
    return Plan(ticks, upto, overdue.missed, overdue.passed, following, look_at)


def settled(schedule: Schedule, progress: Progress | None) -> datetime:
    """Up to where nothing is left to plan."""
    if progress is not None and progress.generation == schedule.generation:
        return progress.slot
    return schedule.since


class Change(NamedTuple):
    """How the generations of a schedule before this one end in a queue, and it begins."""

    since: datetime
    """Slots up to here are those of the generations before, slots after it are its own."""
    closing: tuple[Tick, ...] = ()
    """Of the definition before: slots that are its own, and that nobody had planned."""
    opening: Plan = Plan()
    missed: int = 0
    """Slots that were passed over in all, so far."""
    passed: datetime | None = None
    """The last of those."""


def change(
    schedule: Schedule,
    before: Schedule | None,
    progress: Progress | None,
    now: datetime,
    after: datetime | None = None,
    *,
    gone: bool = False,
) -> Change:
    """From `before`, which had come as far as `progress` says, to `schedule`.

    `after` is up to where the slots are those of another queue, which it has left; `gone`: it leaves this one.
    """
    missed, passed = (progress.missed, progress.passed) if progress is not None else (0, None)
    live = progress is not None and not progress.idle
    closing = Plan()
    if live and before is not None and progress is not None and before.generation == progress.generation:
        closing = plan(before, progress, now)
    if schedule.paused:  # at once: all that has not fired is taken back, and what nobody had planned is not run
        late = [tick.slot for tick in closing.ticks if tick.slot <= now]
        passed = late[-1] if late else closing.passed or passed
        return Change(now, missed=missed + closing.missed + len(late), passed=passed)
    since = now + MARGIN if live else after or _begun(schedule, now)
    for other in (after, progress.since if progress is not None else None):
        if other is not None and since < other <= now + AHEAD:  # what is further ahead was written by hand
            since = other
    opening = Plan() if gone else plan(schedule, Progress(since, schedule.generation), now)
    return Change(
        since,
        tuple(tick for tick in closing.ticks if tick.slot <= since),
        opening,
        missed + closing.missed + opening.missed,
        opening.passed or closing.passed or passed,
    )


def _begun(schedule: Schedule, now: datetime) -> datetime:
    """From when on there is nothing to be found of what was planned: from its definition, if that is new. Older
    than that, what had been planned is not known any more, and nothing is run again."""
    return schedule.since if timedelta(0) <= now - schedule.since <= MARGIN else now


def last_slot(schedule: Schedule, progress: Progress | None, now: datetime) -> datetime | None:
    """Slot of the newest tick that is due; None when there was none, or it was passed over."""
    own = progress is not None and progress.generation == schedule.generation
    last = schedule.before(min(now, settled(schedule, progress)))
    if last is not None and last > (progress.since if own and progress and progress.since else schedule.since):
        return None if progress and progress.passed and last <= progress.passed else last
    if own and progress and progress.since and (old := schedule.predecessor) is not None:
        # The last slots of the definition before fire after this one was written.
        last = old.before(min(now, progress.since))
        if last is not None and last > schedule.since:
            return last
    return schedule.last


class _Overdue(NamedTuple):
    """The slots that are due and not settled, by the misfire policy."""

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
            return cls([*_slots(schedule, base, now)], upto=last)
        if schedule.misfire == "skip":
            kept = _newest(schedule, max(base, now - GRACE - _INSTANT), now, MAX_CATCH_UP)
        else:
            kept = _newest(schedule, base, now, schedule.misfire_limit if schedule.misfire == "all" else 1)
        missed = itertools.takewhile(lambda slot: not kept or slot < kept[0], _slots(schedule, base, now))
        count = sum(1 for _ in itertools.islice(missed, MOST_COUNTED))
        passed = schedule.before(kept[0] - _INSTANT) if kept else last
        return cls(kept, count, passed if count else None, last)


def _newest(schedule: Schedule, base: datetime, now: datetime, most: int) -> list[datetime]:
    """Up to `most` slots after `base`, the newest by `now`, oldest first."""
    found: list[datetime] = []
    slot = schedule.before(now)
    while slot is not None and slot > base and len(found) < most:
        found.append(slot)
        slot = schedule.before(slot - _INSTANT)
    return found[::-1]


def _slots(schedule: Schedule, base: datetime, upto: datetime) -> Iterator[datetime]:
    slot = schedule.after(base)
    while slot is not None and slot <= upto:
        yield slot
        slot = schedule.after(slot)


def _share(name: str) -> float:
    """From 0 to 1, by the name: so that not all schedules are looked at in the same moment."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) / 2**32
