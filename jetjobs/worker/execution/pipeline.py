"""Take an attempt from its delivery to the end: admit, execute, decide, settle, observe."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

from jetjobs.define.router import Router
from jetjobs.define.task import Task
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.decision import decide
from jetjobs.model.error_classification import Classifier, classify
from jetjobs.model.errors import BrokerError, ChildDied, StorageFull
from jetjobs.model.events import JobFinished, Observer, SettleFailed
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.outcome import Abandoned, DeadLettered, Outcome, Parked, Released, Retried, Snoozed, Suspected
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.wire import headers as h
from jetjobs.worker.attempt import Attempt, Interrupt
from jetjobs.worker.execution.admission import Admission, Admitted, Refused, cancelled, mark_of
from jetjobs.worker.execution.executor import Executor
from jetjobs.worker.execution.settlement import Settlement
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.leases.running_records import RunningRecords
from jetjobs.worker.options import Spawn

SETTLE_RETRY_S = 1.0
"""Pause before an outcome that could not be stored is settled again."""

_log = logging.getLogger("jetjobs.worker")


class Pipeline:
    """The steps of every attempt. No step raises for what a job, a task or the server does."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        registry: Router,
        classifiers: Mapping[type[BaseException], Classifier],
        admission: Admission,
        executor: Executor,
        settlement: Settlement,
        leases: LeaseTable,
        records: RunningRecords,
        observe: Observer,
        spawn: Spawn,
    ) -> None:
        self._connection = jetstream.connection
        self._clock = jetstream.server_clock
        self._marks = jetstream.cancel_marks
        self._tasks = registry.tasks
        self._classifiers = classifiers
        self._admission = admission
        self._executor = executor
        self._settlement = settlement
        self._leases = leases
        self._records = records
        self._observe = observe
        self._spawn = spawn
        self._stuck = self._full = 0
        self.settle_error = ""
        """Why an outcome cannot be stored now; empty if all can be."""

    def open(self, on_end: Callable[[Attempt], None], on_stuck: Callable[[int, int], None]) -> None:
        """`on_end` is called with every attempt that has ended. `on_stuck` is called with the number of outcomes
        that cannot be stored now, and how many of them because storage is full."""
        self._on_end = on_end
        self._on_stuck = on_stuck
        self._create_task = asyncio.get_running_loop().create_task

    def start(self, attempt: Attempt) -> None:
        """Process an attempt in an asyncio task of its own."""
        # The lease table holds the attempt, and the attempt its task: no further reference is needed.
        attempt.asyncio_task = self._create_task(self.process(attempt))

    async def process(self, attempt: Attempt) -> None:
        """The life of one attempt."""
        try:
            admitted = await self._admission.admit(attempt)
            ended = await self._executor.execute(attempt, admitted)
            ended_at = time.monotonic()
            outcome = self._decide(attempt, admitted, ended)
            outcome = await self._settle(attempt, admitted.job, outcome)
            self._report(attempt, admitted.job, outcome, ended_at)
        except Exception as error:
            self._report_failure(attempt, error)
        finally:
            self._leases.remove(attempt)
            # The task refers to its context, and the context to the attempt. As a reference cycle each job would
            # wait for the garbage collector, which costs a fifth of the throughput.
            attempt.asyncio_task = None
            self._on_end(attempt)

    def release(self, attempt: Attempt) -> None:
        """Return a delivery that never started to its queue."""
        self._spawn(self._release(attempt))

    async def _release(self, attempt: Attempt) -> None:
        try:
            job, outcome = await self._admission.refuse(attempt)
            outcome = await self._settle(attempt, job, outcome)
            self._report(attempt, job, outcome)
        except Exception as error:
            self._report_failure(attempt, error)
        finally:
            self._leases.remove(attempt)

    # Decide

    def _decide(self, attempt: Attempt, admitted: Admitted | Refused, ended: Outcome | BaseException) -> Outcome:
        """The outcome of an attempt. A job that was cancelled while it ran does not run again, but a success
        stays a success."""
        outcome = self._after_error(attempt, admitted, ended) if isinstance(ended, BaseException) else ended
        if self._marks and isinstance(outcome, Retried | Snoozed | Parked | Released | Suspected):
            job = admitted.job
            return cancelled(self._marks, job) if mark_of(self._marks, job) is not None else outcome
        return outcome

    def _after_error(self, attempt: Attempt, admitted: Admitted | Refused, error: BaseException) -> Outcome:
        """The outcome of a task that failed or was interrupted. A task that cancelled itself has failed."""
        job, interrupt = admitted.job, attempt.interrupt
        if not attempt.owned():
            if interrupt is not Interrupt.LEASE_LOST:
                self._leases.lose(attempt)
            return Abandoned(ack=False)
        was_cancelled = isinstance(error, asyncio.CancelledError)
        if interrupt is Interrupt.CANCEL:
            killed = attempt.stop_child is not None if was_cancelled else isinstance(error, ChildDied)
            return cancelled(self._marks, job, "killed" if killed else "stopped")
        if interrupt is Interrupt.STOP and was_cancelled:
            return Released()
        assert isinstance(admitted, Admitted)  # only an admitted job can raise
        verdict = classify(error, self._classifiers)
        return decide(job, error, _policy(job, admitted.task), verdict, self._clock.time(), random.random())

    # Settle

    async def _settle(self, attempt: Attempt, job: Job, outcome: Outcome) -> Outcome:
        """Settle the outcome while the lease lasts. Full storage or a missing bucket does not count as a crash:
        the job and its slot are held until the outcome can be stored."""
        if attempt.progress is not None:
            self._records.publish_last_progress(attempt)
        stuck = full = 0
        try:
            while True:
                try:
                    return await self._settlement.settle(attempt, job, outcome)
                except BrokerError as error:
                    if not attempt.owned() or self._connection.closed.is_set():
                        raise
                    if not stuck:
                        self._report_failure(attempt, error)
                    self.settle_error = str(error)
                    before = (stuck, full)
                    stuck, full = 1, int(isinstance(error, StorageFull))
                    self._count_stuck(stuck - before[0], full - before[1])
                await asyncio.sleep(SETTLE_RETRY_S)
        finally:
            if stuck:
                self._count_stuck(-stuck, -full)

    def _count_stuck(self, stuck: int, full: int) -> None:
        self._stuck += stuck
        self._full += full
        if not self._stuck:
            self.settle_error = ""
        if stuck or full:
            self._on_stuck(self._stuck, self._full)

    # Observe

    def _report(self, attempt: Attempt, job: Job, outcome: Outcome, ended_at: float = 0.0) -> None:
        """Report how an attempt ended, and delete its running record. `ended_at` is when its
        task did: settling is not part of its run time."""
        if attempt.recorded_at:
            self._records.delete(attempt)
        if isinstance(outcome, Abandoned):
            return
        started = attempt.started_at
        run_s = ended_at - started if started else 0.0
        since_start = time.monotonic() - started if started else 0.0
        waited = max(0.0, self._clock.time() - since_start - (job.due_at or job.enqueued_at))
        reason, retry_in_s, error, max_attempts = "", 0.0, None, 0
        if isinstance(outcome, DeadLettered):
            reason, error, max_attempts = str(outcome.reason), outcome.error, self._max_attempts(job)
        elif isinstance(outcome, Retried):
            retry_in_s, error, max_attempts = outcome.delay_s, outcome.error, self._max_attempts(job)
        elif isinstance(outcome, Snoozed):
            retry_in_s = outcome.delay_s
        elif isinstance(outcome, Parked):
            retry_in_s, error = outcome.delay_s, outcome.error
        root = (lineage_of(job.headers)[1] or "") if h.PARENT in job.headers else ""
        delivery = attempt.delivery
        self._observe(
            JobFinished(
                job.queue,
                job.task,
                job.id,
                job.attempt,
                outcome.name,
                run_s,
                waited,
                reason,
                retry_in_s,
                error,
                delivery.delivered,
                delivery.sequence,
                root,
                max_attempts,
                job.headers.get(h.OF_SCHEDULE, ""),
            )
        )

    def _max_attempts(self, job: Job) -> int:
        """How many attempts the job may have. 0 for an unknown task."""
        task = self._tasks.get(job.task)
        return job.max_attempts or (_policy(job, task).max_attempts if task is not None else 0)

    def _report_failure(self, attempt: Attempt, error: Exception) -> None:
        """Report an attempt that could not be settled. It is not acknowledged, so the job is delivered again."""
        job = attempt.job
        if not isinstance(error, BrokerError):
            extra = {"event": "worker.fault"}
            _log.error("internal error in jetjobs, please report it", exc_info=error, extra=extra)
        self._observe(SettleFailed(attempt.queue, job.task if job else "", job.id if job else "", str(error)))


def _policy(job: Job, task: Task[Any, Any]) -> RetryPolicy:
    """The retry policy of the task, with the changes that the job carries. Unreadable changes are ignored."""
    text = job.headers.get(h.RETRY_POLICY)
    if text is None:
        return task.retry
    try:
        return task.retry.with_header(text)
    except (ValueError, RecursionError):
        return task.retry
