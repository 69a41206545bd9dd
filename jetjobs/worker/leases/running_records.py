"""Publish what runs: a record of each long-running job, and its progress.

A record has a TTL, so that it disappears with its worker.
"""

from __future__ import annotations

import asyncio
import json

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import kv_subject
from jetjobs.worker.attempt import Attempt, Progress
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.leases.loop_monitor import TICK_S, LoopMonitor

MIN_RUN_S = 0.25
"""Shorter jobs get no record."""
LATE_S = 1.5 * TICK_S
"""Without a tick for this long, the heartbeat thread writes the records in place of the event loop."""
ANSWER_S = 2.0
_DELETED = {h.KV_OPERATION: "DEL", h.TTL: "1s"}


class RunningRecords:
    """Writes the records of one worker."""

    def __init__(self, jetstream: JetStreamClient, worker: str, leases: LeaseTable, monitor: LoopMonitor) -> None:
        self._connection = jetstream.connection
        self._names = jetstream.names
        self._bucket = jetstream.names.running_bucket
        self._headers = {h.TTL: f"{max(1, round(2 * leases.lease_s))}s"}
        self._worker = worker
        self._leases = leases
        self._clock = leases.clock
        self._monitor = monitor
        self._writing: set[asyncio.Task[None]] = set()
        """Belongs to the heartbeat thread."""

    # On the worker's event loop

    def write_due(self, now: float) -> None:
        """Write the records that are due. Called at every tick."""
        for attempt in self._leases.held:
            job = attempt.job
            if job is not None and self._is_due(attempt, now):
                attempt.recorded_at = now
                progress = attempt.progress
                record = self._record(attempt, job, progress)
                self._connection.post(kv_subject(self._bucket, job.id), record, headers=self._headers)
                if progress is not None and not progress.sent:
                    self._publish(job, progress, record, self._connection)

    def publish_last_progress(self, attempt: Attempt) -> None:
        """Publish what no tick has published before the attempt ended. The last report is never lost."""
        job, progress = attempt.job, attempt.progress
        if progress is not None and not progress.sent and job is not None and attempt.owned():
            self._publish(job, progress, self._record(attempt, job, progress), self._connection)

    def delete(self, attempt: Attempt) -> None:
        """Delete the record of a job that has ended. Its deletion mark lasts a second: until then readers see
        that the job is ending."""
        if attempt.recorded_at and attempt.job is not None:
            self._connection.post(kv_subject(self._bucket, attempt.job.id), b"", headers=_DELETED)

    # In the heartbeat thread

    def write_late(self, now: float, connection: Connection) -> None:
        """Write the records that are due while the worker's event loop is blocked."""
        if now - self._monitor.ticked_at < LATE_S:
            return
        for attempt in self._leases.held:
            if attempt.job is not None and self._is_due(attempt, now):
                writing = self._write_through(attempt, attempt.job, now, connection)
                task = asyncio.get_running_loop().create_task(writing)
                self._writing.add(task)
                task.add_done_callback(self._writing.discard)

    async def _write_through(self, attempt: Attempt, job: Job, now: float, connection: Connection) -> None:
        before, attempt.recorded_at = attempt.recorded_at, now
        progress, subject = attempt.progress, kv_subject(self._bucket, job.id)
        record = self._record(attempt, job, progress)
        if progress is not None and not progress.sent:
            self._publish(job, progress, record, connection)
        try:
            await connection.ask(subject, record, self._headers, ANSWER_S)
        except BrokerError:
            attempt.recorded_at = before
        if not attempt.running:
            # It has ended in the meantime. The event loop deleted the record through another connection, and
            # that deletion may have arrived before this record.
            connection.post(subject, b"", headers=_DELETED)

    # In both

    def _is_due(self, attempt: Attempt, now: float) -> bool:
        if not attempt.running or now - attempt.started_at < MIN_RUN_S:
            return False
        unsent = attempt.progress is not None and not attempt.progress.sent
        return unsent or now - attempt.recorded_at >= self._leases.lease_s / 3

    def _publish(self, job: Job, progress: Progress, record: bytes, connection: Connection) -> None:
        progress.sent = connection.post(self._names.job_event(n.PROGRESS, job.queue, job.task, job.id), record)

    def _record(self, attempt: Attempt, job: Job, progress: Progress | None) -> bytes:
        record: dict[str, object] = {
            "id": job.id,
            "run": job.run,
            "task": job.task,
            "queue": job.queue,
            "attempt": job.attempt,
            "worker": self._worker,
            "started_at": round(self._clock.time() - (self._clock.monotonic() - attempt.started_at), 6),
        }
        if progress is not None:
            record["progress"], record["message"] = progress.fraction, progress.message
        return json.dumps(record).encode()
