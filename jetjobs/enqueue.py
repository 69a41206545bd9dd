"""Turn a checked request into a stored job: make it, publish it, and know what became of it."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

from jetjobs.define.context import running_job
from jetjobs.define.enqueue_report import Entry
from jetjobs.define.handle import JobHandle
from jetjobs.define.task import JobRequest, Task
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.result_waiter import ResultWaiter
from jetjobs.jetstream.messages.batch import JobTemplate
from jetjobs.jetstream.messages.codec import MAX_HEADERS, header_size
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence, last_on
from jetjobs.jetstream.messages.payloads import MAX_OBJECT, labels_of
from jetjobs.jetstream.messages.publisher import Outgoing, Unconfirmed, WrongLastSequence
from jetjobs.model.errors import (
    BrokerError,
    EnqueueUnconfirmed,
    JetJobsError,
    JobTooLarge,
    QueueNotFound,
    TopologyMissing,
)
from jetjobs.model.events import EnqueueFailed
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import NO_KEY, JobId, key_token, new_run, new_uid


class Prepared(NamedTuple):
    """A job ready to be stored. `guard` is the subject that must be empty for that."""

    job: Job
    message: Outgoing
    guard: str | None
    large: bytes | None = None
    """The body, where the message only names it: it goes to the object store first."""


class Enqueuer:
    """Stores jobs for one app."""

    def __init__(self, jetstream: JetStreamClient, waiting: ResultWaiter, producer: str) -> None:
        self._jetstream = jetstream
        self._waiting = waiting
        self._headers = {h.PRODUCER: producer}

    async def enqueue(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """One publish, one confirmation."""
        self._jetstream.connection.check_loop()
        return self.handle(request, await self.store(await self.prepare(request)))

    # Making the job

    async def prepare(self, request: JobRequest[Any]) -> Prepared:
        """The job of a request in its wire form. JobTooLarge before anything is sent."""
        publisher, limit = self._jetstream.publisher, self._jetstream.connection.inline_limit
        due_at = None
        if request.options:
            job, guard = self._with_options(request)
            due_at = await self._due_at(request)
            if due_at is not None:
                job = job._replace(enqueued_at=time.time(), due_at=due_at)
        else:
            job, guard = self._plain(request.task, new_uid(), new_run(), request.body), None
        message = publisher.outgoing(job, due_at, guard)
        if publisher.fits(message, limit):
            return Prepared(job, message, guard)
        job = claim_check(job)
        message = publisher.outgoing(job._replace(body=b""), due_at, guard)
        publisher.check_size(message, limit)
        return Prepared(job, message, guard, job.body)

    def _plain(self, task: Task[Any, Any], uid: str, run: str, body: bytes) -> Job:
        reply = self._waiting.reply_for(uid) if task.store_result else ""
        headers = self._its_headers(task)
        return Job(uid, task.name, task.queue, task.priority, body, run=run, reply=reply, headers=headers)

    def _its_headers(self, task: Task[Any, Any]) -> dict[str, str]:
        """Ours, of a job of this task: who enqueues it."""
        parent = running_job()
        if parent is None:
            return {**self._headers, **task.own_headers} if task.own_headers else self._headers
        return {**self._headers, **task.own_headers, h.PARENT: parent.id, h.ROOT: parent.root_id}

    def template(self, task: Task[Any, Any]) -> JobTemplate:
        """For many plain jobs of one task."""
        return JobTemplate(
            self._jetstream.publisher.outgoing(self._plain(task, JobTemplate.ID, JobTemplate.RUN, b""))
        )

    def _with_options(self, request: JobRequest[Any]) -> tuple[Job, str | None]:
        """The job, and the subject that must be empty for it to be stored."""
        task, body, options = request
        names = self._jetstream.names
        queue = options.get("queue", task.queue)
        tokens = JobId(
            key_token(options["key"]) if "key" in options else NO_KEY, options.get("job_id") or new_uid()
        )
        job_id = str(tokens)
        headers = {**self._its_headers(task), **options.get("headers", {})}
        if "retry" in options:
            headers[h.RETRY_POLICY] = options["retry"].to_header()
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
            run=new_run(),
            max_attempts=options.get("max_attempts", 0),
            deadline=options["deadline"].timestamp() if "deadline" in options else 0.0,
            reply=self._waiting.reply_for(job_id) if task.store_result else "",
            headers=headers,
        )
        if "key" in options:
            return job, names.key_anywhere(queue, task.name, tokens.key)
        return job, names.job_anywhere(queue, task.name, tokens) if "job_id" in options else None

    async def _due_at(self, request: JobRequest[Any]) -> float | None:
        """When a job for later is due, by the server's clock: that is the one that fires it."""
        options = request.options
        if "run_at" in options:
            return options["run_at"].timestamp()
        if "delay" not in options:
            return None
        queue = options.get("queue", request.task.queue)
        try:
            now = await self._jetstream.server_clock.seconds(self._jetstream.names.work_stream(queue))
        except TopologyMissing as error:
            raise queue_not_found(queue, error) from error
        return now + options["delay"].total_seconds()

    # Storing it

    async def store(self, one: Prepared) -> Entry:
        """Stored, or found to be there already. EnqueueError otherwise."""
        if one.large is None:
            return await self._publish(one)
        return await self._store_large(one, one.large)

    async def _store_large(self, one: Prepared, body: bytes) -> Entry:
        """The body first, then the message that names it. Refused or there already: the body goes again."""
        job, payloads = one.job, self._jetstream.payloads
        if one.guard is not None and (there := await self._live(one)) is not None:
            return _duplicate(there)  # seen before the body was sent
        await payloads.put(job.payload, body, labels_of(job))
        try:
            entry = await self._publish(one)
        except EnqueueUnconfirmed:
            raise  # the job may be there and need it; if not, the sweep finds it
        except JetJobsError:
            with contextlib.suppress(BrokerError):
                await payloads.delete(job.payload)
            raise
        if entry.duplicate:
            with contextlib.suppress(BrokerError):
                await payloads.delete(job.payload)
        return entry

    async def _live(self, one: Prepared) -> StoredMessage | None:
        assert one.guard is not None
        stream = self._jetstream.names.work_stream(one.job.queue)
        try:
            return await last_on(self._jetstream.connection, stream, one.guard)
        except TopologyMissing as error:
            raise queue_not_found(one.job.queue, error) from error

    async def _publish(self, one: Prepared) -> Entry:
        job = one.job
        stream = self._jetstream.names.work_stream(job.queue)
        while True:
            try:
                await self._jetstream.publisher.store(stream, one.message)
                return Entry(job.id, job.run, False)
            except WrongLastSequence as taken:
                there = await self._who_is_there(stream, one, taken.sequence)
                if there is None:
                    continue  # it ended meanwhile: the key is free again
                if there.headers.get(h.RUN) == job.run:
                    return Entry(job.id, job.run, False)  # our own resend
                return _duplicate(there)
            except TopologyMissing as error:
                raise queue_not_found(job.queue, error) from error
            except Unconfirmed as error:
                raise unconfirmed(job.id, error) from error

    async def _who_is_there(self, stream: str, one: Prepared, sequence: int) -> StoredMessage | None:
        connection = self._jetstream.connection
        if sequence:
            return await at_sequence(connection, stream, sequence)
        assert one.guard is not None
        return await last_on(connection, stream, one.guard)

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
        return handle.attach(self._waiting, task.signature.decode_result)


def claim_check(job: Job, token: str = "") -> Job:
    """The job with its body named for the object store. JobTooLarge when that does not take it either."""
    if (size := len(job.body)) > MAX_OBJECT:
        raise JobTooLarge(
            f"the arguments are {size:,} bytes; the limit is {MAX_OBJECT:,}",
            size=size,
            limit=MAX_OBJECT,
            hint="store the data elsewhere and pass a reference",
        )
    return job._replace(payload=n.body_object(job.id, job.run, token))


def _duplicate(there: StoredMessage) -> Entry:
    """The live job that was found in place of ours."""
    key, uid = there.subject.split(".")[-2:]
    return Entry(str(JobId(key, uid)), there.headers.get(h.RUN, ""), True)


def queue_not_found(queue: str, error: TopologyMissing) -> QueueNotFound:
    return QueueNotFound(
        f"queue {queue!r} cannot take this job: {error}",
        hint="create it with `jetjobs setup apply`, or start a worker for it",
    )


def unconfirmed(job_id: str, error: JetJobsError) -> EnqueueUnconfirmed:
    return EnqueueUnconfirmed(
        f"job {job_id} was not confirmed in time; it may or may not be stored ({error})",
        job_id=job_id,
        hint=f"enqueue it again with options(job_id={job_id!r}), or with its key: it cannot be stored twice",
    )


def enqueue_failed(queue: str, task: str, error: JetJobsError, took_s: float) -> EnqueueFailed:
    """The event for a job that could not be stored."""
    return EnqueueFailed(queue, task, type(error).__name__, str(error), took_s)
