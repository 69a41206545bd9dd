"""Admit an attempt: read its job, and check that the job may run now."""

from __future__ import annotations

import logging
import random
from typing import Any, NamedTuple

from jetjobs.define.router import Router
from jetjobs.define.task import Task
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.flows.continuation import Incomplete
from jetjobs.jetstream.flows.gates import Delivered
from jetjobs.jetstream.jobs.cancel_marks import CancelMark, CancelMarks
from jetjobs.jetstream.messages.codec import decode, decode_malformed, read_parking
from jetjobs.jetstream.workers.registry import TaskDirectory
from jetjobs.model.decision import park, refuse
from jetjobs.model.errors import BrokerError, DeliveryError, MalformedJob, UnknownTask
from jetjobs.model.flow.steps import FlowHeaders
from jetjobs.model.job import Job
from jetjobs.model.outcome import (
    Abandoned,
    Cancelled,
    DeadLettered,
    DeadReason,
    ErrorInfo,
    Outcome,
    Released,
    Snoozed,
    parked_text,
)
from jetjobs.model.wire import headers as h
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.execution.redelivery import RedeliveryCheck

BODY_RETRY_S = 5.0
"""How long a job waits whose body the object store cannot deliver now."""

_log = logging.getLogger("jetjobs.worker")


class Admitted(NamedTuple):
    """A job that runs now."""

    job: Job
    task: Task[Any, Any]
    arguments: dict[str, Any]
    body: bytes


class Refused(NamedTuple):
    """A job that does not run now, and its outcome."""

    job: Job
    outcome: Outcome


class Admission:
    """Reads from the server, and changes nothing there but the mark of a quarantined run."""

    def __init__(
        self, jetstream: JetStreamClient, registry: Router, redelivery: RedeliveryCheck, grace_s: float
    ) -> None:
        """`grace_s` is how long a job waits whose task no running worker knows."""
        self._locator = jetstream.locator
        self._payloads = jetstream.payloads
        self._marks = jetstream.cancel_marks
        self._ticks = jetstream.ticks
        self._continuation = jetstream.flow_continuation
        self._clock = jetstream.server_clock
        self._registry = registry
        self._tasks = registry.tasks
        self._redelivery = redelivery
        self._directory = TaskDirectory(jetstream.connection, jetstream.names)
        self._grace_s = grace_s

    async def admit(self, attempt: Attempt) -> Admitted | Refused:
        """The job with all that its run needs. Never raises for what is wrong with the job."""
        job, outcome = self._read(attempt)
        if outcome is None and (attempt.delivery.delivered > 1 or job.crashes):
            outcome = await self._redelivery.check(attempt, job)
            if outcome is None and attempt.suspect:
                await self._locator.mark_alone(job)
        if outcome is None and h.FLOW in job.headers:
            job, outcome = await self._in_flow(attempt, job)
        if outcome is None and job.deadline:
            outcome = await self._check_deadline(attempt, job)
        if outcome is not None:
            return Refused(job, outcome)
        try:
            task = self._tasks.get(job.task) or self._registry.find(job.task)
            body = job.body
            if job.payload:
                fetched = await self._fetch(attempt, job)
                if not isinstance(fetched, bytes):
                    return Refused(job, fetched)
                body = fetched
            arguments = task.signature.decode(body)
        except UnknownTask as error:
            return Refused(job, await self._park(job, error))
        except DeliveryError as error:
            return Refused(job, refuse(error))
        if self._marks and mark_of(self._marks, job) is not None:
            return Refused(job, cancelled(self._marks, job))
        if h.OVERLAP in job.headers and await self._overlaps(attempt, job):
            return Refused(job, Cancelled("schedule", "an earlier tick of the schedule has not ended"))
        return Admitted(job, task, arguments, body)

    async def refuse(self, attempt: Attempt) -> Refused:
        """The outcome of a delivery that this worker does not start: it is released.

        A malformed job is dead-lettered instead, since it would only be delivered again. So is a suspect that has
        crashed, since as a new message it would run once more.
        """
        job, outcome = self._read(attempt)
        if outcome is None and attempt.suspect and attempt.delivery.delivered > 1:
            outcome = await self._redelivery.check(attempt, job)
        return Refused(job, outcome or Released())

    def _read(self, attempt: Attempt) -> tuple[Job, Outcome | None]:
        """The job of an attempt. A malformed one comes with its outcome, and with what is left of it to store."""
        try:
            attempt.job = job = decode(attempt.delivery)
        except MalformedJob as error:
            return decode_malformed(attempt.delivery, attempt.queue, attempt.lane), refuse(error)
        return job, None

    async def _in_flow(self, attempt: Attempt, job: Job) -> tuple[Job, Outcome | None]:
        """A job of a flow with its arguments, or with its outcome. A job of a cancelled flow is dropped without a
        record: it may be one of very many. A gate comes without its arguments at the deadline of its flow."""
        try:
            flow = FlowHeaders.read(job.headers)
            if flow is None or self._marks.flow_of(job) is not None:
                return job, Abandoned(ack=True)
            if flow.waiting:
                held = Delivered(attempt.queue, attempt.delivery.sequence)
                arrived = await attempt.retry_while_owned(
                    lambda: self._continuation.arrived(job, held, attempt.owned)
                )
                if arrived is None or not attempt.owned():
                    return job, Abandoned(ack=arrived is None)
                attempt.job = job = arrived
        except MalformedJob as error:
            return job, refuse(error)
        except Incomplete as error:
            return job, DeadLettered(DeadReason.EXPIRED, ErrorInfo("Expired", f"its flow has expired: {error}"))
        return job, None

    async def _park(self, job: Job, error: UnknownTask) -> Outcome:
        """The outcome of a job whose task this worker does not know: it waits for another worker. ADR 48."""
        known = await self._directory.knows(job.queue, job.task)
        since = read_parking(job.headers)[0]
        return park(job, error, since, known, self._grace_s, self._clock.time(), random.random())

    async def _check_deadline(self, attempt: Attempt, job: Job) -> Outcome | None:
        """The outcome of a job that starts too late. Its first delivery may itself be late, after a lost link: if
        another worker has settled the job in the meantime, it has not expired."""
        expired = _expired(job, self._clock.time())
        if expired is not None and await attempt.retry_while_owned(lambda: self._locator.was_settled(job)):
            return Abandoned(ack=True, ended=True)
        return expired

    async def _fetch(self, attempt: Attempt, job: Job) -> bytes | Outcome:
        """The body from the object store. If the job has ended, its body is gone with it. If the store does not
        answer, the job waits and spends no attempt."""
        try:
            try:
                body = await attempt.retry_while_owned(lambda: self._payloads.get(job.payload))
            except MalformedJob:
                if await attempt.retry_while_owned(lambda: self._locator.was_settled(job)):
                    return Abandoned(ack=True, ended=True)
                raise
        except BrokerError as error:
            extra = {"event": "job.body_unreadable", "job_id": job.id, "task": job.task, "error": str(error)}
            _log.warning("the body of a job cannot be read now; the job is retried later", extra=extra)
            return Snoozed(BODY_RETRY_S)
        return body if attempt.owned() else Abandoned(ack=False)

    async def _overlaps(self, attempt: Attempt, job: Job) -> bool:
        """Whether an earlier tick of the job's schedule has not ended.

        A tick that has started loses the header when it is moved, so it is not checked again. A tick whose worker
        crashed keeps the header: it may not have started, and two must not run at once.
        """
        return job.attempt == 1 and await attempt.retry_while_owned(lambda: self._ticks.earlier(job))


def mark_of(marks: CancelMarks, job: Job) -> CancelMark | None:
    """The cancel mark of the job or of its flow, if there is one."""
    return marks.find(job.id, job.run) or (marks.flow_of(job) if h.FLOW in job.headers else None)


def cancelled(marks: CancelMarks, job: Job, how: str = "") -> Cancelled:
    """The outcome of a cancelled job. `how` says how its task was ended, if it ran."""
    mark = mark_of(marks, job)
    return Cancelled(mark.by, mark.why, how) if mark is not None else Cancelled("", "", how)


def _expired(job: Job, now: float) -> DeadLettered | None:
    late_s = now - job.deadline
    if late_s < 0:
        return None
    text = f"not started by its deadline, {late_s:.1f} s ago"
    since, known = read_parking(job.headers)
    if since:
        text += f"; it was parked: {parked_text(job.task, known)}"
    error = ErrorInfo("Expired", text)
    return DeadLettered(DeadReason.EXPIRED, error)
