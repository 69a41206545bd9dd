"""One worker as a candidate for leader: plan schedules, run maintenance and count queues while it leads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.leader_lock import LeaderLock
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.queues.queue_state import queue_state
from jetjobs.jetstream.workers.registry import list_workers
from jetjobs.model.errors import BrokerError, JetJobsError
from jetjobs.model.events import Observer
from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.wire.subjects import MAX_DELIVERIES
from jetjobs.worker.leader.duty_runner import DutyRunner
from jetjobs.worker.leader.maintenance import HINTS, duties
from jetjobs.worker.leader.overdue_jobs import LATE_S, OVERDUE
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from jetjobs.worker.scheduling.planner import Planner

COUNT_EVERY_S = 5.0
HINTS_WAIT_S = 1.0
"""Advisories that arrive within this time are checked together."""

_log = logging.getLogger("jetjobs.leader")


class QueueCounter:
    """Counts the jobs of all queues every few seconds while this worker leads, for the metrics.

    It does not run as a duty: a long duty would delay it and make the counts stale.
    """

    def __init__(self, jetstream: JetStreamClient, leads: Callable[[], bool]) -> None:
        self._jetstream = jetstream
        self._leads = leads
        self._states: list[QueueState] = []
        self._failing = False
        self.errors = 0
        """How often a queue could not be counted."""

    @property
    def states(self) -> list[QueueState]:
        return self._states if self._leads() else []

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            # Counts of an earlier term must not show up when the next one begins.
            self._states = await self._count() if self._leads() else []
            await asyncio.sleep(COUNT_EVERY_S if self._states else min(1.0, COUNT_EVERY_S))

    async def _count(self) -> list[QueueState]:
        """Leaves out a queue that cannot be counted: a stale number would look current."""
        connection, names = self._jetstream.connection, self._jetstream.names
        states: list[QueueState] = []
        try:
            queues = await list_queues(connection, names)
            workers = await list_workers(connection, names)
        except BrokerError as error:
            self._on_failure("", error)
            return []
        for queue in queues:
            try:
                states.append(await queue_state(connection, names, queue, workers))
            except JetJobsError as error:
                self._on_failure(queue, error)
        self._failing = self._failing and len(states) < len(queues)
        return states

    def _on_failure(self, queue: str, error: JetJobsError) -> None:
        self.errors += 1
        if not self._failing:
            extra = {"event": "leader.count_failed", "queue": queue, "error": str(error)}
            _log.warning("the jobs of a queue could not be counted", extra=extra)
        self._failing = True


class Leadership:
    """One candidate. Every duty is harmless if two workers do it at once; the lock only saves work."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        name: str,
        lease_s: float,
        observe: Observer,
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        """`sync` stores the schedules that this worker's code declares."""
        self.sync = sync
        self._jetstream = jetstream
        self._lock = LeaderLock(jetstream.connection, jetstream.publisher, jetstream.names.locks_bucket, name)
        self._stranded = StrandedJobs(jetstream, name, lease_s, observe)
        self._runner = DutyRunner(self._lock, duties(jetstream, self._stranded))
        self.planner = Planner(jetstream, lambda: self._lock.term, sync)
        self.queue_counter = QueueCounter(jetstream, lambda: self._lock.held)

    @contextlib.asynccontextmanager
    async def campaign(self, *, count_queues: bool) -> AsyncIterator[None]:
        """Try to become the leader while the block runs; resign when it ends."""
        nc = self._jetstream.connection.nc
        overdue = self._jetstream.names.control(OVERDUE)
        sids = [
            await nc.listen(overdue, lambda *_: self._runner.request(OVERDUE, LATE_S + 1.0)),
            await nc.listen(MAX_DELIVERIES, self._on_advisory),
        ]
        tasks = [asyncio.create_task(self._runner.run()), asyncio.create_task(self.planner.run())]
        if count_queues:
            # Only the leader counts: other workers would report the same numbers.
            tasks.append(asyncio.create_task(self.queue_counter.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for sid in sids:
                with contextlib.suppress(Exception):
                    await nc.unlisten(sid)

    def _on_advisory(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if self._stranded.add_hint(data):
            self._runner.request(HINTS, HINTS_WAIT_S)
