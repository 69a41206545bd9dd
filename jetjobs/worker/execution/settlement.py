"""Settle an outcome: store the job in its next place, then acknowledge its delivery.

A crash in between leaves two copies of a job, never none.
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.flows.continuation import RESULT_JSON, continued_as
from jetjobs.jetstream.flows.gates import Delivered
from jetjobs.jetstream.flows.ledger import fits_entry
from jetjobs.jetstream.jobs.dead_letters import NewDeadLetter
from jetjobs.jetstream.jobs.results import cancelled_record, cancelled_ttl_s, kept_s, success_record
from jetjobs.jetstream.messages.codec import with_error, with_parking
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.payloads import labels_of
from jetjobs.jetstream.messages.publisher import WrongLastSequence
from jetjobs.model.errors import BrokerError, MalformedJob, StorageFull
from jetjobs.model.events import Observer, SettleFailed
from jetjobs.model.flow.flow_plan import RETURNED
from jetjobs.model.job import Job
from jetjobs.model.outcome import (
    Abandoned,
    Cancelled,
    DeadLettered,
    DeadReason,
    ErrorInfo,
    Outcome,
    Parked,
    Released,
    Retried,
    Snoozed,
    Succeeded,
    Suspected,
)
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import new_run
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.leases.lease_table import LeaseTable

RESULT_SPARE_S = 60
"""A result outlives its record by this, so that a caller who has just read the record finds the result."""


class IdTaken(Exception):
    """The next place of a job already holds another live job with the same id."""


class Settlement:
    """Settles outcomes. Raises BrokerError if a job could not be moved; its delivery is then not acknowledged."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        registry: Router,
        leases: LeaseTable,
        worker: str,
        timeout_s: float,
        observe: Observer,
    ) -> None:
        self._jetstream = jetstream
        self._clock = jetstream.server_clock
        self._leases = leases
        self._observe = observe
        self._tasks = registry.tasks
        self._worker = worker
        self._timeout_s = timeout_s

    async def settle(self, attempt: Attempt, job: Job, outcome: Outcome) -> Outcome:
        """Settle a delivery once, while its lease is extended. Returns the outcome that was settled, which differs
        from `outcome` if that one was impossible."""
        self._leases.doubt_old(attempt)
        if attempt.doubt and not isinstance(outcome, Succeeded):
            await self._leases.until_compared(attempt)
        if not attempt.owned():
            # Another worker may run the job by now. Only a success may still be stored: the first of a run wins.
            if isinstance(outcome, Succeeded):
                await self._succeed(attempt, job, outcome)
                await self._delete_checkpoint(attempt)
            return outcome
        if attempt.started_at and h.OVERLAP in job.headers:
            # A tick that has started is not checked for overlap again, wherever it is moved.
            job = job._replace(headers={k: v for k, v in job.headers.items() if k != h.OVERLAP})
        end: Mapping[str, Any] | None = None
        if isinstance(outcome, Succeeded):
            end = await self._succeed(attempt, job, outcome)
        elif isinstance(outcome, Retried | Snoozed | Parked):
            outcome = await self._reschedule(attempt, job, outcome)
        elif isinstance(outcome, Released | Suspected):
            await self._release(attempt, job)
        elif isinstance(outcome, DeadLettered):
            end = await self._dead_letter(attempt, job, outcome)
        elif isinstance(outcome, Cancelled):
            end = await self._cancel(attempt, job, outcome)
        elif not outcome.ack:
            return outcome
        elif outcome.ended:
            end = await self._jetstream.locator.end_of(job)
        if end is not None:
            await self._follow_up(attempt, job, end)
        if attempt.doubt:
            if not await self._leases.until_compared(attempt):
                return outcome  # another job may have its sequence now, and an ack would delete that one
            if not await self._jetstream.locator.was_settled(job):
                # An older store has come back, without what the server had confirmed here.
                return outcome if isinstance(outcome, Abandoned) else await self.settle(attempt, job, outcome)
        if (job.payload or attempt.checkpoint is not None) and isinstance(
            outcome, Succeeded | Cancelled | DeadLettered
        ):
            await self._ack_and_clean_up(attempt, job, outcome)
        else:
            attempt.delivery.ack()
        return outcome

    async def _ack_and_clean_up(
        self, attempt: Attempt, job: Job, outcome: Succeeded | Cancelled | DeadLettered
    ) -> None:
        """Acknowledge, and once the server has confirmed it delete what a redelivery would need: checkpoint and
        body. The leader deletes bodies that are left over; a checkpoint has a TTL."""
        attempt.acked = True
        if not await attempt.delivery.ack_confirmed():
            return
        await self._delete_checkpoint(attempt)
        if job.payload and not isinstance(outcome, DeadLettered):
            with contextlib.suppress(BrokerError):
                await self._jetstream.locator.delete_unreferenced(job.queue, job.task, job.id, job.payload)

    async def _delete_checkpoint(self, attempt: Attempt) -> None:
        if attempt.checkpoint is not None:
            with contextlib.suppress(BrokerError):
                await self._jetstream.checkpoints.remove(attempt.checkpoint)

    async def _follow_up(self, attempt: Attempt, job: Job, end: Mapping[str, Any]) -> None:
        """What the stored end of a job leads to, before its delivery is acknowledged. A redelivery repeats it."""
        held = Delivered(attempt.queue, attempt.delivery.sequence)
        await self._jetstream.follow_up(job, end, held, self._timeout_s, attempt.owned)

    async def _succeed(self, attempt: Attempt, job: Job, outcome: Succeeded) -> Mapping[str, Any] | None:
        """Store the record. Returns it if something follows the end of the job."""
        result = outcome.result
        in_flow, calls = h.FLOW in job.headers, h.CALLBACK in job.headers
        keep = in_flow or h.KEEP in job.headers
        if result is None and not keep and not calls:
            return None
        ended_at = self._clock.time()
        started_at = ended_at - (time.monotonic() - attempt.started_at)
        task = self._tasks[job.task]
        ttl_s = math.ceil(task.result_ttl.total_seconds())
        if keep:
            ttl_s = kept_s(job, ttl_s, ended_at)
        continued = continued_as(job, result) if result is not None and result[:1] == RETURNED else b""
        if continued and result is not None:
            result = result[len(RETURNED) :]
        hidden, worker = task.secret_in_result, self._worker
        record = success_record(job, result, worker, started_at, ended_at, "", hidden, continued)
        end: dict[str, Any] | None = None
        stored, large = record, len(record) > self._jetstream.connection.inline_limit
        try:
            if result is not None and (large or (in_flow and not continued and not fits_entry(result))):
                stored = record = await self._store_large(
                    attempt,
                    job,
                    result,
                    lambda name: success_record(job, b"", worker, started_at, ended_at, name, hidden, continued),
                    ttl_s,
                )
            elif result is not None or keep:
                stored = await self._jetstream.results.put(job, record, ttl_s, self._timeout_s, attempt.owned)
                if in_flow and stored is record and result is not None and not (calls or continued):
                    end = {"state": "succeeded", RESULT_JSON: result, "secret": hidden}  # not read back
        except StorageFull as error:
            if in_flow or calls or continued:
                raise  # what follows could not be stored either
            # The work is done: acknowledge without a record, which can free space.
            self._observe(SettleFailed(job.queue, job.task, job.id, str(error), "record"))
        if job.reply:
            self._jetstream.results.notify_producer(job, record)
        return (end or read_record(stored)) if in_flow or calls or continued else None

    async def _store_large(
        self, attempt: Attempt, job: Job, result: bytes, record_with: Callable[[str], bytes], ttl_s: int
    ) -> bytes:
        """Store the result in the object store, then the record that refers to it. Returns the record that is
        stored."""
        payloads, delivery = self._jetstream.payloads, attempt.delivery
        name = n.result_object(job.id, job.run, f"{delivery.sequence}-{delivery.fence}")
        record = record_with(name)
        await payloads.put(name, result, labels_of(job), ttl_s=ttl_s + RESULT_SPARE_S, owned=attempt.owned)
        stored = await self._jetstream.results.put(job, record, ttl_s, self._timeout_s, attempt.owned)
        if name.encode() not in stored:
            # Another delivery of this run ended first, and its record stays.
            with contextlib.suppress(BrokerError):
                await payloads.delete(name)
        return stored

    async def _cancel(self, attempt: Attempt, job: Job, outcome: Cancelled) -> Mapping[str, Any]:
        ended_at = self._clock.time()
        started_at = _started_at(attempt, ended_at)
        record = cancelled_record(job, outcome.by, outcome.why, self._worker, started_at, ended_at, outcome.how)
        ttl_s = cancelled_ttl_s(job, ended_at)
        stored = await self._jetstream.results.put(job, record, ttl_s, self._timeout_s, attempt.owned)
        if job.reply:
            self._jetstream.results.notify_producer(job, record)
        return read_record(stored)

    async def _reschedule(self, attempt: Attempt, job: Job, outcome: Retried | Snoozed | Parked) -> Outcome:
        try:
            if isinstance(outcome, Retried):
                await self._retry(attempt, job, outcome)
            elif isinstance(outcome, Parked):
                await self._park(attempt, job, outcome)
            else:
                await self._delay(attempt, job._replace(hop=job.hop + 1, crashes=0), outcome.delay_s)
        except IdTaken as error:
            # Only jobs published without jetjobs can share an id. The second is dead-lettered under a new id.
            renamed = await self._with_own_body(job._replace(id=f"{job.id[:90]}-s{attempt.delivery.sequence}"))
            cause = DeadLettered(DeadReason.MALFORMED, ErrorInfo("IdTaken", str(error)))
            await self._follow_up(attempt, renamed, await self._dead_letter(attempt, renamed, cause))
            return cause
        return outcome

    async def _with_own_body(self, job: Job) -> Job:
        """Copy the large body of a job with a new id to that id, where the sweep for orphaned bodies finds it."""
        if not job.payload:
            return job
        try:
            body = await self._jetstream.payloads.get(job.payload)
        except MalformedJob:
            return job
        name = n.body_object(job.id, job.run)
        await self._jetstream.payloads.put(name, body, labels_of(job))
        return job._replace(payload=name)

    async def _retry(self, attempt: Attempt, job: Job, outcome: Retried) -> None:
        moved = with_error(job, outcome.error, self._worker, self._clock.time())
        moved = moved._replace(hop=job.hop + 1, attempt=job.attempt + 1, crashes=0)
        await self._delay(attempt, moved, outcome.delay_s)

    async def _park(self, attempt: Attempt, job: Job, outcome: Parked) -> None:
        """A job that crashes the workers that know its task must not get rid of its crashes by meeting others."""
        moved = job._replace(hop=job.hop + 1, crashes=_crashes(attempt, job))
        await self._delay(attempt, with_parking(moved, outcome), outcome.delay_s)

    async def _release(self, attempt: Attempt, job: Job) -> None:
        """Return the job to its queue, ahead of the backlog. A suspect is not charged with a crash for that."""
        await self._move(attempt, job._replace(hop=job.hop + 1, crashes=_crashes(attempt, job)), None, n.RETURNED)

    async def _delay(self, attempt: Attempt, job: Job, delay_s: float) -> None:
        """Move the job to lane `retry`. Its due time is on the server's clock, which fires it."""
        stream = self._jetstream.names.work_stream(job.queue)
        due_at = await self._clock.seconds(stream) + delay_s
        await self._move(attempt, job._replace(due_at=due_at), due_at, n.RETRY)

    async def _dead_letter(self, attempt: Attempt, job: Job, outcome: DeadLettered) -> Mapping[str, Any]:
        now = self._clock.time()
        origin = f"{attempt.delivery.subject} {attempt.delivery.sequence}"
        task = self._tasks.get(job.task)
        if task is not None and task.own_headers:
            # A job published without jetjobs does not say which values are secret. Its dead letter must.
            job = job._replace(headers={**job.headers, **task.own_headers})
        failed = with_error(job, outcome.error, self._worker, now)
        letter = NewDeadLetter(failed, outcome, origin, self._worker, now, _started_at(attempt, now))
        await self._jetstream.dead.add(letter, self._timeout_s, attempt.owned)
        end = _dead_record(job, outcome)
        if job.reply:
            self._jetstream.results.notify_producer(job, json.dumps(end).encode())
        if not attempt.started_at and (attempt.delivery.delivered > 1 or job.hop):
            # The job did not start this time, but an earlier delivery may have stored a checkpoint.
            with contextlib.suppress(BrokerError):
                await self._jetstream.checkpoints.forget(job.id, job.run)
        return {**end, "at": now}

    async def _move(self, attempt: Attempt, job: Job, due_at: float | None, lane: str) -> None:
        publisher = self._jetstream.publisher
        if h.PARKED in job.headers and job.task in self._tasks:
            # It has met a worker that knows its task: a later parking starts another grace period.
            job = job._replace(headers={k: v for k, v in job.headers.items() if k != h.PARKED})
        message = publisher.outgoing(job, due_at, None, lane)
        if message.size > self._jetstream.connection.max_payload:
            # The server would close the connection for one byte too many. Drop the failures first, then move the
            # body to the object store. A job is never truncated.
            headers = {k: v for k, v in job.headers.items() if k not in (h.ERRORS, h.TRACEBACK)}
            message = publisher.outgoing(job._replace(headers=headers), due_at, None, lane)
        if message.size > self._jetstream.connection.max_payload:
            name = job.payload or n.body_object(job.id, job.run)
            if not job.payload:
                await self._jetstream.payloads.put(name, job.body, labels_of(job), owned=attempt.owned)
            message = publisher.outgoing(job._replace(body=b"", payload=name), due_at, None, lane)
        stream = self._jetstream.names.work_stream(job.queue)
        wire = message.headers
        assert isinstance(wire, dict)
        if due_at is not None:
            # A subject holds one schedule. Another job's must not be replaced, this job's own may be.
            wire[h.EXPECTED_LAST_SUBJECT_SEQ] = "0"
        while True:
            try:
                if await publisher.store(stream, message, timeout_s=self._timeout_s, owned=attempt.owned):
                    return
            except WrongLastSequence:
                found = await last_on(self._jetstream.connection, stream, message.subject)
                if found is not None and found.headers.get(h.RUN) != job.run:
                    raise IdTaken(f"another live job has the id {job.id}") from None
                wire[h.EXPECTED_LAST_SUBJECT_SEQ] = str(found.sequence if found is not None else 0)
                continue
            # A duplicate is our own resend, or another message with our id. Only a resend means the move is done.
            if await self._jetstream.locator.was_settled(job._replace(hop=job.hop - 1)):
                return
            wire[h.MSG_ID] = f"{job.message_id}.{new_run()}"


def _crashes(attempt: Attempt, job: Job) -> int:
    """The crashes of a job that is moved without having run."""
    return job.crashes if attempt.suspect else job.crashes + attempt.delivery.delivered - 1


def _started_at(attempt: Attempt, now: float) -> float:
    """When the task started, in seconds since the epoch. 0 if it did not start."""
    return now - (time.monotonic() - attempt.started_at) if attempt.started_at else 0.0


def _dead_record(job: Job, outcome: DeadLettered) -> dict[str, Any]:
    error: ErrorInfo = outcome.error
    return {
        "state": "dead",
        "id": job.id,
        "run": job.run,
        "reason": str(outcome.reason),
        "type": error.type,
        "text": error.text,
        "traceback": error.traceback,
    }
