"""Plan all schedules while this worker leads: place jobs up to a minute ahead, which the server then fires.

Only the leader writes ticks and marks. It compares every definition with its mark when it takes over, on a change,
after a reconnect and every minute, and reconciles the queue where they differ. What it remembers may be stale: the
mark in the stream decides.
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
from jetjobs.worker.scheduling.reconciler import KnownSchedule, Reconciler

IDLE_S = 0.25
RETRY = timedelta(seconds=2)
"""How long to wait after a failure."""
COMPARE_S = 60.0
_MAX_CHECKS = 100
_YIELD_EVERY = 50
"""Schedules processed before the event loop gets a turn: each takes up to a millisecond."""
_SLOW_S = 1.0
"""After this time, planning continues without waiting for a slow queue."""
_CHECK_AFTER_S = (0.0, 0.1, 1.0, 5.0)
"""A write is noticed when it is sent. It may be stored a little later or not at all: check more than once."""

_log = logging.getLogger("jetjobs.schedules")


async def _nothing() -> None:
    return


class Planner:
    """Plans while this worker leads. While it does not, it does nothing and remembers nothing."""

    def __init__(
        self, jetstream: JetStreamClient, term: Callable[[], int], sync: Callable[[], Awaitable[None]] = _nothing
    ) -> None:
        """`term` returns the number of the current term as leader, 0 while another worker leads. `sync` stores the
        schedules of this worker's code, because those of another version may be stored."""
        self._jetstream = jetstream
        self._clock = jetstream.server_clock
        self._term = term
        self._sync = sync
        self._reconciler = Reconciler(jetstream, term)
        self._known: dict[str, KnownSchedule] = {}
        self._checks: list[tuple[float, str]] = []
        """Schedules that may have changed: a heap by the time to check them."""
        self._compare_at = 0.0
        self._woken = asyncio.Event()
        self._reported: set[str] = set()
        """Schedules with a reported problem; the empty name means all schedules."""
        self._names: set[str] = set()
        """The names in the bucket when all of it was last read."""
        self._now: datetime | None = None
        self._placing: dict[str, asyncio.Task[None]] = {}
        """By queue: a write that the server has not answered yet."""

    # For the metrics, from another thread

    def lateness(self) -> dict[str, float]:
        """By schedule: seconds for which its next tick has been due without being placed. Empty unless leading."""
        now = self._now
        if now is None or not self._term():
            return {}
        return {
            name: max(0.0, (now - known.following).total_seconds()) if known.following is not None else 0.0
            for name, known in tuple(self._known.items())
        }

    # Lifecycle

    async def run(self) -> None:
        """Run until cancelled. Failures are logged and retried."""
        while True:
            try:
                if self._term():
                    await self._lead()
            except BrokerError as error:
                if not isinstance(error, BrokerUnavailable):  # reported by the connection
                    extra = {"event": "schedule.unknown", "error": str(error)}
                    self._warn_once("", "schedules cannot be planned now; planning is retried", extra)
                await asyncio.sleep(RETRY.total_seconds())
            except Exception as error:
                _log_internal_error(error)
                await asyncio.sleep(RETRY.total_seconds())
            await asyncio.sleep(IDLE_S)

    async def _lead(self) -> None:
        connection = self._jetstream.connection
        self._known, self._checks, self._names = {}, [], set()
        sid = await self._jetstream.schedules.listen(self._on_change)
        unsubscribe = connection.on_reconnect(self._on_reconnect)
        try:
            await self._compare()
            self._reported.discard("")
            await self._sync()
            while self._term():
                self._woken.clear()
                if time.monotonic() >= self._compare_at:
                    await self._compare()
                await self._check_changes()
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
            unsubscribe()
            with contextlib.suppress(Exception):
                await connection.nc.unlisten(sid)

    def _on_change(self, name: str) -> None:
        for delay_s in _CHECK_AFTER_S:
            self._check_in(name, delay_s)
        self._woken.set()

    def _on_reconnect(self) -> None:
        """Changes made during the outage were not received."""
        self._compare_at = 0.0
        self._woken.set()

    def _check_in(self, name: str, delay_s: float) -> None:
        heapq.heappush(self._checks, (time.monotonic() + delay_s, name))

    # Definitions and their marks

    async def _compare(self) -> None:
        """Read all definitions and marks, and queue a check of those that differ."""
        self._compare_at = time.monotonic() + COMPARE_S
        definitions = {one.name: one for one in await self._jetstream.schedules.all()}
        gone = (self._names | self._known.keys()) - definitions.keys()
        self._names = {*definitions}
        marks = await self._reconciler.all_marks()
        unknown = [one for one in definitions.items() if not self._is_current(one[1])]
        for number, (name, definition) in enumerate(unknown, 1):
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            schedule = definition.schedule
            mark = marks.get(schedule.queue, {}).get(name, Mark()) if schedule is not None else Mark()
            if schedule is not None and mark.revision == definition.revision and mark.moved_to is None:
                self._known[name] = KnownSchedule(schedule, definition.revision, mark)
            else:
                self._check_in(name, 0.0)
        for queue, found in marks.items():
            for name, mark in found.items():
                if not is_schedule_name(name):  # not written by jetjobs; nothing is planned for it
                    await self._jetstream.ticks.forget(queue, mark)
                elif self._is_stray(definitions.get(name), name, queue):
                    if name in self._known:
                        self._known[name].has_stray_mark = True
                    self._check_in(name, 0.0)
        for name in gone:
            self._check_in(name, 0.0)
        for name in gone:
            if await self._jetstream.schedules.get(name) is None:
                # Deleting a schedule leaves a tombstone: the bucket was emptied or created again.
                _log.warning(
                    "the stored schedules have disappeared; declared schedules are stored again",
                    extra={"event": "schedule.bucket_new"},
                )
                await self._sync()
                return

    def _is_stray(self, definition: Definition | None, name: str, queue: str) -> bool:
        """Whether a queue has a mark of a schedule that has moved elsewhere or is deleted."""
        if definition is None:
            return True
        schedule = self._known[name].schedule if self._is_current(definition) else definition.schedule
        # A newer version may have written a definition that is unreadable here.
        return schedule is not None and schedule.queue != queue

    def _is_current(self, definition: Definition | None) -> bool:
        """Whether this definition is known, and no other queue has a mark of it."""
        known = self._known.get(definition.name) if definition is not None else None
        if definition is None or known is None or known.has_stray_mark:
            return False
        return known.revision == definition.revision

    async def _check_changes(self) -> None:
        """Check a limited number, so that schedules that are due do not have to wait."""
        names: set[str] = set()
        while self._checks and self._checks[0][0] <= time.monotonic() and len(names) < _MAX_CHECKS:
            names.add(heapq.heappop(self._checks)[1])
        found = await asyncio.gather(*(self._check(name) for name in names if is_schedule_name(name)))
        await self._place_all([one for one in found if one is not None], await self._clock.now())
        if len(names) == _MAX_CHECKS:
            self._woken.set()

    async def _check(self, name: str) -> Step | None:
        """Reconcile a schedule and return what to store for it, if anything."""
        definition = None
        try:
            definition = await self._jetstream.schedules.get(name)
            if self._is_current(definition):
                return None
            reconciled = await self._reconciler.reconcile(name, self._known.get(name))
        except Exception as error:
            self._check_in(name, RETRY.total_seconds())
            if not self._jetstream.connection.connected:
                raise
            # One failing schedule must not stop the others.
            if not isinstance(error, JetJobsError | ValueError):
                _log_internal_error(error)
            # A known schedule is planned further according to its mark.
            if name not in self._known and definition is not None and definition.schedule is not None:
                following = definition.schedule.after(await self._clock.now())
                self._known[name] = KnownSchedule(definition.schedule, 0, Mark(), following=following)
            self._warn_unplaced(name, error)
            return None
        if reconciled is None:
            self._check_in(name, _CHECK_AFTER_S[1])
            return None
        definition, mark = reconciled.definition, reconciled.mark
        if definition is None or definition.schedule is None:
            self._known.pop(name, None)
            if definition is not None:
                extra = {"event": "schedule.unreadable", "schedule": name}
                self._warn_once(name, "a schedule cannot be read and is not planned", extra)
            return None
        following = self._known[name].following if name in self._known else None
        self._known[name] = KnownSchedule(definition.schedule, definition.revision, mark, following=following)
        return reconciled.step

    # Planning

    async def _plan_due(self) -> None:
        """Plan all schedules that are due for planning."""
        self._now = now = await self._clock.now()
        steps = []
        for number, known in enumerate([one for one in self._known.values() if self._is_due(one, now)], 1):
            if number % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            todo = plan(known.schedule, known.mark, now).first(portion(known.schedule))
            known.following, known.plan_at = todo.following, todo.look_at
            if todo.upto is not None:
                steps.append(step(known.schedule, known.mark, todo, now))
        await self._place_all(steps, now)

    def _is_due(self, known: KnownSchedule, now: datetime) -> bool:
        if not known.revision or known.mark.revision != known.revision:
            return False  # it must be checked first
        return known.plan_at is not None and known.plan_at <= now and known.schedule.queue not in self._placing

    async def _place_all(self, steps: list[Step], now: datetime) -> None:
        """Write to each queue separately, so that a silent one does not delay the others."""
        by_queue: dict[str, list[Step]] = defaultdict(list)
        for one in steps:
            queue = self._known[one.name].schedule.queue
            if queue in self._placing:
                self._check_again(one.name, RETRY.total_seconds())
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
            _log_internal_error(error)
        finally:
            self._placing.pop(queue, None)

    async def _place(self, queue: str, steps: list[Step], now: datetime) -> None:
        try:
            stored = await self._jetstream.ticks.store(queue, steps, now)
        except (BrokerError, JobTooLarge, ValueError) as error:
            if len(steps) == 1 or isinstance(error, BrokerUnavailable | StorageFull | TopologyMissing):
                for one in steps:
                    if (known := self._known.get(one.name)) is None:
                        continue  # deleted in the meantime
                    self._warn_unplaced(one.name, error)
                    known.following = one.plan.ticks[0].scheduled_time if one.plan.ticks else one.plan.upto
                    known.plan_at = now + RETRY
                    if known.mark.revision != known.revision:
                        self._check_again(one.name, RETRY.total_seconds())
                return
            stored = None
        if stored is not None:
            for one, mark in zip(steps, stored, strict=True):
                self._reported.discard(one.name)
                _report(one)
                if (known := self._known.get(one.name)) is not None:
                    known.mark = mark
                    if mark.revision != known.revision:  # there are more ticks to remove
                        self._check_again(one.name, 0.0)
        elif len(steps) > 1:
            # The server refused one of them. Store them one by one, so that the others succeed.
            for one in steps:
                await self._place(queue, [one], now)
        else:
            # Another leader was faster, or the mark is gone: read it again.
            self._check_again(steps[0].name, _CHECK_AFTER_S[1])

    def _check_again(self, name: str, delay_s: float) -> None:
        """Check it after the delay, and do not plan it before."""
        if name in self._known:
            self._known[name].revision = 0
        self._check_in(name, delay_s)

    def _warn_unplaced(self, name: str, error: Exception) -> None:
        extra = {"event": "schedule.unplaced", "schedule": name, "error": str(error)}
        self._warn_once(name, "the jobs of a schedule cannot be placed; placing is retried", extra)

    def _warn_once(self, name: str, text: str, extra: dict[str, str]) -> None:
        """Warn once for each schedule until it is planned again."""
        _log.log(logging.DEBUG if name in self._reported else logging.WARNING, text, extra=extra)
        self._reported.add(name)


def _log_internal_error(error: Exception) -> None:
    _log.error("internal error (please report)", exc_info=error, extra={"event": "worker.fault"})


def _report(one: Step) -> None:
    ticked = {"event": "schedule.ticked", "schedule": one.name, "count": len(one.plan.ticks)}
    _log.debug("jobs of a schedule placed", extra=ticked)
    if one.plan.missed:
        missed = {"event": "schedule.missed", "schedule": one.name, "count": one.plan.missed}
        _log.warning("scheduled times were missed and are skipped", extra=missed)
