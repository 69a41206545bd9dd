"""Be a candidate for the lead, and do what a leader does: plan schedules, make the sweeps, count the queues."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.leader import LeaderLock
from jetjobs.worker.counting import QueueCounting
from jetjobs.worker.duties import Leader
from jetjobs.worker.lost import LostJobs
from jetjobs.worker.overdue import LATE_S
from jetjobs.worker.planner import Planner
from jetjobs.worker.sweeps import OVERDUE, sweeps


class Leadership:
    """One candidate. Each duty is harmless if two do it at once; the lock only saves work."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        name: str,
        lost: LostJobs,
        lease_s: float,
        sync: Callable[[], Awaitable[None]],
    ) -> None:
        """`sync` stores the schedules that our code declares."""
        self._jetstream = jetstream
        self._lock = LeaderLock(jetstream.connection, jetstream.publisher, jetstream.names.locks_bucket, name)
        self._leader = Leader(self._lock, sweeps(jetstream, lost, lease_s))
        self.planner = Planner(jetstream, lambda: self._lock.term, sync)
        self.counting = QueueCounting(jetstream, lambda: self._lock.held)

    @contextlib.asynccontextmanager
    async def campaign(self, *, count_queues: bool) -> AsyncIterator[None]:
        """Try for the lead while the block runs; give it up at once when it ends."""
        jetstream = self._jetstream
        sid = await jetstream.connection.nc.listen(
            jetstream.names.control(OVERDUE), lambda *_: self._leader.hasten(OVERDUE, LATE_S + 1.0)
        )
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
            with contextlib.suppress(Exception):
                await jetstream.connection.nc.unlisten(sid)
