"""Campaign for the leader lock and run the periodic duties of the leader while holding it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jetjobs.jetstream.leader_lock import RENEW_S, TTL_S, LeaderLock
from jetjobs.model.errors import AccessDenied, BrokerError

FIRST_RUN_S = 60.0
WARN_AFTER_S = 2 * TTL_S
"""A lock that has been unreachable for this long is reported: any holder has lost it by then."""
_RETRY_S = 60.0
_log = logging.getLogger("jetjobs.leader")


class DutyResult(NamedTuple):
    """What one run of a duty has done."""

    repaired: int
    repeat_in_s: float | None = None
    """When to run it again, if it found work that is not due yet."""


@dataclass(slots=True)
class Duty:
    """Work to do every `every_s` seconds. It must be harmless if two workers do it at once."""

    name: str
    every_s: float
    run: Callable[[], Awaitable[DutyResult]]
    due_at: float = math.inf

    def run_within(self, seconds: float) -> None:
        """Make it due after that many seconds at the latest."""
        self.due_at = min(self.due_at, time.monotonic() + seconds)


class DutyRunner:
    """Tries to take the lock for as long as the worker runs, and does the duties while it holds the lock."""

    def __init__(self, lock: LeaderLock, duties: Sequence[Duty]) -> None:
        self._lock = lock
        self._duties = {duty.name: duty for duty in duties}
        self._woken = asyncio.Event()
        self._freed = asyncio.Event()
        self._unreachable_since: float | None = None
        self._warned = False

    async def run(self) -> None:
        """Run until cancelled. A failed duty is logged and repeated when it is next due."""
        working: asyncio.Task[None] | None = None
        try:
            with contextlib.suppress(BrokerError):
                await self._lock.listen(self._freed.set)  # without it, polling finds a free lock later
            while True:
                self._freed.clear()
                if not await self._try_lock():
                    return
                if self._lock.held and (working is None or working.done()):
                    working = asyncio.create_task(self._work())
                # Not wait_for: before Python 3.12 it may swallow a cancellation.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(RENEW_S * random.uniform(0.8, 1.0)):
                        await self._freed.wait()
        finally:
            if working is not None:
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
            with contextlib.suppress(BrokerError):
                await self._lock.release()

    def request(self, name: str, within_s: float) -> None:
        """Run a duty within that many seconds, if this worker leads."""
        if name in self._duties:
            self._duties[name].run_within(within_s)
            self._woken.set()

    async def _try_lock(self) -> bool:
        """False if trying again is pointless."""
        try:
            await self._lock.try_lock()
        except AccessDenied as error:
            extra = {"event": "leader.denied", "error": str(error)}
            _log.warning(
                "this worker cannot lead: its user lacks permissions (docs/how-to/operations.md)", extra=extra
            )
            return False
        except BrokerError as error:
            self._on_unreachable(error)
        else:
            if self._warned:
                outage_s = round(time.monotonic() - (self._unreachable_since or 0.0), 3)
                known = {"event": "leader.known", "outage_s": outage_s}
                _log.warning("the leader lock is reachable again", extra=known)
            self._unreachable_since, self._warned = None, False
        return True

    def _on_unreachable(self, error: BrokerError) -> None:
        """Warn once if it lasts: without a leader, schedules and maintenance stop."""
        now = time.monotonic()
        since = self._unreachable_since = now if self._unreachable_since is None else self._unreachable_since
        # A lost connection is already reported by the connection itself.
        warn = not self._warned and now - since >= WARN_AFTER_S and self._lock.connected
        self._warned = self._warned or warn
        extra = {"event": "leader.unknown", "error": str(error)} | ({"hint": error.hint} if error.hint else {})
        level = logging.WARNING if warn else logging.DEBUG
        _log.log(
            level, "the leader lock is unreachable: without a leader, schedules and maintenance stop", extra=extra
        )

    async def _work(self) -> None:
        for duty in self._duties.values():
            # Soon after the election, because the last run is unknown; sooner if it was requested.
            duty.run_within(min(duty.every_s, FIRST_RUN_S) * random.uniform(0.5, 1.0))
        while self._lock.held:
            for duty in self._duties.values():
                if time.monotonic() >= duty.due_at and self._lock.held:
                    duty.due_at = time.monotonic() + duty.every_s
                    await _run(duty)
            self._woken.clear()
            wait = min((duty.due_at for duty in self._duties.values()), default=0.0) - time.monotonic()
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(wait, 0.05), RENEW_S)):
                    await self._woken.wait()


async def _run(duty: Duty) -> None:
    try:
        repaired, repeat_in_s = await duty.run()
    except BrokerError as error:
        extra = {"event": "leader.duty_failed", "duty": duty.name, "error": str(error)}
        _log.warning("a duty of the leader failed; it will be repeated", extra=extra)
        duty.run_within(_RETRY_S)
        return
    except Exception as error:
        extra = {"event": "worker.fault", "duty": duty.name}
        _log.error("internal error (please report)", exc_info=error, extra=extra)
        return
    if repeat_in_s is not None:
        duty.run_within(repeat_in_s)
    if repaired:
        found = {"event": "leader.repaired", "duty": duty.name, "count": repaired}
        _log.warning("a duty of the leader repaired something", extra=found)
