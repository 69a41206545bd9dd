"""A scheduler: a candidate for the lead that runs no jobs. It plans schedules, makes the sweeps, counts queues."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Mapping, Sequence

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.events import Observer
from jetjobs.model.queue_counts import QueueCounts
from jetjobs.model.schedule import Schedule
from jetjobs.worker.declared import sync_declared
from jetjobs.worker.leading import Leadership
from jetjobs.worker.lost import LostJobs

_log = logging.getLogger("jetjobs.scheduler")


class Scheduler:
    """Made by the app; `run` returns when it was told to stop."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        name: str,
        app: str,
        declared: Mapping[str, Schedule],
        lease_s: float,
        observe: Observer,
    ) -> None:
        """`declared` are the schedules in the code of `app`."""
        self.name = name
        self._jetstream = jetstream
        self._sync = functools.partial(sync_declared, jetstream, app, declared)
        lost = LostJobs(jetstream, name, observe)
        self._leadership = Leadership(jetstream, name, lost, lease_s, self._sync)
        self._stopping = asyncio.Event()
        self._open = False
        self.count_queues = False
        """Whether to count all queues while it leads. Set before `run`, where somebody asks for the counts."""

    async def run(self) -> None:
        """Until `quiet` or `stop`. BrokerError when the connection is gone for good."""
        _log.info("scheduler started", extra={"event": "scheduler.started"})
        working = asyncio.create_task(self._work())
        stopping = asyncio.create_task(self._stopping.wait())
        closed = asyncio.create_task(self._jetstream.connection.closed.wait())
        try:
            await asyncio.wait({working, stopping, closed}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()  # raises what ended it; it ends only by an error
            if not stopping.done():
                raise BrokerUnavailable("the server closed the connection for good")
        finally:
            self._open = False
            for task in (working, stopping, closed):
                task.cancel()
            await asyncio.gather(working, stopping, closed, return_exceptions=True)
        _log.info("scheduler stopped", extra={"event": "scheduler.stopped"})

    async def _work(self) -> None:
        await self._sync()
        async with self._leadership.campaign(count_queues=self.count_queues):
            self._open = True
            _log.info("scheduler ready", extra={"event": "scheduler.ready"})
            await asyncio.Event().wait()

    def quiet(self) -> None:
        """Give up the lead, if it has it, and end."""
        self._stopping.set()

    def stop(self) -> None:
        """The same: it has no jobs to finish."""
        self.quiet()

    # Asked by probes and metrics, from another thread

    @property
    def ready(self) -> bool:
        return self._open and self._jetstream.connection.connected

    @property
    def running_jobs(self) -> Mapping[str, int]:
        return {}

    @property
    def slots_of(self) -> Mapping[str, int]:
        return {}

    @property
    def stuck_threads(self) -> int:
        return 0

    @property
    def queue_counts(self) -> Sequence[QueueCounts]:
        return self._leadership.counting.counts

    @property
    def queue_workers(self) -> Mapping[str, int]:
        return self._leadership.counting.workers

    @property
    def count_errors(self) -> int:
        return self._leadership.counting.errors

    @property
    def schedule_lateness(self) -> Mapping[str, float]:
        """By schedule, while it leads: how late its next slot is, in seconds."""
        return self._leadership.planner.lateness()
