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

_AT_ONCE = 200
"""Guarded publishes on their way at the same time."""


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
        self._producer = producer

    async def enqueue(self, request: JobRequest[Any]) -> JobHandle[Any]:
        """One publish, one confirmation."""
        return await self._store(await self._prepare(0, request))

    async def enqueue_many(self, requests: Sequence[JobRequest[Any]]) -> EnqueueReport:
        """Atomic batches for plain jobs; jobs with a key or id of their own singly, many at a time."""
        report = EnqueueReport([None] * len(requests))
        plain: defaultdict[str, list[_Prepared]] = defaultdict(list)
        guarded: list[_Prepared] = []
        for index, request in enumerate(requests):
            try:
                one = await self._prepare(index, request)
            except JetJobsError as error:
                report.refused.append(Refusal(index, request, error))
                continue
            if one.guard is None:
                plain[one.stream].append(one)
            else:
                guarded.append(one)
        gate = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(
            *(self._store_chunks(stream, jobs, report) for stream, jobs in plain.items()),
            *(self._store_into(one, report, gate) for one in guarded),
        )
        report.refused.sort(key=lambda refusal: refusal.index)
        return report

    # Making the job

    async def _prepare(self, index: int, request: JobRequest[Any]) -> _Prepared:
        task, options = request.task, request.options
        names, publisher = self._jetstream.names, self._jetstream.publisher
        queue = options.get("queue", task.queue)
        tokens = JobId(key_token(options["key"]) if "key" in options else NO_KEY, options.get("job_id") or new_uid())
        job_id = str(tokens)
        stream = names.work_stream(queue)
        headers = {n.PRODUCER: self._producer, **options.get("headers", {})}
        if "headers" in options and header_size(headers) > MAX_HEADERS:
            raise JobTooLarge("the headers are too large", size=header_size(headers), limit=MAX_HEADERS)
        job = Job(
            job_id,
            task.name,
            queue,
            options.get("priority", task.priority),
            request.body,
            run=new_run(),
            max_attempts=options.get("max_attempts", 0),
            deadline=options["deadline"].timestamp() if "deadline" in options else 0.0,
            reply=self._waiting.reply_for(job_id) if task.store_result else "",
            headers=headers,
        )
        due_at = None
        if "delay" in options or "run_at" in options:
            due_at = await self._due_at(stream, request)
            job = job._replace(enqueued_at=time.time(), due_at=due_at)
        guard = None
        if "key" in options:
            guard = names.key_anywhere(queue, task.name, tokens.key)
        elif "job_id" in options:
            guard = names.job_anywhere(queue, task.name, tokens)
        message = publisher.outgoing(job, due_at, guard)
        publisher.check_size(message, self._jetstream.connection.inline_limit)
        return _Prepared(index, request, job, message, guard, stream)

    async def _due_at(self, stream: str, request: JobRequest[Any]) -> float:
        options = request.options
        if "run_at" in options:
            return options["run_at"].timestamp()
        try:
            now = await self._jetstream.publisher.server_now(stream, time.time())
        except TopologyMissing as error:
            raise _not_found(options.get("queue", request.task.queue), error) from error
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

    async def _store_into(self, one: _Prepared, report: EnqueueReport, gate: asyncio.Semaphore) -> None:
        async with gate:
            try:
                report.handles[one.index] = await self._store(one)
            except JetJobsError as error:
                report.refused.append(Refusal(one.index, one.request, error))

    async def _store_chunks(self, stream: str, jobs: list[_Prepared], report: EnqueueReport) -> None:
        for chunk in _chunks(jobs):
            try:
                await self._jetstream.publisher.store_batch(stream, [one.message for one in chunk])
            except JetJobsError as error:
                for one in chunk:
                    report.refused.append(Refusal(one.index, one.request, _for_one(one, error)))
            else:
                for one in chunk:
                    report.handles[one.index] = self._handle(one, one.job.id, one.job.run, duplicate=False)

    def _handle(self, one: _Prepared, job_id: str, run: str, *, duplicate: bool) -> JobHandle[Any]:
        task = one.request.task
        handle: JobHandle[Any] = JobHandle(
            job_id, one.job.queue, task.name, run=run, stores_result=task.store_result, duplicate=duplicate
        )
        return handle.attach(self._waiting, task.signature.decode_result)


def _chunks(jobs: list[_Prepared]) -> list[list[_Prepared]]:
    chunks: list[list[_Prepared]] = []
    size = 0
    for one in jobs:
        if not chunks or len(chunks[-1]) == BATCH_SIZE or size + len(one.message.body) > BATCH_BYTES:
            chunks.append([])
            size = 0
        chunks[-1].append(one)
        size += len(one.message.body)
    return chunks


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
