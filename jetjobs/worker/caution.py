"""What is looked at before a job runs that was delivered before, or that may have to give way to another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from jetjobs.jetstream.places import Places
from jetjobs.jetstream.ticks import Ticks
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo, LetGo, Outcome, Suspected
from jetjobs.worker.attempt import Attempt

LOOK_AGAIN_S = 1.0

T = TypeVar("T")


class Caution:
    """Asks the server. A job's first delivery pays nothing for it."""

    def __init__(self, places: Places, ticks: Ticks, max_crashes: int) -> None:
        self._places = places
        self._ticks = ticks
        self._max_crashes = max_crashes

    async def before(self, attempt: Attempt, job: Job) -> Outcome | None:
        """What follows without a run, if anything, of a job that was delivered before."""
        early = await patiently(attempt, lambda: self._after_crash(attempt, job))
        if early is None and not attempt.owned():
            return LetGo(ack=False)  # the look outlasted the lease: another may run it by now
        return early

    async def _after_crash(self, attempt: Attempt, job: Job) -> Outcome | None:
        """Perhaps only the ack was lost; perhaps it kills whoever runs it."""
        if await self._places.has_moved_on(job):
            return LetGo(ack=True)
        again, alone = attempt.delivery.delivered - 1, attempt.lane == n.LONE
        if alone and again and not await self._places.ran_alone(job):
            again = 0  # a worker died that only held it: that was not its doing
        crashes, most = job.crashes + again, self._max_crashes
        # Deliveries may have gone to workers that never read them. Only a run alone tells who is guilty. ADR 11.
        if crashes >= most and (alone or most == 1):
            text = f"{crashes} deliveries ended without a word from the worker"
            return DeadLettered(DeadReason.CRASHED, ErrorInfo("Crashed", text))
        if alone:
            await self._places.mark_alone(job)
        elif crashes and crashes >= most - 1:
            return Suspected(most - 1)
        return None

    async def gives_way(self, attempt: Attempt, job: Job) -> bool:
        """Whether a tick must give way to an earlier one. Asked of ticks that have not begun: those that have are
        moved without the header. What a worker took with it when it died is asked of again: it may not have begun,
        and two must not run at once."""
        return job.attempt == 1 and await patiently(attempt, lambda: self._ticks.earlier(job))


async def patiently(attempt: Attempt, look: Callable[[], Awaitable[T]]) -> T:
    """What `look` finds. A server that does not answer is asked again while the lease is ours: to give up would
    count as a crash of the job."""
    while True:
        try:
            return await look()
        except BrokerUnavailable:
            if not attempt.owned():
                raise
        await asyncio.sleep(LOOK_AGAIN_S)
