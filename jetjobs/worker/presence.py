"""A worker tells the registry of itself, from the keeper's thread: a blocked loop shows as lag, not as death."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import resource
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from importlib import metadata

from jetjobs.define.registry import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.registry import BEAT_S, Seat
from jetjobs.model.errors import BrokerError
from jetjobs.model.presence import QueueSlots, RunningJob, WorkerRecord
from jetjobs.worker.leases import TICK_S, Leases
from jetjobs.worker.slots import Slots

MOST_RUNNING = 100
"""A record is written every few seconds: it names so many jobs at most."""

_log = logging.getLogger("jetjobs.worker")


class Presence:
    """The record of one worker. Made on the worker's loop; `look` and `leave` are the keeper's."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        name: str,
        registry: Router,
        queues: Mapping[str, int | None],
        slots: Slots,
        leases: Leases,
        phase: Callable[[], str],
        on_key: Callable[[str], None],
    ) -> None:
        """`on_key` is told, in the keeper's thread, of the key that the registry has for us."""
        self._seat = Seat(jetstream.names, name)
        self._name = name
        self._queues = queues
        self._slots = slots
        self._leases = leases
        self._phase = phase
        self._tasks = {task.name: task.signature.fingerprint for task in registry.tasks.values()}
        self._version = _version()
        self._host, self._started_at, self._token = socket.gethostname(), time.time(), secrets.token_hex(4)
        self._beat_at = 0.0
        self._told_phase = ""
        self._worst_lag_s = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._warned = False
        self.registered = threading.Event()
        """Set after the first try, however it went."""
        self._on_key, self._told_key = on_key, ""

    # In the keeper's thread

    def look(self, now: float, connection: Connection, lag_s: float) -> None:
        """Called at every tick: write the record when a beat is due, or the phase has changed."""
        # A loop that turns every TICK_S has, at any look, last turned up to TICK_S ago.
        self._worst_lag_s = max(self._worst_lag_s, lag_s - TICK_S)
        phase = self._phase()
        if self._writing is not None and not self._writing.done():
            return
        if phase != self._told_phase or now - self._beat_at >= BEAT_S:
            self._beat_at, self._told_phase = now, phase
            self._writing = asyncio.get_running_loop().create_task(self._write(connection))

    async def _write(self, connection: Connection) -> None:
        lag_s, self._worst_lag_s = self._worst_lag_s, 0.0
        try:
            await self._seat.put(connection, self.record(lag_s))
        except BrokerError as error:
            if not self._warned:
                self._warned = True
                extra = {"event": "worker.unregistered", "error": str(error)}
                _log.warning("the worker is not in the registry; its work goes on", extra=extra)
        else:
            self._warned = False
            if self._seat.key != self._told_key:
                self._told_key = self._seat.key
                self._on_key(self._told_key)
        finally:
            self.registered.set()

    async def leave(self, connection: Connection) -> None:
        """Take the record away."""
        if self._writing is not None:
            await asyncio.wait({self._writing}, timeout=1.0)
        if connection.connected:
            with contextlib.suppress(BrokerError):
                await self._seat.leave(connection)

    def record(self, lag_s: float) -> WorkerRecord:
        """What is true now, as far as it can be seen from another thread."""
        now, wall = time.monotonic(), time.time()
        running = []
        busy_of = dict.fromkeys(self._queues, 0)
        for attempt in self._leases.held:
            job = attempt.job
            if attempt.runner is not None and attempt.queue in busy_of:
                busy_of[attempt.queue] += 1
            if job is not None and attempt.started_at:
                since = round(wall - (now - attempt.started_at), 3)
                running.append(RunningJob(job.id, job.task, job.queue, since))
        running.sort(key=lambda job: job.since)
        total = self._slots.total
        return WorkerRecord(
            key=self._seat.key,
            name=self._name,
            host=self._host,
            pid=os.getpid(),
            version=self._version,
            python=platform.python_version(),
            phase=self._phase(),
            queues={q: QueueSlots(busy_of[q], min(cap or total, total)) for q, cap in self._queues.items()},
            tasks=self._tasks,
            busy=self._slots.busy,
            total=total,
            running=tuple(running[:MOST_RUNNING]),
            lag_s=max(0.0, lag_s),
            memory_bytes=memory_bytes(),
            started_at=self._started_at,
            token=self._token,
        )


def memory_bytes() -> int:
    """Memory in use by this process; where the system does not say, the most it ever was."""
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
