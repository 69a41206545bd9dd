"""Be a candidate for the lead, and do what a leader does: plan schedules, make the sweeps, count the queues."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.leader_lock import LeaderLock
from jetjobs.jetstream.queues.queue_state import queue_state
from jetjobs.jetstream.topology import queues_on
from jetjobs.jetstream.workers.registry import workers_on
from jetjobs.model.errors import BrokerError, JetJobsError
from jetjobs.model.events import Observer
from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.wire.subjects import MAX_DELIVERIES
from jetjobs.worker.leader.duty_runner import Leader
from jetjobs.worker.leader.maintenance import HINTS, LATE_S, OVERDUE, sweeps
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from jetjobs.worker.scheduling.planner import Planner

COUNT_EVERY_S = 5.0
HINTS_WAIT_S = 1.0
"""Advisories of one second are looked at together, however many there are."""

_log = logging.getLogger("jetjobs.leader")


class QueueCounting:
    """Counts all queues every few seconds while it leads, for the metrics. Not a duty among the others: a long
    sweep must not make the counts old."""

    def __init__(self, jetstream: JetStreamClient, leads: Callable[[], bool]) -> None:
        self._jetstream = jetstream
        self._leads = leads
        self._states: list[QueueState] = []
        self._failing = False
        self.errors = 0
        """Queues that could not be counted."""

    @property
    def states(self) -> list[QueueState]:
        return self._states if self._leads() else []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            # What was counted in an earlier time as the leader must not show when the next one begins.
            self._states = await self._count() if self._leads() else []
            await asyncio.sleep(COUNT_EVERY_S if self._states else min(1.0, COUNT_EVERY_S))

    async def _count(self) -> list[QueueState]:
        """A queue that cannot be counted is left out: an old number would look like a true one."""
        connection, names = self._jetstream.connection, self._jetstream.names
        states: list[QueueState] = []
        try:
            queues = await queues_on(connection, names)
            workers = await workers_on(connection, names)
        except BrokerError as error:
            self._failed("", error)
            return []
        for queue in queues:
            try:
                states.append(await queue_state(connection, names, queue, workers))
            except JetJobsError as error:
                self._failed(queue, error)
        self._failing = self._failing and len(states) < len(queues)
        return states

    def _failed(self, queue: str, error: JetJobsError) -> None:
        self.errors += 1
        if not self._failing:
            extra = {"event": "leader.count_failed", "queue": queue, "error": str(error)}
            _log.warning("queues cannot be counted", extra=extra)
        self._failing = True


class Leadership:
    """One candidate. Each duty is harmless if two do it at once; the lock only saves work."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        name: str,
        lease_s: float,
        observe: Observer,
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        """`sync` stores the schedules that our code declares."""
        self.sync = sync
        self._jetstream = jetstream
        self._lock = LeaderLock(jetstream.connection, jetstream.publisher, jetstream.names.locks_bucket, name)
        self._stranded = StrandedJobs(jetstream, name, lease_s, observe)
        self._leader = Leader(self._lock, sweeps(jetstream, self._stranded))
        self.planner = Planner(jetstream, lambda: self._lock.term, sync)
        self.counting = QueueCounting(jetstream, lambda: self._lock.held)

    @contextlib.asynccontextmanager
    async def campaign(self, *, count_queues: bool) -> AsyncIterator[None]:
        """Try for the lead while the block runs; give it up at once when it ends."""
        nc = self._jetstream.connection.nc
        overdue = self._jetstream.names.control(OVERDUE)
        heard = [
            await nc.listen(overdue, lambda *_: self._leader.hasten(OVERDUE, LATE_S + 1.0)),
            await nc.listen(MAX_DELIVERIES, self._on_advisory),
        ]
        tasks = [asyncio.create_task(self._leader.run()), asyncio.create_task(self.planner.run())]
        if count_queues:
            # Counted by one, the others would only repeat it.
            tasks.append(asyncio.create_task(self.counting.run()))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for sid in heard:
                with contextlib.suppress(Exception):
                    await nc.unlisten(sid)

    def _on_advisory(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if self._stranded.hint(data):
            self._leader.hasten(HINTS, HINTS_WAIT_S)
