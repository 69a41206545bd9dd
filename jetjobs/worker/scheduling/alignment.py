"""Bring the queues of one schedule in line with its definition: an edit, a pause, a move, a deletion takes effect.

The marks are read first, then the definition, then the ticks, then the time. So the definition is not older than
the one that a mark was written for, and no tick that is due after that time has fired unseen. The batch expects
the marks and ticks that were read, and is refused whole if one of them has changed.

A change of queue is two batches in two streams: the old queue is ended first, and its mark says up to when the
scheduled times are its own; the new queue goes on from there. The old mark stays for a minute, so that a leader
with an old view is refused.

A queue that does not answer blocks only the schedules that are there or go there: where a mark is known to be. It
is asked again a little later.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.jetstream.schedules.ticks import portion
from jetjobs.jetstream.topology import list_queues
from jetjobs.model.errors import BrokerError, BrokerUnavailable, TopologyMissing
from jetjobs.model.schedule.plan import Mark, Step, begin, end, last_scheduled_time, to_end
from jetjobs.model.schedule.schedule import EPOCH, Schedule

KEPT = timedelta(seconds=60)
SILENT_S = 5.0
"""For how long a queue that did not answer is not asked again."""


@dataclass(slots=True)
class Known:
    """A schedule as the leader remembers it."""

    schedule: Schedule
    revision: int
    """Of its definition; 0 while it cannot be planned."""
    mark: Mark
    look_at: datetime | None = EPOCH
    """When to plan it again; None for never."""
    following: datetime | None = None
    """The first scheduled time that is not settled."""
    stray: bool = False
    """Whether a mark of it was seen in another queue, so that it is to be looked at."""


class Aligned(NamedTuple):
    """A schedule whose other queues are in line."""

    definition: Definition | None
    """None for one that is deleted."""
    mark: Mark = Mark()
    """As it stands in its own queue."""
    step: Step | None = None
    """What brings that in line, if it is not."""


class Alignment:
    """Of one leader. `leads` is asked before every write."""

    def __init__(self, jetstream: JetStreamClient, leads: Callable[[], int]) -> None:
        self._jetstream = jetstream
        self._ticks = jetstream.ticks
        self._leads = leads
        self._marked: dict[str, set[str]] = {}
        """Which schedules had a mark in a queue when it could be read last."""
        self._silent: dict[str, tuple[float, BrokerError]] = {}
        """Queues that did not answer: until when they are not asked, and why."""

    async def all_marks(self) -> dict[str, dict[str, Mark]]:
        """By queue and schedule, of the queues that can be read."""
        queues = await list_queues(self._jetstream.connection, self._jetstream.names)
        self._silent.clear()
        found, failed = await self._ticks.all_marks(queues)
        self._note(failed)
        marked = self._marked | {queue: {*marks} for queue, marks in found.items()}
        self._marked = {queue: marked.get(queue, set()) for queue in queues}
        return found

    async def _marks_of(self, name: str, queues: list[str]) -> tuple[dict[str, Mark], dict[str, BrokerError]]:
        silent = {queue: why for queue, (until, why) in self._silent.items() if until > time.monotonic()}
        marks, failed = await self._ticks.marks_of(name, [queue for queue in queues if queue not in silent])
        self._note(failed)
        return marks, failed | silent

    def _note(self, failed: dict[str, BrokerError]) -> None:
        for queue, error in failed.items():
            if not self._jetstream.connection.connected:
                raise error
            if isinstance(error, BrokerUnavailable):
                self._silent[queue] = (time.monotonic() + SILENT_S, error)

    def _missing(
        self, name: str, home: str, known: Known | None, marks: dict[str, Mark], failed: dict[str, BrokerError]
    ) -> BrokerError | None:
        """Why a queue cannot be read where a mark of it is, or may be."""
        there = {home, *(mark.moved_to for mark in marks.values())}
        there |= {queue for queue, names in self._marked.items() if name in names}
        if known is not None:
            there.add(known.schedule.queue)
        return next((error for queue, error in failed.items() if queue in there), None)

    async def align(self, name: str, known: Known | None) -> Aligned | None:
        """`known` is what is remembered of it. None when another leader was first, or there is more to do: look
        again. BrokerError when its queue is not there, or one that may hold a mark of it is out of reach."""
        queues = await list_queues(self._jetstream.connection, self._jetstream.names)
        marks, failed = await self._marks_of(name, queues)
        definition = await self._jetstream.schedules.get(name)
        if definition is not None and definition.deleted:
            definition = None
        schedule = definition.schedule if definition is not None else None
        if definition is not None and schedule is None:
            return Aligned(definition)  # we cannot read it: a newer version may have written it
        home = schedule.queue if schedule is not None else ""
        if home and home not in queues:
            raise TopologyMissing(f"there is no queue {home!r}", hint="jetjobs setup apply")
        missing = failed.get(home) or self._missing(name, home, known, marks, failed)
        if missing is not None and schedule is not None and (not schedule.paused or home in failed):
            raise missing
        left = {queue: mark for queue, mark in marks.items() if queue != home}
        stale = to_end(marks, home)
        if not await self._end_others(name, schedule, stale, left, [q for q in queues if q not in failed], known):
            return None
        if missing is not None and schedule is None:
            raise missing  # it is deleted, but not there yet
        mark = marks.get(home, Mark())
        if definition is None or schedule is None or (mark.revision, mark.moved_to) == (definition.revision, None):
            await self._forget_old(left)
            return Aligned(definition, mark)
        if not mark.sequence and not left and known is not None:
            mark = known.mark._replace(revision=0, sequence=0)  # it is lost, but we know what it said
        waiting, now = await self._ticks.waiting(home, name)
        informed = _informed(mark, known, now)
        step = begin(schedule, definition.revision, informed, waiting, now, left.values(), portion(schedule))
        return Aligned(definition, mark, step)

    async def _end_others(
        self,
        name: str,
        schedule: Schedule | None,
        marks: dict[str, Mark],
        left: dict[str, Mark],
        queues: list[str],
        known: Known | None,
    ) -> bool:
        """End what is planned in other queues than its own; their marks as they stand then are put into `left`."""
        home, at_once = (schedule.queue, schedule.paused) if schedule is not None else ("", True)
        stale = {queue: mark for queue, mark in marks.items() if queue in queues}
        # Ticks may wait for the end of their jitter where nothing else is left of it.
        swept = {queue: left.get(queue, Mark(moved_to=home)) for queue in queues if queue not in stale and at_once}
        for queue, mark in (stale | swept).items():
            if queue == home:
                continue
            waiting, now = await self._ticks.waiting(queue, name)
            one = end(name, _informed(mark, known, now), waiting, now, home, at_once=at_once)
            if queue in swept and not one.taken:
                continue
            stored = await self._ticks.store(queue, [one], now) if self._leads() else None
            if stored is None or stored[0].moved_to is None:
                return False
            left[queue] = stored[0]
        return True

    async def _forget_old(self, left: dict[str, Mark]) -> None:
        now = await self._jetstream.server_clock.now()
        for queue, mark in left.items():
            if mark.planned_until is not None and now - mark.planned_until > KEPT:
                await self._ticks.forget(queue, mark)


def _informed(mark: Mark, known: Known | None, now: datetime) -> Mark:
    """The mark with the last scheduled time by the definition that it was written for, if we know that."""
    if known is None or not mark.revision or known.mark.revision != mark.revision:
        return mark
    return mark._replace(last=last_scheduled_time(known.schedule, mark, now))
