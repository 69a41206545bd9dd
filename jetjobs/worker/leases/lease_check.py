"""Compare held jobs with the messages at their sequences before they are acked or extended again. ADR 41.

An ack names a sequence, not a message. In a stream that was restored from an older copy or recreated, the
sequence of a held job can belong to another job, which the ack would delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.model.errors import AccessDenied, BrokerError
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.leases.lease_table import LeaseTable, is_same_message

PAUSE_S = 1.0
"""Pause between two comparisons of jobs whose stream does not answer."""
MAX_BYTES = 24 * 1024 * 1024
"""What the answers to the requests that are open at once may have, before they are encoded in base64."""

_log = logging.getLogger("jetjobs.worker")


class LeaseCheck:
    """Puts held jobs in doubt, and resolves it: the same message stays held, the lease of any other is lost."""

    def __init__(
        self, jetstream: JetStreamClient, leases: LeaseTable, spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        self._connection = jetstream.connection
        self._names = jetstream.names
        self._leases = leases
        self._clock = leases.clock
        self._spawn = spawn
        self._comparing = False
        self._due_at = 0.0
        self._missing: set[Attempt] = set()
        """Not found once. A replica that has just become the leader may not have read all of its log."""
        self._denied = False

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._leases.doubt = self._doubt
        self._leases.on_refused = self._on_refused

    def doubt_all(self) -> None:
        """The connection was lost: the server may come back with another store."""
        for attempt in self._leases.held:
            attempt.doubt += 1

    def doubt_queue(self, queue: str) -> None:
        """A lane of this queue is gone, new or silent: its stream may be another one."""
        for attempt in self._leases.held:
            if attempt.queue == queue:
                attempt.doubt += 1
        self.start()

    def _on_refused(self, attempt: Attempt) -> None:
        # On the worker's event loop. If that is blocked, the heartbeat thread goes on to extend the lease.
        with contextlib.suppress(RuntimeError):  # the event loop is closed
            self._loop.call_soon_threadsafe(self._doubt, attempt)

    def _doubt(self, attempt: Attempt) -> None:
        attempt.doubt += 1
        self.start()

    def start(self) -> None:
        """Compare now, or as soon as the running comparison has ended."""
        self._due_at = 0.0
        self.tick(self._clock.monotonic())

    def tick(self, now: float) -> None:
        """Compare what is in doubt, if that is due."""
        if now >= self._due_at and not self._comparing and self._connection.connected:
            doubtful = [attempt for attempt in self._leases.held if attempt.doubt and not attempt.acked]
            if doubtful:
                self._comparing, self._due_at = True, now + PAUSE_S
                self._spawn(self._compare(doubtful))

    async def _compare(self, doubtful: list[Attempt]) -> None:
        lost = 0
        at_once = max(1, MAX_BYTES // self._connection.max_payload)
        try:
            for start in range(0, len(doubtful), at_once):
                part = doubtful[start : start + at_once]
                lost += sum(await asyncio.gather(*(self._is_lost(attempt) for attempt in part)))
                self._leases.wake_compared()
        finally:
            self._comparing = False
            self._missing = {attempt for attempt in self._missing if attempt.doubt and self._leases.holds(attempt)}
        if lost:
            extra = {"event": "lease.replaced", "count": lost}
            _log.warning("the stream of held jobs was restored or recreated; they are given up", extra=extra)

    async def _is_lost(self, attempt: Attempt) -> bool:
        """Compare one attempt. What is not answered stays in doubt until it is, or until the lease expires."""
        doubt, delivery = attempt.doubt, attempt.delivery
        try:
            stream = self._names.work_stream(attempt.queue)
            message = await at_sequence(self._connection, stream, delivery.sequence)
        except AccessDenied as error:
            self._report_denied(error)
        except BrokerError:
            return False
        else:
            if message is None and attempt not in self._missing:
                self._missing.add(attempt)
                return False
            if message is None or not is_same_message(attempt, message):
                return self._lose(attempt)
        attempt.seen_at = self._clock.monotonic()
        if attempt.doubt == doubt:
            attempt.doubt = 0
        return False

    def _lose(self, attempt: Attempt) -> bool:
        if attempt.acked or not self._leases.holds(attempt):
            return False  # it has ended in the meantime
        self._leases.lose(attempt)
        return True

    def _report_denied(self, error: AccessDenied) -> None:
        if not self._denied:
            self._denied = True
            extra = {"event": "lease.unchecked", "error": str(error)}
            _log.warning("held jobs are not compared after a reconnect: permission denied", extra=extra)
