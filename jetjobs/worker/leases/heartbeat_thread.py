"""Heartbeats and the worker's record from a thread and connection of their own, which no task can block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError
from jetjobs.worker.leases.lease_table import TICK_S, Leases

BLOCKED_S = 1.0
"""A loop that has not turned for this long is reported."""
_RETRY_S = 2.0

_log = logging.getLogger("jetjobs.worker")


class HeartbeatThread:
    """Extends leases at a third of their time, watches the worker's loop while it is at it, and keeps the worker
    in the registry.

    It beats only while the worker's own connection lives: a worker that cannot settle must not keep its jobs.
    """

    def __init__(
        self,
        jetstream: JetStreamClient,
        leases: Leases,
        each_turn: Callable[[float, Connection], None],
        at_end: Callable[[Connection], Awaitable[None]],
    ) -> None:
        """Both are called in the thread: `each_turn` while it is connected, `at_end` before it disconnects."""
        self._jetstream = jetstream
        self._leases = leases
        self._each_turn = each_turn
        self._at_end = at_end
        self._loop = asyncio.get_running_loop()
        self._told_of = 0.0
        self._own_loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._woken = asyncio.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="jetjobs-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """At once: whoever stops has settled everything."""
        self._stop.set()
        self.wake()
        await asyncio.to_thread(self._thread.join, 5.0)

    def wake(self) -> None:
        """Look at once: something has changed that others are to see."""
        with contextlib.suppress(RuntimeError):  # its loop has ended
            self._own_loop.call_soon_threadsafe(self._woken.set)

    # In the thread

    def _run(self) -> None:
        with contextlib.closing(self._own_loop):
            self._own_loop.run_until_complete(self._keep())

    async def _keep(self) -> None:
        retry_at = 0.0
        while not self._stop.is_set():
            now = time.monotonic()
            if self._connection is None and now >= retry_at:
                self._connection = await self._connect()
                retry_at = now + _RETRY_S
            try:
                self._turn()
            except Exception as error:  # the thread must outlive it: without heartbeats jobs would run twice
                _log.error("a fault of jetjobs itself", exc_info=error, extra={"event": "worker.fault"})
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), min(TICK_S, self._leases.lease_s / 6))
            self._woken.clear()
        with contextlib.suppress(Exception):  # whoever stops has settled everything
            if self._connection is not None:
                await self._at_end(self._connection)
                await self._connection.close()
        # Heartbeats that were under way have failed with the connection: let them end on their own loop.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=1.0)

    def _turn(self) -> None:
        now, connection = time.monotonic(), self._connection
        if connection is not None and connection.connected and self._jetstream.connection.connected:
            self._leases.beat(now, connection, 1 / 3)
            self._leases.show_late(now, connection)
        if connection is not None and connection.closed.is_set():
            self._connection = None
        self._watch_loop()
        if connection is not None and connection.connected:
            self._each_turn(now, connection)

    async def _connect(self) -> Connection | None:
        connection = self._jetstream.extra_connection("heartbeats")
        try:
            await connection.open()
        except BrokerError as error:
            # The worker's own loop beats instead, as long as nothing blocks it.
            _log.debug("the lease keeper is not connected", extra={"event": "keeper.lost", "error": str(error)})
            with contextlib.suppress(Exception):
                await connection.close()
            return None
        return connection

    def _watch_loop(self) -> None:
        turned_at, silent_s = self._leases.turned_at, self._leases.silent_s
        if silent_s >= BLOCKED_S and self._told_of != turned_at:
            self._told_of = turned_at  # once for each time it is blocked
            extra = {"event": "worker.loop_blocked", "task": self._blocker(), "lag_s": round(silent_s, 3)}
            _log.warning("the event loop is blocked: run blocking code in a plain `def` task", extra=extra)

    def _blocker(self) -> str:
        """The task whose code is running on the loop now, as far as can be told."""
        running = asyncio.current_task(self._loop)
        for attempt in self._leases.held:
            if attempt.runner is running and attempt.job is not None:
                return attempt.job.task
        return "unknown"
