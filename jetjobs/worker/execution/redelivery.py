"""Decide whether a job that was delivered before may run again."""

from __future__ import annotations

from jetjobs.jetstream.jobs.locator import JobLocator
from jetjobs.model.job import Job
from jetjobs.model.outcome import Abandoned, DeadLettered, DeadReason, ErrorInfo, Outcome, Suspected
from jetjobs.worker.attempt import Attempt


class RedeliveryCheck:
    """A redelivery has one of two causes: an acknowledgement was lost, or the worker crashed."""

    def __init__(self, locator: JobLocator, max_crashes: int) -> None:
        self._locator = locator
        self._max_crashes = max_crashes

    async def check(self, attempt: Attempt, job: Job) -> Outcome | None:
        """The outcome of a job that must not run again; None if it may run."""
        outcome = await attempt.retry_while_owned(lambda: self._outcome(attempt, job))
        if outcome is None and not attempt.owned():
            return Abandoned(ack=False)  # the lease ran out during the check: another worker may run the job
        return outcome

    async def _outcome(self, attempt: Attempt, job: Job) -> Outcome | None:
        """Some deliveries may have gone to workers that never read them, so only a crash in quarantine proves that
        the job crashes its worker. ADR 29."""
        if await self._locator.was_settled(job):
            return Abandoned(ack=True, ended=True)
        redelivered = attempt.delivery.delivered - 1
        crashes = job.crashes + redelivered
        if not attempt.suspect and self._max_crashes > 1:
            return Suspected() if crashes >= self._max_crashes - 1 else None
        if attempt.suspect and not (redelivered and await self._locator.ran_alone(job)):
            return None
        text = f"the worker crashed or lost its lease during {crashes} deliveries"
        return DeadLettered(DeadReason.CRASHED, ErrorInfo("Crashed", text))
