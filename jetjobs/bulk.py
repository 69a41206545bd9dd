"""Enqueue many jobs: plain jobs in atomic batches, jobs with a key, id or large body one by one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

from jetjobs.define.enqueue_report import EnqueueReport, Entry, Refusal
from jetjobs.define.task import JobRequest, Task
from jetjobs.enqueue import Enqueuer, Prepared, enqueue_failed, queue_not_found, unconfirmed
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.batch import BATCH_BYTES, BATCH_SIZE, BatchMessage, JobTemplate, batch_message
from jetjobs.jetstream.transport.connection import HEADER_ROOM
from jetjobs.model.errors import BrokerUnavailable, EnqueueError, JetJobsError, TopologyMissing
from jetjobs.model.events import JobEnqueued, Observer
from jetjobs.model.wire.ids import new_run, new_uid

_BATCHES_AT_ONCE = 3
_SINGLES_AT_ONCE = 200
_LARGE_AT_ONCE = 4
_TURN = 50
"""Jobs to prepare before the event loop may run the batches in progress."""


async def enqueue_many(
    jetstream: JetStreamClient, enqueuer: Enqueuer, requests: Sequence[JobRequest[Any]]
) -> EnqueueReport:
    """Store all requests. Up to 1,000 plain jobs of one queue are stored as one batch, all or none.

    EnqueueError, before anything is stored, if one of them is something else.
    """
    if (wrong := next((one for one in requests if not isinstance(one, JobRequest)), None)) is not None:
        raise EnqueueError(
            f"enqueue_many takes requests, not {type(wrong).__qualname__}",
            hint="make a list of them with `bind`: [task.bind(...), task.bind(...)]",
        )
    report = EnqueueReport(len(requests), lambda index, entry: enqueuer.handle(requests[index], entry))
    async with asyncio.TaskGroup() as storing:
        bulk = _Bulk(jetstream, enqueuer, requests, report, storing)
        for index, request in enumerate(requests):
            if index % _TURN == 0:
                await asyncio.sleep(0)
            await bulk.add(index, request)
        await bulk.flush()
    report.refused.sort(key=lambda refusal: refusal.index)
    return report


def notify_stored(
    notify: Observer, requests: Sequence[JobRequest[Any]], report: EnqueueReport, took_s: float
) -> None:
    """One event per request. The first event of each queue carries the duration, the others 0."""
    remaining: dict[str, float] = {}
    for request, entry in zip(requests, report.entries, strict=True):
        if entry is not None:
            queue = request.options.get("queue", request.task.queue)
            took = remaining.setdefault(queue, took_s)
            notify(JobEnqueued(queue, request.task.name, entry.job_id, entry.duplicate, took))
            remaining[queue] = 0.0
    for refusal in report.refused:
        queue = refusal.request.options.get("queue", refusal.request.task.queue)
        notify(
            enqueue_failed(queue, refusal.request.task.name, refusal.error, remaining.setdefault(queue, took_s))
        )
        remaining[queue] = 0.0


class _Chunk:
    """The messages of one batch, and the request of each."""

    __slots__ = ("entries", "messages", "queue", "size")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.messages: list[BatchMessage] = []
        self.entries: list[tuple[int, str, str]] = []
        self.size = 0


class _Bulk:
    """One call of `enqueue_many`. The server stores one batch while the next is prepared."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        enqueuer: Enqueuer,
        requests: Sequence[JobRequest[Any]],
        report: EnqueueReport,
        storing: asyncio.TaskGroup,
    ) -> None:
        self._jetstream = jetstream
        self._enqueuer = enqueuer
        self._requests = requests
        self._report = report
        self._storing = storing
        self._chunks: dict[str, _Chunk] = {}
        self._templates: dict[Task[Any, Any], JobTemplate] = {}
        self._surely_fits = jetstream.connection.inline_limit - HEADER_ROOM
        self._batches = asyncio.Semaphore(_BATCHES_AT_ONCE)
        self._singles = asyncio.Semaphore(_SINGLES_AT_ONCE)
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    async def add(self, index: int, request: JobRequest[Any]) -> None:
        task, body, options = request
        if not options and len(body) <= self._surely_fits:
            template = self._templates.get(task)
            if template is None:
                template = self._templates[task] = self._enqueuer.template(task)
            uid, run = new_uid(), new_run()
            await self._put(task.queue, template.fill(uid, run, body), (index, uid, run))
            return
        try:
            one = await self._enqueuer.prepare(request)
        except JetJobsError as error:
            self._refuse(index, error)
            return
        if one.guard is None and one.large is None:
            await self._put(one.job.queue, batch_message(one.message), (index, one.job.id, one.job.run))
        else:
            await self._singles.acquire()
            self._storing.create_task(self._store_single(index, one))

    async def flush(self) -> None:
        for chunk in self._chunks.values():
            await self._batches.acquire()
            self._storing.create_task(self._store_chunk(chunk))

    async def _put(self, queue: str, message: BatchMessage, entry: tuple[int, str, str]) -> None:
        chunk = self._chunks.get(queue)
        if chunk is None:
            chunk = self._chunks[queue] = _Chunk(queue)
        chunk.messages.append(message)
        chunk.entries.append(entry)
        chunk.size += len(message.body)
        if len(chunk.messages) == BATCH_SIZE or chunk.size > BATCH_BYTES:
            del self._chunks[queue]
            await self._batches.acquire()
            self._storing.create_task(self._store_chunk(chunk))

    async def _store_chunk(self, chunk: _Chunk) -> None:
        stream = self._jetstream.names.work_stream(chunk.queue)
        try:
            await self._jetstream.batches.store(stream, chunk.messages)
        except JetJobsError as error:
            for index, job_id, _ in chunk.entries:
                self._refuse(index, _for_one(chunk.queue, job_id, error))
        else:
            for index, job_id, run in chunk.entries:
                self._report.entries[index] = Entry(job_id, run, False)
        finally:
            self._batches.release()

    async def _store_single(self, index: int, one: Prepared) -> None:
        try:
            async with self._large if one.large is not None else contextlib.nullcontext():
                self._report.entries[index] = await self._enqueuer.store(one)
        except JetJobsError as error:
            self._refuse(index, error)
        finally:
            self._singles.release()

    def _refuse(self, index: int, error: JetJobsError) -> None:
        self._report.refused.append(Refusal(index, self._requests[index], error))


def _for_one(queue: str, job_id: str, error: JetJobsError) -> JetJobsError:
    """The error of a batch, expressed for one of its jobs."""
    if isinstance(error, TopologyMissing):
        return queue_not_found(queue, error)
    return unconfirmed(job_id, error) if isinstance(error, BrokerUnavailable) else error
