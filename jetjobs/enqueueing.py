"""Turn checked requests into stored jobs, one by one or in batches, and say what became of each."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from jetjobs.define.handle import JobHandle
from jetjobs.define.report import EnqueueReport, Refusal
from jetjobs.define.task import JobRequest
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.codec import MAX_HEADERS, header_size
from jetjobs.jetstream.publisher import BATCH_BYTES, BATCH_SIZE, Outgoing, Taken, Unconfirmed
from jetjobs.jetstream.reads import StoredMessage, at_sequence, last_on
from jetjobs.jetstream.waiting import Waiting
from jetjobs.model import names as n
from jetjobs.model.errors import (
    BrokerUnavailable,
    EnqueueUnconfirmed,
    JetJobsError,
    JobTooLarge,
    QueueNotFound,
    TopologyMissing,
)
from jetjobs.model.ids import NO_KEY, JobId, key_token, new_run, new_uid
from jetjobs.model.job import Job

_BATCHES_AT_ONCE = 2
_GUARDED_AT_ONCE = 200


class _Prepared(NamedTuple):
    index: int
    request: JobRequest[Any]
    job: Job
    message: Outgoing
    guard: str | None
    stream: str


class Enqueuer:
    """Stores jobs for one app."""

    def __init__(self, jetstream: JetStreamClient, waiting: Waiting, producer: str) -> None:
        self._jetstream = jetstream
        self._waiting = waiting
        self._headers = {n.PRODUCER: producer}

    async def enqueue(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """One publish, one confirmation."""
        return await self._store(self._prepare(0, request, await self._due_at(request)))

    async def enqueue_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """Atomic batches for plain jobs; jobs with a key or id of their own singly, many at a time."""
        report = EnqueueReport([None] * len(requests))
        chunks: defaultdict[str, list[_Prepared]] = defaultdict(list)
        sizes: defaultdict[str, int] = defaultdict(int)
        gate, guarded_gate = asyncio.Semaphore(_BATCHES_AT_ONCE), asyncio.Semaphore(_GUARDED_AT_ONCE)
        async with asyncio.TaskGroup() as storing:
            for index, request in enumerate(requests):
                try:
                    due_at = await self._due_at(request) if request.options else None
                    one = self._prepare(index, request, due_at)
                except JetJobsError as error:
                    report.refused.append(Refusal(index, request, error))
                    continue
                if one.guard is not None:
                    await guarded_gate.acquire()
                    storing.create_task(self._store_guarded(one, report, guarded_gate))
                    continue
                chunk = chunks[one.stream]
                chunk.append(one)
                sizes[one.stream] += len(one.message.body)
                if len(chunk) == BATCH_SIZE or sizes[one.stream] > BATCH_BYTES:
                    # The server stores one batch while we prepare the next.
                    del chunks[one.stream], sizes[one.stream]
                    await gate.acquire()
                    storing.create_task(self._store_chunk(chunk, report, gate))
                    await asyncio.sleep(0)
            for chunk in chunks.values():
                await gate.acquire()
                storing.create_task(self._store_chunk(chunk, report, gate))
        report.refused.sort(key=lambda refusal: refusal.index)
        return report

    # Making the job

    def _prepare(self, index: int, request: JobRequest[Any], due_at: float | None) -> _Prepared:
        task, body, options = request
        publisher = self._jetstream.publisher
        queue = task.queue
        uid, run = new_uid(), new_run()
        if not options:
            reply = self._waiting.reply_for(uid) if task.store_result else ""
            job = Job(uid, task.name, queue, task.priority, body, run=run, reply=reply, headers=self._headers)
            guard = None
        else:
            queue = options.get("queue", queue)
            job, guard = self._with_options(request, queue, options.get("job_id", uid), run)
        if due_at is not None:
            job = job._replace(enqueued_at=time.time(), due_at=due_at)
        message = publisher.outgoing(job, due_at, guard)
        publisher.check_size(message, self._jetstream.connection.inline_limit)
        return _Prepared(index, request, job, message, guard, self._jetstream.names.work_stream(queue))

    def _with_options(self, request: JobRequest[Any], queue: str, uid: str, run: str) -> tuple[Job, str | None]:
        """The job, and the subject that must be empty for it to be stored."""
        task, body, options = request
        names = self._jetstream.names
        tokens = JobId(key_token(options["key"]) if "key" in options else NO_KEY, uid)
        job_id = str(tokens)
        headers = {**self._headers, **options.get("headers", {})}
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
            run=run,
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
            now = await self._jetstream.publisher.server_now(self._jetstream.names.work_stream(queue), time.time())
        except TopologyMissing as error:
            raise _not_found(queue, error) from error
        return now + options["delay"].total_seconds()

    # Storing it

    async def _store(self, one: _Prepared) -> JobHandle[Any]:
        while True:
            try:
                await self._jetstream.publisher.store(one.stream, one.message)
                return self._handle(one, one.job.id, one.job.run, duplicate=False)
            except Taken as taken:
                there = await self._who_is_there(one, taken.sequence)
                if there is None:
                    continue  # it ended meanwhile: the key is free again
                run = there.headers.get(n.RUN, "")
                if run == one.job.run:
                    return self._handle(one, one.job.id, run, duplicate=False)  # our own resend
                key, uid = there.subject.split(".")[-2:]
                return self._handle(one, str(JobId(key, uid)), run, duplicate=True)
            except TopologyMissing as error:
                raise _not_found(one.job.queue, error) from error
            except Unconfirmed as error:
                raise _unconfirmed(one.job.id, error) from error

    async def _who_is_there(self, one: _Prepared, sequence: int) -> StoredMessage | None:
        connection = self._jetstream.connection
        if sequence:
            return await at_sequence(connection, one.stream, sequence)
        assert one.guard is not None
        return await last_on(connection, one.stream, one.guard)

    async def _store_guarded(self, one: _Prepared, report: EnqueueReport, gate: asyncio.Semaphore) -> None:
        try:
            report.handles[one.index] = await self._store(one)
        except JetJobsError as error:
            report.refused.append(Refusal(one.index, one.request, error))
        finally:
            gate.release()

    async def _store_chunk(self, chunk: list[_Prepared], report: EnqueueReport, gate: asyncio.Semaphore) -> None:
        try:
            await self._jetstream.publisher.store_batch(chunk[0].stream, [one.message for one in chunk])
        except JetJobsError as error:
            for one in chunk:
                report.refused.append(Refusal(one.index, one.request, _for_one(one, error)))
        else:
            for one in chunk:
                report.handles[one.index] = self._handle(one, one.job.id, one.job.run, duplicate=False)
        finally:
            gate.release()

    def _handle(self, one: _Prepared, job_id: str, run: str, *, duplicate: bool) -> JobHandle[Any]:
        task = one.request.task
        handle: JobHandle[Any] = JobHandle(
            job_id, one.job.queue, task.name, run=run, stores_result=task.store_result, duplicate=duplicate
        )
        return handle.attach(self._waiting, task.signature.decode_result)


def _for_one(one: _Prepared, error: JetJobsError) -> JetJobsError:
    if isinstance(error, TopologyMissing):
        return _not_found(one.job.queue, error)
    return _unconfirmed(one.job.id, error) if isinstance(error, BrokerUnavailable) else error


def _not_found(queue: str, error: TopologyMissing) -> QueueNotFound:
    return QueueNotFound(
        f"queue {queue!r} cannot take this job: {error}",
        hint="create it with `jetjobs setup apply`, or start a worker for it",
    )


def _unconfirmed(job_id: str, error: JetJobsError) -> EnqueueUnconfirmed:
    return EnqueueUnconfirmed(
        f"job {job_id} was not confirmed in time; it may or may not be stored ({error})",
        job_id=job_id,
        hint=f"enqueue it again with options(job_id={job_id!r}), or with its key: it cannot be stored twice",
    )
