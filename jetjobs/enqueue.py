"""Enqueue one job: build it from a request, store it, and detect duplicates."""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

from jetjobs.define.context import running_job
from jetjobs.define.enqueue_report import Entry
from jetjobs.define.flows.flow import Flow
from jetjobs.define.flows.flow_handle import FlowHandle
from jetjobs.define.handle import JobHandle, JobLookup
from jetjobs.define.options import EnqueueOptions
from jetjobs.define.task import JobRequest, Task
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.batch import JobTemplate
from jetjobs.jetstream.messages.codec import MAX_HEADERS, header_size
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence, last_on
from jetjobs.jetstream.messages.payloads import MAX_OBJECT, labels_of
from jetjobs.jetstream.messages.publisher import Outgoing, Unconfirmed, WrongLastSequence
from jetjobs.jetstream.transport.errors import STREAM_NOT_FOUND
from jetjobs.model.durations import to_duration
from jetjobs.model.errors import (
    BrokerError,
    DefinitionError,
    EnqueueUnconfirmed,
    JetJobsError,
    JobTooLarge,
    QueueNotFound,
    TopologyMissing,
)
from jetjobs.model.events import EnqueueFailed
from jetjobs.model.flow.flow_plan import FlowPlan
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import NO_KEY, JobId, key_token, new_run, new_uid


class Identity(NamedTuple):
    """Makes a job that is sent again the same job: its id, and a run that depends on its content."""

    job_id: str
    run: str
    keep_s: int
    """For how long after its end the record of the job is kept at least."""


class Prepared(NamedTuple):
    """A job ready to be stored. `guard` is a subject that must be empty, or None."""

    job: Job
    message: Outgoing
    guard: str | None
    large: bytes | None = None
    """The body, if it is too large for a message. It is written to the object store first."""


class Enqueuer:
    """Stores jobs for one app."""

    def __init__(self, jetstream: JetStreamClient, lookup: JobLookup, producer: str) -> None:
        self._jetstream = jetstream
        self._waiter = jetstream.result_waiter
        self._lookup = lookup
        self._headers = {h.PRODUCER: producer}

    async def enqueue(self, request: JobRequest[Any], identity: Identity | None = None) -> JobHandle[Any]:
        """Store the job with one publish and one confirmation."""
        self._jetstream.connection.check_loop()
        return self.handle(request, await self.store(await self.prepare(request, identity)))

    async def enqueue_flow(self, flow: Flow[Any]) -> FlowHandle[Any]:
        """Store a flow, or find the one with its id. EnqueueError if it is not stored completely."""
        self._jetstream.connection.check_loop()
        plan, flow_id = flow.plan(), flow.id or new_uid()
        try:
            record, new = await self._jetstream.placement.enqueue(plan, flow_id, self._lineage())
        except TopologyMissing as error:
            raise _flow_queue_not_found(plan, error) from error
        except Unconfirmed as error:
            raise EnqueueUnconfirmed(
                f"flow {flow_id} was not confirmed in time; it may be stored in part ({error})",
                job_id=flow_id,
                hint=f"enqueue it again as Flow(..., id={flow_id!r}): no job of it is stored twice",
            ) from error
        handle: FlowHandle[Any] = FlowHandle(flow_id, record.name, duplicate=not new)
        return handle.attach(self._lookup.flows, flow.decode)

    # Build the job

    async def prepare(self, request: JobRequest[Any], identity: Identity | None = None) -> Prepared:
        """The job and its message. JobTooLarge before anything is sent."""
        publisher, limit = self._jetstream.publisher, self._jetstream.connection.inline_limit
        due_at = None
        if request.options or identity is not None:
            job, guard = self._with_options(request, identity)
            if "delay" in request.options or "run_at" in request.options:
                now = await self._now(job.queue)
                due_at = _due_at(request.options, now)
                job = job._replace(enqueued_at=now, due_at=due_at)
        else:
            job, guard = self._plain(request.task, new_uid(), new_run(), request.body), None
        message = publisher.outgoing(job, due_at, guard)
        if publisher.fits(message, limit):
            return Prepared(job, _once(message, identity), guard)
        job = claim_check(job)
        message = publisher.outgoing(job._replace(body=b""), due_at, guard)
        publisher.check_size(message, limit)
        return Prepared(job, _once(message, identity), guard, job.body)

    def _plain(self, task: Task[Any, Any], uid: str, run: str, body: bytes) -> Job:
        reply = self._waiter.reply_for(uid) if task.store_result else ""
        headers = self._headers_for(task)
        return Job(uid, task.name, task.queue, task.priority, body, run=run, reply=reply, headers=headers)

    def _headers_for(self, task: Task[Any, Any]) -> dict[str, str]:
        """The headers of jetjobs for a job of this task: its producer, parent and secret arguments."""
        headers = self._lineage()
        return {**headers, **task.own_headers} if task.own_headers else headers

    def _lineage(self) -> dict[str, str]:
        """The headers that name the producer, and the job that enqueues another."""
        parent = running_job()
        return self._headers if parent is None else {**self._headers, h.PARENT: parent.id, h.ROOT: parent.root_id}

    def template(self, task: Task[Any, Any]) -> JobTemplate:
        """A template for many plain jobs of one task."""
        return JobTemplate(
            self._jetstream.publisher.outgoing(self._plain(task, JobTemplate.ID, JobTemplate.RUN, b""))
        )

    def _with_options(self, request: JobRequest[Any], identity: Identity | None) -> tuple[Job, str | None]:
        """The job, and the subject that must be empty to store it."""
        task, body, options = request
        if "step" in options:
            raise DefinitionError(
                "option 'step' names a step of a flow", hint="use flow.add(task.options(step=...))"
            )
        if identity is not None:
            options = {**options, "job_id": identity.job_id}
        names = self._jetstream.names
        queue = options.get("queue", task.queue)
        tokens = JobId(
            key_token(options["key"]) if "key" in options else NO_KEY, options.get("job_id") or new_uid()
        )
        job_id = str(tokens)
        headers = {**self._headers_for(task), **options.get("headers", {})}
        if "retry" in options:
            headers[h.RETRY_POLICY] = options["retry"].to_header()
        if "callback" in options:
            headers[h.CALLBACK] = options["callback"]
        if identity is not None:
            headers[h.KEEP] = str(identity.keep_s)
        if (size := header_size(headers)) > MAX_HEADERS:
            raise JobTooLarge(
                f"the headers are {size:,} bytes; the limit is {MAX_HEADERS:,}", size=size, limit=MAX_HEADERS
            )
        job = Job(
            job_id,
            task.name,
            queue,
            options.get("priority", task.priority),
            body,
            tokens.key,
            run=new_run() if identity is None else identity.run,
            max_attempts=options.get("max_attempts", 0),
            deadline=options["deadline"].timestamp() if "deadline" in options else 0.0,
            reply=self._waiter.reply_for(job_id) if task.store_result else "",
            headers=headers,
        )
        if "key" in options:
            return job, names.key_anywhere(queue, task.name, tokens.key)
        return job, names.job_anywhere(queue, task.name, tokens) if "job_id" in options else None

    async def _now(self, queue: str) -> float:
        """The time by the clock of the server, because the server fires delayed jobs."""
        try:
            return await self._jetstream.server_clock.seconds(self._jetstream.names.work_stream(queue))
        except TopologyMissing as error:
            raise queue_not_found(queue, error) from error

    # Store the job

    async def store(self, prepared: Prepared) -> Entry:
        """Store the job, or find the live job that has its key or id. EnqueueError if neither succeeds."""
        if prepared.large is None:
            return await self._publish(prepared)
        return await self._store_large(prepared, prepared.large)

    async def _store_large(self, prepared: Prepared, body: bytes) -> Entry:
        """Write the body, then the message that refers to it. Delete the body if the message is not stored."""
        job, payloads = prepared.job, self._jetstream.payloads
        if prepared.guard is not None and (existing := await self._live(prepared)) is not None:
            return _duplicate(existing)  # found before the body was sent
        await payloads.put(job.payload, body, labels_of(job))
        try:
            entry = await self._publish(prepared)
        except EnqueueUnconfirmed:
            raise  # the job may be stored and need the body; otherwise the sweep for orphans deletes it
        except JetJobsError:
            with contextlib.suppress(BrokerError):
                await payloads.delete(job.payload)
            raise
        if entry.duplicate:
            with contextlib.suppress(BrokerError):
                await payloads.delete(job.payload)
        return entry

    async def _live(self, prepared: Prepared) -> StoredMessage | None:
        assert prepared.guard is not None
        stream = self._jetstream.names.work_stream(prepared.job.queue)
        try:
            return await last_on(self._jetstream.connection, stream, prepared.guard)
        except TopologyMissing as error:
            raise queue_not_found(prepared.job.queue, error) from error

    async def _publish(self, prepared: Prepared) -> Entry:
        job = prepared.job
        stream = self._jetstream.names.work_stream(job.queue)
        while True:
            try:
                # False: another request with this message id was stored before, which only an identity makes.
                stored = await self._jetstream.publisher.store(stream, prepared.message)
                return Entry(job.id, job.run, not stored and h.KEEP in job.headers)
            except WrongLastSequence as taken:
                existing = await self._existing(stream, prepared, taken.sequence)
                if existing is None:
                    continue  # that job has ended since: the key is free again
                if existing.headers.get(h.RUN) == job.run:
                    return Entry(job.id, job.run, False)  # this is our own message, sent twice
                return _duplicate(existing)
            except TopologyMissing as error:
                raise queue_not_found(job.queue, error) from error
            except Unconfirmed as error:
                raise unconfirmed(job.id, error) from error

    async def _existing(self, stream: str, prepared: Prepared, sequence: int) -> StoredMessage | None:
        connection = self._jetstream.connection
        if sequence:
            return await at_sequence(connection, stream, sequence)
        assert prepared.guard is not None
        return await last_on(connection, stream, prepared.guard)

    def existing(self, request: JobRequest[Any], job_id: str, run: str) -> JobHandle[Any]:
        """The handle of a job that was stored before."""
        return self.handle(request, Entry(job_id, run, True))

    def handle(self, request: JobRequest[Any], entry: Entry) -> JobHandle[Any]:
        task = request.task
        handle: JobHandle[Any] = JobHandle(
            entry.job_id,
            request.options.get("queue", task.queue),
            task.name,
            run=entry.run,
            stores_result=task.store_result,
            duplicate=entry.duplicate,
        )
        return handle.attach(self._lookup, task.signature.result.decode)


def _once(message: Outgoing, identity: Identity | None) -> Outgoing:
    """The message with an id that does not depend on the content: the server stores one of several requests with
    the same identity, also after the first one's job has ended."""
    if identity is not None:
        assert isinstance(message.headers, dict)
        message.headers[h.MSG_ID] = f"{identity.job_id}.once"
    return message


def _due_at(options: EnqueueOptions, now: float) -> float:
    if "run_at" in options:
        return options["run_at"].timestamp()
    return now + to_duration("delay", options["delay"]).total_seconds()


def claim_check(job: Job, token: str = "") -> Job:
    """The job with a name for its body in the object store. JobTooLarge if the body exceeds that limit too."""
    if (size := len(job.body)) > MAX_OBJECT:
        raise JobTooLarge(
            f"the arguments are {size:,} bytes; the limit is {MAX_OBJECT:,}",
            size=size,
            limit=MAX_OBJECT,
            hint="store the data elsewhere and pass a reference",
        )
    return job._replace(payload=n.body_object(job.id, job.run, token))


def _duplicate(existing: StoredMessage) -> Entry:
    """The entry of the live job that already has the key or id."""
    return Entry(n.JobSubject.parse(existing.subject).job_id, existing.headers.get(h.RUN, ""), True)


def queue_not_found(queue: str, error: TopologyMissing) -> QueueNotFound:
    missing = error.code == STREAM_NOT_FOUND
    return QueueNotFound(
        f"queue {queue!r} does not exist ({error})"
        if missing
        else f"queue {queue!r} cannot take this job: {error}",
        hint=f"create it with `jetjobs setup apply --queue {queue}`,"
        f" or start a worker for it: `jetjobs worker --queue {queue}`",
    )


def _flow_queue_not_found(plan: FlowPlan, error: TopologyMissing) -> JetJobsError:
    """The error for a missing queue of a flow, if it is one: the bucket of flows may be missing too."""
    queue = next((step.queue for step in plan.steps if f"-work-{step.queue}" in str(error)), None)
    return error if queue is None else queue_not_found(queue, error)


def unconfirmed(job_id: str, error: JetJobsError) -> EnqueueUnconfirmed:
    return EnqueueUnconfirmed(
        f"job {job_id} was not confirmed in time; it may or may not be stored ({error})",
        job_id=job_id,
        hint=f"enqueue it again with options(job_id={job_id!r}), or with its key: it cannot be stored twice",
    )


def enqueue_failed(queue: str, task: str, error: JetJobsError, took_s: float) -> EnqueueFailed:
    """The event for a job that could not be stored."""
    return EnqueueFailed(queue, task, type(error).__name__, str(error), took_s)
