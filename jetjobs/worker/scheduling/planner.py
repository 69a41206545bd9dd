"""The leader plans: it knows all schedules and places their ticks up to a minute ahead. The server fires them.

Only the leader writes ticks and marks. It compares every definition with its mark when it takes over, on a change,
after a reconnect and every minute; where they differ it brings the queue in line. What it knows may be out of
date: the mark in the stream decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.jetstream.schedules.ticks import batches, portion
from jetjobs.model.errors import (
    BrokerError,
    BrokerUnavailable,
    JetJobsError,
    JobTooLarge,
    StorageFull,
    TopologyMissing,
)
from jetjobs.model.schedule.plan import Mark, Step, plan, step
from jetjobs.model.wire.validation import is_schedule_name
from jetjobs.worker.scheduling.alignment import Alignment, Known

IDLE_S = 0.25
AGAIN = timedelta(seconds=2)
"""After something failed."""
COMPARE_S = 60.0
_AT_ONCE = 100
_BREATH = 50
"""After so many schedules others on the event loop have their turn: each takes up to a millisecond."""
_SLOW_S = 1.0
"""After that the others do not wait for a queue."""
_LOOKS_S = (0.0, 0.1, 1.0, 5.0)
"""A write is heard of when it is sent. It may be stored a little later, or never: look more than once."""

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
        self._alignment = Alignment(jetstream, term)
        self._known: dict[str, Known] = {}
        self._looks: list[tuple[float, str]] = []
        """Which schedules may have changed, in a heap by the time to look at them."""
        self._compare_at = 0.0
        self._woken = asyncio.Event()
        self._told: set[str] = set()
        """Of which schedules trouble was reported; the empty name stands for all."""
        self._names: set[str] = set()
        """What stood in the bucket when all of it was read last."""
        self._now: datetime | None = None
        self._placing: dict[str, asyncio.Task[None]] = {}
        """By queue: it has not answered yet."""

    # For the metrics, from another thread

    def lateness(self) -> dict[str, float]:
        """By schedule: how many seconds its next tick is overdue to be placed. Empty while we do not lead."""
        now = self._now
        if now is None or not self._term():
            return {}
        return {
            name: max(0.0, (now - known.following).total_seconds()) if known.following is not None else 0.0
            for name, known in tuple(self._known.items())
        }

    # Life

    async def run(self) -> None:
        """Until cancelled. What fails is logged and tried again."""
        while True:
            try:
                if self._term():
                    await self._lead()
            except BrokerError as error:
                if not isinstance(error, BrokerUnavailable):  # that is reported by the connection
                    extra = {"event": "schedule.unknown", "error": str(error)}
                    self._complain("", "schedules cannot be planned just now; it is tried again", extra)
                await asyncio.sleep(AGAIN.total_seconds())
            except Exception as error:
                _fault(error)
                await asyncio.sleep(AGAIN.total_seconds())
            await asyncio.sleep(IDLE_S)

    async def _lead(self) -> None:
        connection = self._jetstream.connection
        self._known, self._looks, self._names = {}, [], set()
        sid = await self._jetstream.schedules.listen(self._hear)
        forget = connection.on_reconnect(self._reconnected)
        try:
            await self._compare()
            self._told.discard("")
            await self._sync()
            while self._term():
                self._woken.clear()
                if time.monotonic() >= self._compare_at:
                    await self._compare()
                await self._look_at_changes()
                await self._plan_due()
                # Not wait_for: before Python 3.12 it may swallow a cancellation.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(IDLE_S):
                        await self._woken.wait()
        finally:
            self._known, self._now = {}, None
            for task in self._placing.values():
                task.cancel()
            await asyncio.gather(*self._placing.values(), return_exceptions=True)
            self._placing.clear()
            forget()
            with contextlib.suppress(Exception):
                await connection.nc.unlisten(sid)

    def _hear(self, name: str) -> None:
        for delay_s in _LOOKS_S:
            self._look_in(name, delay_s)
        self._woken.set()

    def _reconnected(self) -> None:
        """What was changed while we were disconnected was not heard."""
        self._compare_at = 0.0
        self._woken.set()

    def _look_in(self, name: str, delay_s: float) -> None:
        heapq.heappush(self._looks, (time.monotonic() + delay_s, name))

    # Definitions and their marks

    async def _compare(self) -> None:
        """Read all definitions and marks. Those that differ are to be looked at."""
        self._compare_at = time.monotonic() + COMPARE_S
        definitions = {one.name: one for one in await self._jetstream.schedules.all()}
        gone = (self._names | self._known.keys()) - definitions.keys()
        self._names = {*definitions}
        marks = await self._alignment.all_marks()
        unknown = [one for one in definitions.items() if not self._has(one[1])]
        for number, (name, definition) in enumerate(unknown, 1):
            if number % _BREATH == 0:
                await asyncio.sleep(0)
            schedule = definition.schedule
            mark = marks.get(schedule.queue, {}).get(name, Mark()) if schedule is not None else Mark()
            if schedule is not None and mark.revision == definition.revision and mark.moved_to is None:
                self._known[name] = Known(schedule, definition.revision, mark)
            else:
                self._look_in(name, 0.0)
        for queue, found in marks.items():
            for name, mark in found.items():
                if not is_schedule_name(name):  # written by hand, and nothing was planned for it
                    await self._jetstream.ticks.forget(queue, mark)
                elif self._is_stray(definitions.get(name), name, queue):
                    if name in self._known:
                        self._known[name].stray = True
                    self._look_in(name, 0.0)
        for name in gone:
            self._look_in(name, 0.0)
        for name in gone:
            if await self._jetstream.schedules.get(name) is None:
                # A deleted one leaves a trace: somebody has emptied the bucket, or made another.
                _log.warning("definitions of schedules are gone", extra={"event": "schedule.bucket_new"})
                await self._sync()
                return

    def _is_stray(self, definition: Definition | None, name: str, queue: str) -> bool:
        """Whether a mark stands where its schedule is not: that has moved, or is deleted."""
        if definition is None:
            return True
        schedule = self._known[name].schedule if self._has(definition) else definition.schedule
        # One that we cannot read a newer version may have written.
        return schedule is not None and schedule.queue != queue

    def _has(self, definition: Definition | None) -> bool:
        """Whether it is known as it is, and no mark of it is elsewhere."""
        known = self._known.get(definition.name) if definition is not None else None
        if definition is None or known is None or known.stray:
            return False
        return known.revision == definition.revision

    async def _look_at_changes(self) -> None:
        """Some of them: those that are due to be planned must not wait for all."""
        names: set[str] = set()
        while self._looks and self._looks[0][0] <= time.monotonic() and len(names) < _AT_ONCE:
            names.add(heapq.heappop(self._looks)[1])
        found = await asyncio.gather(*(self._look(name) for name in names if is_schedule_name(name)))
        await self._place_all([one for one in found if one is not None], await self._clock.now())
        if len(names) == _AT_ONCE:
            self._woken.set()

    async def _look(self, name: str) -> Step | None:
        """What is to be stored for it, if anything is."""
        definition = None
        try:
            definition = await self._jetstream.schedules.get(name)
            if self._has(definition):
                return None
            aligned = await self._alignment.align(name, self._known.get(name))
        except Exception as error:
            self._look_in(name, AGAIN.total_seconds())
            if not self._jetstream.connection.connected:
                raise
            # The others must not wait for it.
            if not isinstance(error, JetJobsError | ValueError):
                _fault(error)
            # What is known of it is planned on, as its mark says.
            if name not in self._known and definition is not None and definition.schedule is not None:
                following = definition.schedule.after(await self._clock.now())
                self._known[name] = Known(definition.schedule, 0, Mark(), following=following)
            self._unplaced(name, error)
            return None
        if aligned is None:
            self._look_in(name, _LOOKS_S[1])
            return None
        if aligned.definition is None or aligned.definition.schedule is None:
            self._known.pop(name, None)
            if aligned.definition is not None:
                extra = {"event": "schedule.unreadable", "schedule": name}
                self._complain(name, "a schedule cannot be read; it is not planned", extra)
            return None
        following = self._known[name].following if name in self._known else None
        self._known[name] = Known(
            aligned.definition.schedule, aligned.definition.revision, aligned.mark, following=following
        )
        return aligned.step

    # Planning

    async def _plan_due(self) -> None:
        """Plan all that are to be planned by now."""
        self._now = now = await self._clock.now()
        steps = []
        for number, known in enumerate([one for one in self._known.values() if self._is_due(one, now)], 1):
            if number % _BREATH == 0:
                await asyncio.sleep(0)
            todo = plan(known.schedule, known.mark, now).first(portion(known.schedule))
            known.following, known.look_at = todo.following, todo.look_at
            if todo.upto is not None:
                steps.append(step(known.schedule, known.mark, todo, now))
        await self._place_all(steps, now)

    def _is_due(self, known: Known, now: datetime) -> bool:
        if not known.revision or known.mark.revision != known.revision:
            return False  # it is to be looked at first
        return known.look_at is not None and known.look_at <= now and known.schedule.queue not in self._placing

    async def _place_all(self, steps: list[Step], now: datetime) -> None:
        """Each queue by itself: one that does not answer must not hold up the others."""
        by_queue: dict[str, list[Step]] = defaultdict(list)
        for one in steps:
            queue = self._known[one.name].schedule.queue
            if queue in self._placing:
                self._look_again(one.name, AGAIN.total_seconds())
            else:
                by_queue[queue].append(one)
        begun = {queue: asyncio.create_task(self._place_in(queue, some, now)) for queue, some in by_queue.items()}
        self._placing |= begun
        if begun:
            await asyncio.wait(begun.values(), timeout=_SLOW_S)

    async def _place_in(self, queue: str, steps: list[Step], now: datetime) -> None:
        try:
            for together in batches(steps):
                if self._term():
                    await self._place(queue, together, now)
        except Exception as error:
            _fault(error)
        finally:
            self._placing.pop(queue, None)

    async def _place(self, queue: str, steps: list[Step], now: datetime) -> None:
        try:
            stored = await self._jetstream.ticks.store(queue, steps, now)
        except (BrokerError, JobTooLarge, ValueError) as error:
            if len(steps) == 1 or isinstance(error, BrokerUnavailable | StorageFull | TopologyMissing):
                for one in steps:
                    if (known := self._known.get(one.name)) is None:
                        continue  # it was deleted meanwhile
                    self._unplaced(one.name, error)
                    known.following = one.plan.ticks[0].scheduled_time if one.plan.ticks else one.plan.upto
                    known.look_at = now + AGAIN
                    if known.mark.revision != known.revision:
                        self._look_again(one.name, AGAIN.total_seconds())
                return
            stored = None
        if stored is not None:
            for one, mark in zip(steps, stored, strict=True):
                self._told.discard(one.name)
                _report(one)
                if (known := self._known.get(one.name)) is not None:
                    known.mark = mark
                    if mark.revision != known.revision:  # there is more to take back
                        self._look_again(one.name, 0.0)
        elif len(steps) > 1:
            # One of them is refused; the others must not wait for it.
            for one in steps:
                await self._place(queue, [one], now)
        else:
            # Another leader was first, or the mark is gone: see what stands there.
            self._look_again(steps[0].name, _LOOKS_S[1])

    def _look_again(self, name: str, delay_s: float) -> None:
        """It is not planned until then."""
        if name in self._known:
            self._known[name].revision = 0
        self._look_in(name, delay_s)

    def _unplaced(self, name: str, error: Exception) -> None:
        extra = {"event": "schedule.unplaced", "schedule": name, "error": str(error)}
        self._complain(name, "ticks of a schedule cannot be placed; it is tried again", extra)

    def _complain(self, name: str, text: str, extra: dict[str, str]) -> None:
        """Once, until it is planned again."""
        _log.log(logging.DEBUG if name in self._told else logging.WARNING, text, extra=extra)
        self._told.add(name)


def _fault(error: Exception) -> None:
    _log.error("a fault of jetjobs itself", exc_info=error, extra={"event": "worker.fault"})


def _report(one: Step) -> None:
    ticked = {"event": "schedule.ticked", "schedule": one.name, "count": len(one.plan.ticks)}
    _log.debug("ticks placed", extra=ticked)
    if one.plan.missed:
        missed = {"event": "schedule.missed", "schedule": one.name, "count": one.plan.missed}
        _log.warning("scheduled times of a schedule were missed and are passed over", extra=missed)
