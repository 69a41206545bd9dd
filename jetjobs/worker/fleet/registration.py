"""Registration of a worker: its record in the registry and the control requests it answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.workers.registry import new_key
from jetjobs.worker.fleet.control import Control, Spawn
from jetjobs.worker.fleet.worker_record import RecordWriter
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.heartbeat_thread import HeartbeatThread
from jetjobs.worker.leases.lease_table import Leases

REGISTER_S = 1.0
"""How long a start waits to be registered: requests to all workers should reach a worker before it has jobs."""


class Membership:
    """The worker's record, written by the heartbeat thread, and the control requests. Inert until `open`."""

    def __init__(self, jetstream: JetStreamClient, name: str, leases: Leases, spawn: Spawn) -> None:
        self._name = name
        self._key = new_key(name)
        self._jetstream = jetstream
        self._leases = leases
        self._thread: HeartbeatThread | None = None
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
        record = RecordWriter(self._jetstream, self._key, self._name, registry, queues, slots, self._leases, phase)
        stack.push_async_callback(self.control.close)
        await self.control.open()
        self._thread = HeartbeatThread(self._jetstream, self._leases, record.write_if_due, record.remove)
        stack.push_async_callback(self._thread.stop)
        self._thread.start()
        await asyncio.to_thread(record.registered.wait, REGISTER_S)

    def changed(self) -> None:
        """The worker has entered another phase: the registry is told at once."""
        if self._thread is not None:
            self._thread.wake()
