"""Apply a changed schedule to its queues: after an edit, a pause, a move to another queue or a deletion.

The order of reads matters: marks, definition, ticks, time. The definition is then not older than the one a mark
was written for, and no tick that is due after that time has fired unseen. The batch expects the marks and ticks
that were read, and the server refuses all of it if one has changed.

A move is two batches in two streams. The old queue is ended first; its mark says up to which scheduled time the
queue was responsible, and the new queue continues from there. The old mark is kept for a minute, so that the
writes of a leader with stale data are refused.

A queue that does not answer blocks only schedules that have a mark in it or move to it. It is asked again soon.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.jetstream.schedules.ticks import portion
from jetjobs.model.errors import BrokerError, BrokerUnavailable, TopologyMissing
from jetjobs.model.schedule.plan import Mark, Step, begin, end, last_scheduled_time, to_end
from jetjobs.model.schedule.schedule import EPOCH, Schedule

KEEP_MARK = timedelta(seconds=60)
SILENT_S = 5.0
"""How long to wait before asking a silent queue again."""


@dataclass(slots=True)
class KnownSchedule:
    """A schedule as the leader remembers it."""

    schedule: Schedule
    revision: int
    """Revision of the definition; 0 while the schedule cannot be planned."""
    mark: Mark
    plan_at: datetime | None = EPOCH
    """When to plan it again; None for never."""
    following: datetime | None = None
    """The first scheduled time that is neither placed nor skipped."""
    has_stray_mark: bool = False
    """Whether another queue has a mark of it, so that it needs a check."""


class Reconciled(NamedTuple):
    """A schedule of which nothing is left in other queues than its own."""

    definition: Definition | None
    """None if it is deleted."""
    mark: Mark = Mark()
    """The mark in its own queue."""
    step: Step | None = None
    """What to store in its own queue, if that differs from the definition."""


class Reconciler:
    """Belongs to one leader. `leads` is called before every write."""

    def __init__(self, jetstream: JetStreamClient, leads: Callable[[], int]) -> None:
        self._jetstream = jetstream
        self._ticks = jetstream.ticks
        self._leads = leads
        self._marked: dict[str, set[str]] = {}
        """By queue: the schedules that had a mark in it when it was last read."""
        self._silent: dict[str, tuple[float, BrokerError]] = {}
        """Queues that did not answer: when to ask again, and the error."""

    async def all_marks(self) -> dict[str, dict[str, Mark]]:
        """By queue and schedule; without queues that cannot be read."""
        queues = await list_queues(self._jetstream.connection, self._jetstream.names)
        self._silent.clear()
        found, failed = await self._ticks.all_marks(queues)
        self._remember_silent(failed)
        marked = self._marked | {queue: {*marks} for queue, marks in found.items()}
        self._marked = {queue: marked.get(queue, set()) for queue in queues}
        return found

    async def _marks_of(self, name: str, queues: list[str]) -> tuple[dict[str, Mark], dict[str, BrokerError]]:
        silent = {queue: why for queue, (until, why) in self._silent.items() if until > time.monotonic()}
        marks, failed = await self._ticks.marks_of(name, [queue for queue in queues if queue not in silent])
        self._remember_silent(failed)
        return marks, failed | silent

    def _remember_silent(self, failed: dict[str, BrokerError]) -> None:
        for queue, error in failed.items():
            if not self._jetstream.connection.connected:
                raise error
            if isinstance(error, BrokerUnavailable):
                self._silent[queue] = (time.monotonic() + SILENT_S, error)

    def _blocking_error(
        self,
        name: str,
        home: str,
        known: KnownSchedule | None,
        marks: dict[str, Mark],
        failed: dict[str, BrokerError],
    ) -> BrokerError | None:
        """The error of an unreadable queue that has or may have a mark of the schedule."""
        relevant = {home, *(mark.moved_to for mark in marks.values())}
        relevant |= {queue for queue, names in self._marked.items() if name in names}
        if known is not None:
            relevant.add(known.schedule.queue)
        return next((error for queue, error in failed.items() if queue in relevant), None)

    async def reconcile(self, name: str, known: KnownSchedule | None) -> Reconciled | None:
        """Clean up other queues and find out what to store in the schedule's own. `known` is what is remembered.

        None if it must be checked again: another leader was faster, or there is more to do. BrokerError if its
        queue does not exist, or a queue that may have a mark of it does not answer.
        """
        queues = await list_queues(self._jetstream.connection, self._jetstream.names)
        marks, failed = await self._marks_of(name, queues)
        definition = await self._jetstream.schedules.get(name)
        if definition is not None and definition.deleted:
            definition = None
        schedule = definition.schedule if definition is not None else None
        if definition is not None and schedule is None:
            return Reconciled(definition)  # unreadable: a newer version may have written it
        home = schedule.queue if schedule is not None else ""
        if home and home not in queues:
            raise TopologyMissing(f"queue {home!r} does not exist", hint="jetjobs setup apply")
        blocked = failed.get(home) or self._blocking_error(name, home, known, marks, failed)
        if blocked is not None and schedule is not None and (not schedule.paused or home in failed):
            raise blocked
        others = {queue: mark for queue, mark in marks.items() if queue != home}
        stale = to_end(marks, home)
        if not await self._end_others(
            name, schedule, stale, others, [q for q in queues if q not in failed], known
        ):
            return None
        if blocked is not None and schedule is None:
            raise blocked  # deleted, but not yet in that queue
        mark = marks.get(home, Mark())
        if definition is None or schedule is None or (mark.revision, mark.moved_to) == (definition.revision, None):
            await self._forget_old(others)
            return Reconciled(definition, mark)
        if not mark.sequence and not others and known is not None:
            mark = known.mark._replace(revision=0, sequence=0)  # the mark is lost, but its content is known
        waiting, now = await self._ticks.waiting(home, name)
        latest = _with_last_time(mark, known, now)
        step = begin(schedule, definition.revision, latest, waiting, now, others.values(), portion(schedule))
        return Reconciled(definition, mark, step)

    async def _end_others(
        self,
        name: str,
        schedule: Schedule | None,
        marks: dict[str, Mark],
        others: dict[str, Mark],
        queues: list[str],
        known: KnownSchedule | None,
    ) -> bool:
        """End the schedule in all queues but its own, and put the resulting marks into `others`."""
        home, at_once = (schedule.queue, schedule.paused) if schedule is not None else ("", True)
        stale = {queue: mark for queue, mark in marks.items() if queue in queues}
        # Ticks may still wait for the end of their jitter in a queue that has nothing else of the schedule.
        leftover = {
            queue: others.get(queue, Mark(moved_to=home)) for queue in queues if queue not in stale and at_once
        }
        for queue, mark in (stale | leftover).items():
            if queue == home:
                continue
            waiting, now = await self._ticks.waiting(queue, name)
            one = end(name, _with_last_time(mark, known, now), waiting, now, home, at_once=at_once)
            if queue in leftover and not one.taken:
                continue
            stored = await self._ticks.store(queue, [one], now) if self._leads() else None
            if stored is None or stored[0].moved_to is None:
                return False
            others[queue] = stored[0]
        return True

    async def _forget_old(self, others: dict[str, Mark]) -> None:
        now = await self._jetstream.server_clock.now()
        for queue, mark in others.items():
            if mark.planned_until is not None and now - mark.planned_until > KEEP_MARK:
                await self._ticks.forget(queue, mark)


def _with_last_time(mark: Mark, known: KnownSchedule | None, now: datetime) -> Mark:
    """The mark with the last scheduled time of the definition that it was written for, if that is known."""
    if known is None or not mark.revision or known.mark.revision != mark.revision:
        return mark
    return mark._replace(last=last_scheduled_time(known.schedule, mark, now))
