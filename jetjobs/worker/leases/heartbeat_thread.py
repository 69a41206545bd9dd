"""Heartbeats and the worker's record from a thread and connection of their own, which no task can block."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.workers.registry import new_key
from jetjobs.model.errors import BrokerError
from jetjobs.worker.fleet.control import Control, Spawn
from jetjobs.worker.fleet.worker_record import RecordWriter
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.lease_table import TICK_S, Leases

BLOCKED_S = 1.0
"""A loop that has not turned for this long is reported."""
REGISTER_S = 1.0
"""How long a start waits for the registry: whoever asks all workers is to know of one before it has jobs."""
_RETRY_S = 2.0

_log = logging.getLogger("jetjobs.worker")


class LeaseKeeper:
    """Extends leases at a third of their time, watches the worker's loop while it is at it, and keeps the worker
    in the registry.

    It beats only while the worker's own connection lives: a worker that cannot settle must not keep its jobs.
    """

    def __init__(self, jetstream: JetStreamClient, leases: Leases, presence: RecordWriter) -> None:
        self._jetstream = jetstream
        self._leases = leases
        self._presence = presence
        self._loop = asyncio.get_running_loop()
        self._told_of = 0.0
        self._own_loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._woken = asyncio.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="jetjobs-keeper", daemon=True)

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
                await self._presence.remove(self._connection)
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
            self._presence.write_if_due(now, connection)

    async def _connect(self) -> Connection | None:
        connection = self._jetstream.beside("keeper")
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


class Membership:
    """The keeper's thread with the worker's record, and the control requests. Inert until `open`."""

    def __init__(self, jetstream: JetStreamClient, name: str, leases: Leases, spawn: Spawn) -> None:
        self._name = name
        self._key = new_key(name)
        self._jetstream = jetstream
        self._leases = leases
        self._keeper: LeaseKeeper | None = None
        self.control = Control(jetstream.connection, jetstream.names, self._key, spawn)

    async def open(
        self,
        stack: contextlib.AsyncExitStack,
        registry: Router,
        queues: Mapping[str, int | None],
        slots: Slots,
        phase: Callable[[], str],
    ) -> None:
        """Until the stack is closed: then the record goes first, and nothing is answered any more."""
        presence = RecordWriter(
            self._jetstream, self._key, self._name, registry, queues, slots, self._leases, phase
        )
        stack.push_async_callback(self.control.close)
        await self.control.open()
        self._keeper = LeaseKeeper(self._jetstream, self._leases, presence)
        stack.push_async_callback(self._keeper.stop)
        self._keeper.start()
        await asyncio.to_thread(presence.registered.wait, REGISTER_S)

    def changed(self) -> None:
        """The worker has entered another phase: the registry is told at once."""
        if self._keeper is not None:
            self._keeper.wake()
