"""Register this worker: write its record to the registry and open its control requests.

The heartbeat thread writes the record, so that a worker with a blocked event loop shows as lagging, not as dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import resource
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import metadata

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.workers.registry import (
    BEAT_S,
    TASK_RENEW_S,
    deregister,
    new_key,
    publish_tasks,
    register,
)
from jetjobs.model.errors import BrokerError
from jetjobs.model.views.worker_info import QueueSlots, RunningJob, WorkerRecord
from jetjobs.model.wire.lenient_json import as_time
from jetjobs.model.wire.subjects import kv_stream
from jetjobs.worker.fleet.control import Control
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.heartbeat_thread import HeartbeatThread
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.leases.loop_monitor import LoopMonitor
from jetjobs.worker.leases.running_records import RunningRecords
from jetjobs.worker.options import Spawn

REGISTER_S = 1.0
"""How long a start waits to be registered: requests to all workers should reach a worker before it has jobs."""
RETRY_S = 60.0
"""How long a worker waits before it publishes definitions of tasks again that could not be stored."""
MAX_RUNNING = 100
"""Running jobs listed in a record. It is written every few seconds and must stay small."""

_log = logging.getLogger("jetjobs.worker")


class Registration:
    """The worker's record, written by the heartbeat thread, and the control requests. Inactive until `open`."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        name: str,
        leases: LeaseTable,
        records: RunningRecords,
        monitor: LoopMonitor,
        spawn: Spawn,
    ) -> None:
        self._name = name
        self._key = new_key(name)
        self._jetstream = jetstream
        self._leases = leases
        self._monitor = monitor
        self._records = records
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
        """Register until the stack closes: then the record is removed first and requests get no more replies."""
        record = RecordWriter(
            self._jetstream, self._key, self._name, registry, queues, slots, self._leases, self._monitor, phase
        )
        stack.push_async_callback(self.control.close)
        await self.control.open()
        self._thread = HeartbeatThread(
            self._jetstream, self._leases, self._records, self._monitor, record.write_if_due, record.remove
        )
        stack.push_async_callback(self._thread.stop)
        self._thread.start()
        await asyncio.to_thread(record.registered.wait, REGISTER_S)

    def changed(self) -> None:
        """Write the record now, because the worker has entered another phase."""
        if self._thread is not None:
            self._thread.wake()


class RecordWriter:
    """Writes the record of one worker. Created on the worker's event loop, used by the heartbeat thread."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        key: str,
        name: str,
        registry: Router,
        queues: Mapping[str, int | None],
        slots: Slots,
        leases: LeaseTable,
        monitor: LoopMonitor,
        phase: Callable[[], str],
    ) -> None:
        self._names = jetstream.names
        self._clock = jetstream.server_clock
        self._refused = jetstream.publisher.refused
        self._stream = kv_stream(jetstream.names.workers_bucket)
        self._key = key
        self._name = name
        self._queues = queues
        self._slots = slots
        self._leases = leases
        self._monitor = monitor
        self._phase = phase
        tasks = registry.tasks if slots.total else {}
        self._definitions = [task.definition for name, task in tasks.items() if name == task.name]
        self._tasks = {name: task.definition.fingerprint for name, task in tasks.items()}
        self._publish_at = 0.0
        self._unpublished = False
        self._version = _version()
        self._host, self._started_at = socket.gethostname(), self._clock.time()
        self._beat_at = 0.0
        self._written_phase = ""
        self._writing: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._warned = False
        self.registered = threading.Event()
        """Set after the first attempt to write the record, whether it succeeded or not."""

    # In the heartbeat thread

    def write_if_due(self, now: float, connection: Connection) -> None:
        """Write the record if its interval has passed or the phase has changed. Called at every tick."""
        phase = self._phase()
        if self._writing is not None and not self._writing.done():
            return
        if phase != self._written_phase or now - self._beat_at >= BEAT_S:
            self._beat_at, self._written_phase = now, phase
            self._writing = asyncio.get_running_loop().create_task(self._write(connection))
            if now >= self._publish_at and (self._publishing is None or self._publishing.done()):
                self._publishing = asyncio.get_running_loop().create_task(self._publish_tasks(now, connection))

    async def _write(self, connection: Connection) -> None:
        try:
            await register(connection, self._names, self.record())
        except BrokerError as error:
            # An idle worker writes nothing else, so this is how it notices that nothing can be stored.
            await self._refused.failed(self._stream, error, connection)
            if not self._warned:
                self._warned = True
                extra = {"event": "worker.unregistered", "error": str(error)}
                _log.warning("the worker could not register; it keeps working", extra=extra)
        else:
            self._refused.stored(self._stream)
            self._warned = False
        finally:
            self.registered.set()

    async def _publish_tasks(self, now: float, connection: Connection) -> None:
        """Write the definitions of the tasks at the start, and again from time to time, before they expire."""
        self._publish_at = now + RETRY_S
        try:
            await publish_tasks(connection, self._names, self._definitions)
        except BrokerError as error:
            if not self._unpublished:
                extra = {"event": "worker.tasks_unpublished", "error": str(error)}
                _log.warning("the definitions of the tasks could not be stored; retrying", extra=extra)
            self._unpublished = True
        else:
            self._publish_at, self._unpublished = now + TASK_RENEW_S, False

    async def remove(self, connection: Connection) -> None:
        """Remove the record."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=1.0)
        if connection.connected:
            with contextlib.suppress(BrokerError):
                await deregister(connection, self._names, self._key)

    def record(self) -> WorkerRecord:
        """The current state, as far as another thread can see it."""
        now, wall = time.monotonic(), self._clock.time()
        running = []
        for attempt in self._leases.held:
            job = attempt.job
            if job is not None and attempt.started_at:
                running.append((round(wall - (now - attempt.started_at), 3), job))
        running.sort(key=lambda entry: entry[0])
        return WorkerRecord(
            key=self._key,
            name=self._name,
            host=self._host,
            pid=os.getpid(),
            version=self._version,
            python=platform.python_version(),
            phase=self._phase(),
            queues=queue_slots(self._queues, self._slots, self._leases),
            tasks=self._tasks,
            busy=self._slots.busy,
            total=self._slots.total,
            running=tuple(RunningJob(j.id, j.task, j.queue, as_time(t)) for t, j in running[:MAX_RUNNING]),
            lag=timedelta(seconds=self._monitor.lag_s),
            memory_bytes=memory_bytes(),
            started_at=as_time(self._started_at),
            lease=timedelta(seconds=self._leases.lease_s),
            refused=tuple(self._refused.reasons()),
        )


def queue_slots(queues: Mapping[str, int | None], slots: Slots, leases: LeaseTable) -> dict[str, QueueSlots]:
    """By queue: how many of its jobs hold a slot and how many may at once. Queues share slots: not a sum."""
    busy = Counter(attempt.queue for attempt in leases.held if attempt.asyncio_task is not None)
    return {q: QueueSlots(busy[q], min(cap or slots.total, slots.total)) for q, cap in queues.items()}


def memory_bytes() -> int:
    """Memory used by this process, or its peak where the system does not report current use."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024


def _version() -> str:
    try:
        return metadata.version("jetjobs")
    except metadata.PackageNotFoundError:
        return "unknown"
