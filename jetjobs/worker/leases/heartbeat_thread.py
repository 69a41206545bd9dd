"""The heartbeat thread: extends leases on a connection of its own, which no task can block. ADR 8."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError, ConfigError
from jetjobs.worker.leases.lease_table import Heartbeats, LeaseTable
from jetjobs.worker.leases.loop_monitor import TICK_S, LoopMonitor
from jetjobs.worker.leases.running_records import RunningRecords

BLOCKED_S = 1.0
"""An event loop without a tick for this long is reported."""
RECONNECT_S = 2.0
JOIN_S = 5.0

_log = logging.getLogger("jetjobs.worker")


class HeartbeatThread:
    """Extends each lease when a third of it has passed, and writes running records while the worker's event loop
    is blocked.

    It sends heartbeats only while the worker's own connection is up: a worker that cannot settle its jobs must not
    keep them.
    """

    def __init__(
        self,
        jetstream: JetStreamClient,
        leases: LeaseTable,
        records: RunningRecords,
        monitor: LoopMonitor,
        each_turn: Callable[[float, Connection], None],
        at_end: Callable[[Connection], Awaitable[None]],
    ) -> None:
        """Both callables run in the thread: `each_turn` while it is connected, `at_end` before it disconnects."""
        self._jetstream = jetstream
        self._leases = leases
        self._clock = leases.clock
        self._records = records
        self._monitor = monitor
        self._heartbeats = Heartbeats(leases)
        self._each_turn = each_turn
        self._at_end = at_end
        self._worker_loop = asyncio.get_running_loop()
        self._reported_tick = 0.0
        self._own_loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._woken = asyncio.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="jetjobs-heartbeats", daemon=True)

    def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        """Stop without waiting for heartbeats: every job is settled by now."""
        self._stop.set()
        self.wake()
        await asyncio.to_thread(self._thread.join, JOIN_S)

    def wake(self) -> None:
        """Take the next turn now: the worker's record has changed."""
        with contextlib.suppress(RuntimeError):  # its event loop has ended
            self._own_loop.call_soon_threadsafe(self._woken.set)

    # In the thread

    def _run(self) -> None:
        with contextlib.closing(self._own_loop):
            self._own_loop.run_until_complete(self._take_turns())

    async def _take_turns(self) -> None:
        connect_at = 0.0
        while not self._stop.is_set():
            now = self._clock.monotonic()
            if self._connection is None and now >= connect_at:
                self._connection = await self._connect()
                connect_at = now + RECONNECT_S
            try:
                self._turn()
            except Exception as error:  # without this thread's heartbeats jobs would run twice
                extra = {"event": "worker.fault"}
                _log.error("internal error in jetjobs, please report it", exc_info=error, extra=extra)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), min(TICK_S, self._leases.lease_s / 6))
            self._woken.clear()
        with contextlib.suppress(Exception):
            if self._connection is not None:
                await self._at_end(self._connection)
                await self._connection.close()
        # Heartbeats without an answer have failed with the connection. Let them end on this event loop.
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=1.0)

    def _turn(self) -> None:
        now, connection = self._clock.monotonic(), self._connection
        if connection is not None and connection.connected and self._jetstream.connection.connected:
            self._heartbeats.send(now, connection, 1 / 3)
            self._records.write_late(now, connection)
        if connection is not None and connection.closed.is_set():
            self._connection = None
        self._report_blocked_loop()
        if connection is not None and connection.connected:
            self._each_turn(now, connection)

    async def _connect(self) -> Connection | None:
        connection = self._jetstream.extra_connection("heartbeats")
        try:
            await connection.open()
        except (BrokerError, ConfigError) as error:
            # The worker's event loop sends the heartbeats instead, as long as nothing blocks it.
            extra = {"event": "heartbeats.disconnected", "error": str(error)}
            _log.debug("the heartbeat thread is not connected", extra=extra)
            with contextlib.suppress(Exception):
                await connection.close()
            return None
        return connection

    def _report_blocked_loop(self) -> None:
        ticked_at, silent_s = self._monitor.ticked_at, self._monitor.silent_s
        if silent_s >= BLOCKED_S and self._reported_tick != ticked_at:
            self._reported_tick = ticked_at  # once each time it is blocked
            extra = {"event": "worker.loop_blocked", "task": self._blocking_task(), "lag_s": round(silent_s, 3)}
            _log.warning("the event loop is blocked: run blocking code in a plain `def` task", extra=extra)

    def _blocking_task(self) -> str:
        """The name of the task whose code runs on the event loop now, if it can be determined."""
        running = asyncio.current_task(self._worker_loop)
        for attempt in self._leases.held:
            if attempt.asyncio_task is running and attempt.job is not None:
                return attempt.job.task
        return "unknown"
