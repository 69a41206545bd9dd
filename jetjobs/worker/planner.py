"""The leader plans: it knows all schedules and places their ticks up to a minute ahead. The server fires them.

Definitions are read once and heard of as they change; a heap tells which is to be looked at next, so ten thousand
of them cost nothing while none is near. What it knows may be out of date: the marker in the stream decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.schedules import Definition
from jetjobs.jetstream.ticks import Marker, Placing, batches, portion
from jetjobs.model.errors import (
    BrokerError,
    BrokerUnavailable,
    JetJobsError,
    JobTooLarge,
    ScheduleConflict,
    StorageFull,
    TopologyMissing,
)
from jetjobs.model.planning import Plan, plan
from jetjobs.worker.agenda import Agenda
from jetjobs.worker.changes import Changes
from jetjobs.worker.old_markers import tidy

IDLE_S = 0.25
AGAIN = timedelta(seconds=2)
"""After something failed."""
TIDY_S = 300.0
BUCKET_S = 10.0
"""How often to look whether the bucket is still there, and the one that was read. Nobody tells us otherwise."""
_AT_ONCE = 500

_log = logging.getLogger("jetjobs.schedules")


async def _nothing() -> None:
    return


class Planner:
    """Plans while `term` says that we lead; else does nothing and knows nothing."""

    def __init__(
        self, jetstream: JetStreamClient, term: Callable[[], int], sync: Callable[[], Awaitable[None]] = _nothing
    ) -> None:
        """`term` is the number of our time as the leader, 0 while we do not lead. `sync` stores what our code
        declares: it may be another's that stands there."""
        self._jetstream = jetstream
        self._clock = jetstream.server_clock
        self._term = term
        self._sync = sync
        self._failing = False
        self._agenda = Agenda()
        self._told: set[str] = set()
        """Of those that are not in the agenda: whose trouble was told."""
        self._names: set[str] = set()
        """What stood in the bucket when all of it was read last."""
        self._changes = Changes()
        self._now: datetime | None = None

    # For the metrics, from another thread

    def lateness(self) -> dict[str, float]:
        """By schedule: for how many seconds a slot has been due that is not placed. None of them while we do not
        lead."""
        now = self._now
        if now is None or not self._term():
            return {}
        return {
            name: max(0.0, (now - known.following).total_seconds()) if known.following is not None else 0.0
            for name, known in tuple(self._agenda.known.items())
        }

    # Life

    async def run(self) -> None:
        """Until cancelled. What fails is logged and tried again."""
        while True:
            try:
                if self._term():
                    await self._lead()
            except BrokerError as error:
                extra = {"event": "schedule.unknown", "error": str(error)}
                told = self._failing or isinstance(error, BrokerUnavailable)  # that is told of by the connection
                level = logging.DEBUG if told else logging.WARNING
                _log.log(level, "schedules cannot be planned just now; it is tried again", extra=extra)
                self._failing = self._failing or not told
                await asyncio.sleep(AGAIN.total_seconds())
            except Exception as error:
                _log.error("a fault of jetjobs itself", exc_info=error, extra={"event": "worker.fault"})
                await asyncio.sleep(AGAIN.total_seconds())
            await asyncio.sleep(IDLE_S)

    async def _lead(self) -> None:
        jetstream = self._jetstream
        self._agenda, self._changes, self._names = Agenda(), Changes(), set()
        self._told.clear()
        created = await jetstream.schedules.created()
        sid = await jetstream.schedules.listen(self._changes.hear)
        forget = jetstream.connection.on_reconnect(self._changes.missed_something)
        try:
            await self._sync()
            await self._load()
            self._failing = False
            tidy_at, look_at = time.monotonic() + TIDY_S, time.monotonic() + BUCKET_S
            while self._term():
                await self._take_in()
                await self._plan_due()
                if time.monotonic() >= look_at:
                    if await self._is_another(created):
                        return  # and begin anew, with what our code declares
                    look_at = time.monotonic() + BUCKET_S
                if time.monotonic() >= tidy_at:
                    await self._load()
                    await tidy(jetstream, self._agenda)
                    tidy_at = time.monotonic() + TIDY_S
                await self._wait()
        finally:
            self._agenda, self._now = Agenda(), None
            forget()
            with contextlib.suppress(Exception):
                await jetstream.connection.nc.unlisten(sid)

    async def _is_another(self, created: str) -> bool:
        """Whether the bucket was deleted and made again. TopologyMissing when it was deleted only: what is known
        must not be planned for ever."""
        try:
            if await self._jetstream.schedules.created() == created:
                return False
        except BrokerUnavailable:
            return False  # not known: the ticks can go on
        extra = {"event": "schedule.bucket_new"}
        _log.warning("the bucket of schedules was made anew; what our code declares is stored again", extra=extra)
        return True

    async def _wait(self) -> None:
        self._changes.woken.clear()
        if self._changes:
            return
        wait_s, following = IDLE_S, self._agenda.next_look
        if following is not None:
            wait_s = (following - await self._clock.now()).total_seconds()
        # Not wait_for: before Python 3.12 it may swallow a cancellation.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(max(wait_s, 0.02), IDLE_S)):
                await self._changes.woken.wait()

    # What there is

    async def _load(self) -> None:
        """Read all definitions and markers."""
        definitions = await self._jetstream.schedules.all()
        queues = {d.schedule.queue for d in definitions if d.schedule is not None}
        markers: dict[str, dict[str, Marker]] = {}
        for queue in queues:
            try:
                markers[queue] = await self._jetstream.ticks.markers(queue)
            except BrokerError:
                if not self._jetstream.connection.connected:
                    raise
                # Only this one is out of reach: its schedules are told of.
        for definition in definitions:
            schedule = definition.schedule
            if schedule is None:
                extra = {"event": "schedule.unreadable", "schedule": definition.name}
                _log.warning("a schedule cannot be read; it is not planned", extra=extra)
                continue
            marker = markers.get(schedule.queue, {}).get(schedule.name)
            if marker is None or marker.generation != schedule.generation:
                self._changes.add({schedule.name})  # one of the two is old: ask the leaders
            elif marker.progress is not None and marker.progress.idle and not self._agenda.has(schedule):
                self._changes.add({schedule.name})  # whoever paused it may have died over that
            elif not self._agenda.has(schedule):  # what is known came from the stream's leader
                self._agenda.add(schedule, marker)
        names = {definition.name for definition in definitions}
        gone = (self._names | self._agenda.known.keys()) - names
        self._names = names
        self._changes.add(gone)
        for name in gone:
            if await self._jetstream.schedules.get(name) is None:
                # Not deleted by any of us, who leave a trace: somebody has emptied the bucket.
                await self._sync()
                break

    async def _take_in(self) -> None:
        """Those that were changed, as they stand with the bucket's leader."""
        if self._changes.fall_due():
            await self._load()
        for _ in range(min(len(self._changes), _AT_ONCE)):
            if not self._term():
                return
            name = self._changes.take()
            try:
                definition = await self._jetstream.schedules.get(name)
            except BrokerError:
                self._changes.add({name})
                raise
            try:
                await self._look(name, definition)
            except Exception as error:
                if not self._jetstream.connection.connected:
                    raise
                # The others must not wait for it.
                if not isinstance(error, JetJobsError | ValueError):
                    _log.error("a fault of jetjobs itself", exc_info=error, extra={"event": "worker.fault"})
                self._changes.add_later(name, AGAIN.total_seconds())
                if definition is not None and definition.schedule is not None:
                    self._agenda.hold(definition.schedule, self._now or await self._clock.now())
                self._complain(name, error)

    async def _look(self, name: str, definition: Definition | None) -> None:
        jetstream = self._jetstream
        schedule = definition.schedule if definition is not None else None
        if definition is None or schedule is None:
            self._agenda.forget(name)
            if definition is not None and definition.deleted:
                await jetstream.schedule_edits.finish_delete(definition)
            return
        if self._agenda.has(schedule):
            return
        marker = await jetstream.changeover.to(schedule)
        if marker.generation > schedule.generation:
            # The bucket is older than the stream: from a backup, perhaps. What it says counts from now on.
            with contextlib.suppress(ScheduleConflict):
                await jetstream.schedule_edits.put(schedule, definition, marker.generation)
            return
        self._agenda.add(schedule, marker)

    # Planning

    async def _plan_due(self) -> None:
        """Plan all that are to be looked at by now."""
        self._now = now = await self._clock.now()
        by_queue: dict[str, list[Placing]] = defaultdict(list)
        for known in self._agenda.due(now, _AT_ONCE):
            schedule = known.schedule
            todo = plan(schedule, known.marker.progress, now).first(portion(schedule))
            known.following = todo.following
            if todo.upto is None:
                if todo.look_at is not None:
                    self._agenda.look_at(schedule.name, todo.look_at)
                continue
            by_queue[schedule.queue].append(Placing(schedule, todo, known.marker))
        for queue, placings in by_queue.items():
            for together in batches(placings):
                await self._place(queue, together, now)

    async def _place(self, queue: str, placings: list[Placing], now: datetime) -> None:
        try:
            stored = await self._jetstream.ticks.place(placings, now.timestamp(), self._term())
        except (BrokerError, JobTooLarge, ValueError) as error:
            if len(placings) > 1 and not isinstance(error, BrokerUnavailable | StorageFull | TopologyMissing):
                # One of them is refused; the others must not wait for it.
                for one in placings:
                    await self._place(queue, [one], now)
                return
            for one in placings:
                self._complain(one.schedule.name, error)
                self._agenda.known[one.schedule.name].following = _first_of(one.plan)
                self._agenda.look_at(one.schedule.name, now + AGAIN)
            return
        for one, marker in zip(placings, stored, strict=True):
            if marker is None:
                # Another has placed it, or the definition is another by now: see what stands there.
                self._agenda.forget(one.schedule.name)
                self._changes.add({one.schedule.name})
            else:
                self._placed(one, marker)

    def _placed(self, one: Placing, marker: Marker) -> None:
        name, todo = one.schedule.name, one.plan
        known = self._agenda.known.get(name)
        if known is None or known.schedule is not one.schedule:
            return
        known.marker, known.complained = marker, False
        extra = {"event": "schedule.ticked", "schedule": name, "count": len(todo.ticks)}
        _log.debug("ticks placed", extra=extra)
        if todo.missed:
            extra = {"event": "schedule.missed", "schedule": name, "count": todo.missed}
            _log.warning("slots of a schedule were missed and are passed over", extra=extra)
        if todo.look_at is not None:
            self._agenda.look_at(name, todo.look_at)

    def _complain(self, name: str, error: Exception) -> None:
        known = self._agenda.known.get(name)
        if name in self._told or (known is not None and known.complained):
            return
        if known is not None:
            known.complained = True
        else:
            self._told.add(name)
        extra = {"event": "schedule.unplaced", "schedule": name, "error": str(error)}
        _log.warning("ticks of a schedule cannot be placed; it is tried again", extra=extra)


def _first_of(todo: Plan) -> datetime | None:
    return todo.ticks[0].slot if todo.ticks else todo.upto
