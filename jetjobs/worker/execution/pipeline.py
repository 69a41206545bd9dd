"""One delivery from its start to its end: read it, run it, settle what came of it, tell the observers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.codec import decode, decode_malformed
from jetjobs.model.errors import BrokerError, MalformedJob, StorageFull
from jetjobs.model.events import JobFinished, Observer, SettleFailed
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.outcome import (
    Abandoned,
    DeadLettered,
    DeadReason,
    ErrorInfo,
    Outcome,
    Released,
    Retried,
    Snoozed,
    Suspected,
    refuse,
)
from jetjobs.model.wire.headers import PARENT
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.execution.executor import Runner
from jetjobs.worker.execution.settlement import Settlement
from jetjobs.worker.leases.lease_table import Leases

SETTLE_AGAIN_S = 1.0

_log = logging.getLogger("jetjobs.worker")


class Processing:
    """Takes attempts through run and settle. Never raises for what a job, a task or the server does."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        runner: Runner,
        settlement: Settlement,
        leases: Leases,
        observe: Observer,
        on_stuck: Callable[[int, int], None],
        max_crashes: int,
    ) -> None:
        """`on_stuck` is told how many outcomes cannot be stored now, and how many of them for want of storage."""
        self._connection = jetstream.connection
        self._places = jetstream.locator
        self._max_crashes = max_crashes
        self._on_stuck = on_stuck
        self._stuck = self._full = 0
        self._runner = runner
        self._settlement = settlement
        self._leases = leases
        self._observe = observe

    async def process(self, attempt: Attempt) -> None:
        """Run a delivery and settle it."""
        try:
            job, early = self._read(attempt)
            if early is None and (attempt.delivery.delivered > 1 or job.crashes):
                early = await self._look_back(attempt, job)
                if early is None and attempt.alone:
                    await self._places.mark_alone(job)
            outcome = early or await self._runner.run(attempt, job)
            ended_at = time.monotonic()
            outcome = self._runner.if_cancelled(job, outcome)
            if attempt.report is not None:
                self._leases.tell_last(attempt)
            outcome = await self._settle(attempt, job, outcome)
            if attempt.shown_at:
                self._leases.hide(attempt)
            self._tell(attempt, job, outcome, ended_at)
        except Exception as error:
            self._settle_failed(attempt, error)
        finally:
            self._leases.let_go(attempt)

    async def give_back(self, attempt: Attempt) -> None:
        """Give back a delivery that never started. One that cannot be read is buried: it would only come again. So
        is a suspect that has crashed: as a new message it would get another run."""
        job, early = self._read(attempt)
        try:
            if early is None and attempt.alone and attempt.delivery.delivered > 1:
                early = await self._look_back(attempt, job)
            outcome = await self._settle(attempt, job, early or Released())
            self._tell(attempt, job, outcome)
        except Exception as error:
            self._settle_failed(attempt, error)
        finally:
            self._leases.let_go(attempt)

    def _read(self, attempt: Attempt) -> tuple[Job, Outcome | None]:
        """The job of a delivery; where it cannot be read, one good enough to bury, and why."""
        try:
            attempt.job = job = decode(attempt.delivery)
        except MalformedJob as error:
            return decode_malformed(attempt.delivery, attempt.queue, attempt.lane), refuse(error)
        return job, None

    async def _look_back(self, attempt: Attempt, job: Job) -> Outcome | None:
        """What follows without a run, if anything, of a job that was delivered before."""
        early = await attempt.patiently(lambda: self._after_crash(attempt, job))
        if early is None and not attempt.owned():
            return Abandoned(ack=False)  # the look outlasted the lease: another may run it by now
        return early

    async def _after_crash(self, attempt: Attempt, job: Job) -> Outcome | None:
        """Perhaps only the ack was lost; perhaps the job kills its workers. Deliveries may have gone to workers
        that never read them, so only a crash in a run alone says that it does. ADR 29."""
        if await self._places.was_settled(job):
            return Abandoned(ack=True)
        again = attempt.delivery.delivered - 1
        crashes = job.crashes + again
        if not attempt.alone and self._max_crashes > 1:
            return Suspected() if crashes >= self._max_crashes - 1 else None
        if attempt.alone and not (again and await self._places.ran_alone(job)):
            return None
        text = f"{crashes} deliveries ended without a word from the worker"
        return DeadLettered(DeadReason.CRASHED, ErrorInfo("Crashed", text))

    async def _settle(self, attempt: Attempt, job: Job, outcome: Outcome) -> Outcome:
        """Carry the outcome out, as long as the lease is ours. A full disk or a missing bucket is no crash of the
        job: it is kept, its slot with it, until there is room again."""
        stuck = full = 0
        try:
            while True:
                try:
                    return await self._settlement.settle(attempt, job, outcome)
                except BrokerError as error:
                    if not attempt.owned() or self._connection.closed.is_set():
                        raise
                    if not stuck:
                        self._settle_failed(attempt, error)
                    before = (stuck, full)
                    stuck, full = 1, int(isinstance(error, StorageFull))
                    self._count_stuck(stuck - before[0], full - before[1])
                await asyncio.sleep(SETTLE_AGAIN_S)
        finally:
            if stuck:
                self._count_stuck(-stuck, -full)

    def _count_stuck(self, stuck: int, full: int) -> None:
        self._stuck += stuck
        self._full += full
        if stuck or full:
            self._on_stuck(self._stuck, self._full)

    def _settle_failed(self, attempt: Attempt, error: Exception) -> None:
        # Not acked: the lease runs out and the job comes again.
        job = attempt.job
        if not isinstance(error, BrokerError):
            _log.error("a fault of jetjobs itself", exc_info=error, extra={"event": "worker.fault"})
        self._observe(SettleFailed(attempt.queue, job.task if job else "", job.id if job else "", str(error)))

    def _tell(self, attempt: Attempt, job: Job, outcome: Outcome, ended_at: float = 0.0) -> None:
        """`ended_at` is when the task did: how long it took to settle is not its doing."""
        if isinstance(outcome, Abandoned):
            return
        started = attempt.started_at
        run_s = ended_at - started if started else 0.0
        since_start = time.monotonic() - started if started else 0.0
        waited = max(0.0, time.time() - since_start - (job.due_at or job.enqueued_at))
        reason, again_s, error, most = "", 0.0, None, 0
        if isinstance(outcome, DeadLettered):
            reason, error, most = str(outcome.reason), outcome.error, self._runner.most_attempts(job)
        elif isinstance(outcome, Retried):
            again_s, error, most = outcome.delay_s, outcome.error, self._runner.most_attempts(job)
        elif isinstance(outcome, Snoozed):
            again_s = outcome.delay_s
        what = (job.queue, job.task, job.id, job.attempt, outcome.name, run_s, waited, reason, again_s, error)
        root = (lineage_of(job.headers)[1] or "") if PARENT in job.headers else ""
        delivery = attempt.delivery
        self._observe(JobFinished(*what, delivery.delivered, delivery.sequence, root, most))
