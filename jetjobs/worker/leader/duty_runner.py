"""What only one worker need do: whoever holds the leader lock does it, now and then."""

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

FIRST_S = 60.0
TELL_S = 2 * TTL_S
"""A lock that could not be asked for so long is told of: any holder has lost it by now."""
_AGAIN_S = 60.0
_log = logging.getLogger("jetjobs.leader")


class Swept(NamedTuple):
    """What a duty has done."""

    mended: int
    again_in_s: float | None = None
    """When it should be done again, where it has seen that there will be more to do."""


@dataclass(slots=True)
class Duty:
    """Something to do every `every_s` seconds. Harmless if two do it at once."""

    name: str
    every_s: float
    run: Callable[[], Awaitable[Swept]]
    due_at: float = math.inf

    def hasten(self, in_s: float) -> None:
        """Do it no later than in so many seconds."""
        self.due_at = min(self.due_at, time.monotonic() + in_s)


class Leader:
    """Tries for the lock while the worker lives; does the duties while it has it."""

    def __init__(self, lock: LeaderLock, duties: Sequence[Duty]) -> None:
        self._lock = lock
        self._duties = {duty.name: duty for duty in duties}
        self._woken = asyncio.Event()
        self._freed = asyncio.Event()
        self._unknown_since: float | None = None
        self._told = False

    async def run(self) -> None:
        """Until cancelled. What fails is logged and done again at its next time."""
        working: asyncio.Task[None] | None = None
        try:
            with contextlib.suppress(BrokerError):
                await self._lock.listen(self._freed.set)  # without it we hear later, by asking
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

    def hasten(self, name: str, in_s: float) -> None:
        """A duty is called for: whoever leads does it in so many seconds."""
        if name in self._duties:
            self._duties[name].hasten(in_s)
            self._woken.set()

    async def _try_lock(self) -> bool:
        """False when there is no use in trying."""
        try:
            await self._lock.try_lock()
        except AccessDenied as error:
            extra = {"event": "leader.denied", "error": str(error)}
            _log.warning(
                "this worker may not lead: its user lacks rights (docs/how-to/operations.md)", extra=extra
            )
            return False
        except BrokerError as error:
            self._cannot_ask(error)
        else:
            if self._told:
                outage_s = round(time.monotonic() - (self._unknown_since or 0.0), 3)
                known = {"event": "leader.known", "outage_s": outage_s}
                _log.warning("the leader lock can be asked for again", extra=known)
            self._unknown_since, self._told = None, False
        return True

    def _cannot_ask(self, error: BrokerError) -> None:
        """Told once, if it lasts: with no leader nothing is planned or swept."""
        now = time.monotonic()
        since = self._unknown_since = now if self._unknown_since is None else self._unknown_since
        # The loss of a connection is told of by the connection.
        tell = not self._told and now - since >= TELL_S and self._lock.connected
        self._told = self._told or tell
        extra = {"event": "leader.unknown", "error": str(error)} | ({"hint": error.hint} if error.hint else {})
        level = logging.WARNING if tell else logging.DEBUG
        _log.log(
            level, "the leader lock is out of reach: without a leader nothing is planned or swept", extra=extra
        )

    async def _work(self) -> None:
        for duty in self._duties.values():
            # Soon after taking the lead, for nobody knows when it was done last; sooner if it was called for.
            duty.hasten(min(duty.every_s, FIRST_S) * random.uniform(0.5, 1.0))
        while self._lock.held:
            for duty in self._duties.values():
                if time.monotonic() >= duty.due_at and self._lock.held:
                    duty.due_at = time.monotonic() + duty.every_s
                    await _do(duty)
            self._woken.clear()
            wait = min((duty.due_at for duty in self._duties.values()), default=0.0) - time.monotonic()
            # Not wait_for: before Python 3.12 it may swallow a cancellation.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(max(wait, 0.05), RENEW_S)):
                    await self._woken.wait()


async def _do(duty: Duty) -> None:
    try:
        mended, again_in_s = await duty.run()
    except BrokerError as error:
        extra = {"event": "leader.duty_failed", "duty": duty.name, "error": str(error)}
        _log.warning("a duty of the leader failed; it is done again later", extra=extra)
        duty.hasten(_AGAIN_S)
        return
    except Exception as error:
        extra = {"event": "worker.fault", "duty": duty.name}
        _log.error("a fault of jetjobs itself", exc_info=error, extra=extra)
        return
    if again_in_s is not None:
        duty.hasten(again_in_s)
    if mended:
        _log.warning(
            "a sweep has mended something", extra={"event": "leader.mended", "duty": duty.name, "count": mended}
        )
