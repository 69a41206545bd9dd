"""Replay dead letters: one, or many at once. Safe to interrupt and repeat. ADR 27."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Iterable
from typing import NamedTuple, TypeVar

from jetjobs.define.router import Router
from jetjobs.enqueue import claim_check
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.results import read_record
from jetjobs.jetstream.messages.codec import MAX_MOVABLE, header_number, header_size
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.payloads import labels_of
from jetjobs.jetstream.messages.publisher import WrongLastSequence
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import (
    AccessDenied,
    DefinitionError,
    DeliveryError,
    EnqueueError,
    JobTooLarge,
    MalformedJob,
    QueueNotFound,
    TopologyMissing,
)
from jetjobs.model.job import Job
from jetjobs.model.views.dead_letter import (
    DeadLetter,
    ReplayAnswer,
    ReplayOptions,
    ReplayOutcome,
    provenance,
    run_of,
)
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import NO_KEY, JobId, new_run, parse_id

AT_ONCE = 16
"""Letters under way at a time, in a replay of many."""
GROUP_BYTES = 2 * 1024 * 1024
T = TypeVar("T")


class _Ready(NamedTuple):
    """A letter and the job made of it, checked and ready to be stored."""

    letter: DeadLetter
    job: Job
    guard: str


# Said of a letter; anything else is the server's trouble.
_KEPT = frozenset({h.PRODUCER, h.RETRY_POLICY, h.PARENT, h.ROOT})
"""Headers of ours that a new life of the job has too."""
_REFUSALS = (DeliveryError, DefinitionError, EnqueueError, TopologyMissing)


class Replayer:
    """Carries out one order: each letter is enqueued, and only then removed.

    The run of the new life is derived from the letter. So a replay that was cut short before it could remove its
    letter is known by the live job or done record of that run, or by the message id of the job.
    """

    def __init__(self, jetstream: JetStreamClient, registry: Router, order: ReplayOptions) -> None:
        order.check()
        self._jetstream = jetstream
        self._registry = registry
        self._order = order

    async def check_queue(self) -> None:
        """QueueNotFound when the jobs are to go to a queue that is not there."""
        queue = self._order.to_queue
        if queue is None:
            return
        try:
            await self._jetstream.connection.api(api.stream_info(self._jetstream.names.work_stream(queue)))
        except TopologyMissing as error:
            raise QueueNotFound(f"there is no queue {queue!r}; nothing was changed", hint=error.hint) from error
        except AccessDenied:
            return  # we may not ask; the publish will tell

    async def replay(self, letter: DeadLetter) -> ReplayAnswer:
        """Never raises for what a letter is; BrokerError when the server fails."""
        names, dead = self._jetstream.names, self._jetstream.dead
        if not await dead.exists(letter.sequence):
            return ReplayAnswer(letter, ReplayOutcome.GONE)
        if await self._has_ended(letter):
            await dead.remove(letter.sequence, erase=False)
            return ReplayAnswer(letter, ReplayOutcome.ALREADY)
        try:
            job = await self.revive(letter)
            guard = names.job_anywhere(job.queue, job.task, JobId(job.key, job.uid))
            if job.key != NO_KEY:
                guard = names.key_anywhere(job.queue, job.task, job.key)
            one = _Ready(letter, await self._fit(job, guard), guard)
        except _REFUSALS as error:
            return ReplayAnswer(letter, ReplayOutcome.REFUSED, str(error))
        try:
            outcome = await self._store(one)
        except _REFUSALS as error:
            await self._drop_body(one)
            return ReplayAnswer(letter, ReplayOutcome.REFUSED, str(error))
        if outcome is ReplayOutcome.ALIVE:
            await self._drop_body(one)
            return ReplayAnswer(letter, outcome, "a live job holds its id or key")
        await dead.remove(letter.sequence, erase=False)
        if outcome is ReplayOutcome.ALREADY:
            await self._drop_body(one)
        elif letter.payload and letter.payload != one.job.payload:
            await self._discard(letter.queue, one, letter.payload)
        return ReplayAnswer(letter, outcome)

    async def _has_ended(self, letter: DeadLetter) -> bool:
        """Whether the life that a replay of this letter begins has left its record."""
        try:
            done = await self._jetstream.results.get(self._order.to_queue or letter.queue, letter.task, letter.id)
        except TopologyMissing:
            return False
        return done is not None and read_record(done.data).get("run") == run_of(letter)

    async def _store(self, one: _Ready) -> ReplayOutcome:
        stream = self._jetstream.names.work_stream(one.job.queue)
        message = self._jetstream.publisher.outgoing(one.job, None, one.guard)
        while True:
            try:
                stored = await self._jetstream.publisher.store(stream, message)
                return ReplayOutcome.REPLAYED if stored else ReplayOutcome.ALREADY
            except WrongLastSequence:
                there = await last_on(self._jetstream.connection, stream, one.guard)
                if there is not None:
                    ours = there.headers.get(h.RUN) == one.job.run
                    return ReplayOutcome.ALREADY if ours else ReplayOutcome.ALIVE
            await asyncio.sleep(0.05)  # what held it has ended or moved: try again

    async def _fit(self, job: Job, guard: str) -> Job:
        """The job as it is stored: a body that is too large for a message goes to the object store."""
        publisher, limit = self._jetstream.publisher, self._jetstream.connection.inline_limit
        message = publisher.outgoing(job, None, guard)
        if (size := header_size(message.headers)) > MAX_MOVABLE:
            raise JobTooLarge(f"its headers are {size:,} bytes", size=size, limit=MAX_MOVABLE)
        if publisher.fits(message, limit):
            return job
        # Under a name of this try alone: an earlier one may have got through with other arguments.
        job = claim_check(job, new_run())
        await self._jetstream.payloads.put(job.payload, job.body, labels_of(job))
        return job._replace(body=b"")

    async def _drop_body(self, one: _Ready) -> None:
        """What `_fit` had stored for a job that was not."""
        if one.job.payload and one.job.payload != one.letter.payload:
            await self._discard(one.job.queue, one, one.job.payload)

    async def _discard(self, queue: str, one: _Ready, name: str) -> None:
        await self._jetstream.locator.delete_unreferenced(queue, one.job.task, one.job.id, name)

    async def revive(self, letter: DeadLetter) -> Job:
        """The job as it will be enqueued, checked against the task as it is now. Changes nothing."""
        order = self._order
        if h.PAYLOAD_HEADERS in letter.headers:
            raise MalformedJob("its headers are too large for a job; enqueue it anew with fewer")
        task = self._registry.find(letter.task)
        queue = order.to_queue or letter.queue
        body, payload = letter.body, letter.payload
        if order.arguments is not None:
            body, payload = task.signature.encode(task.signature.bind((), order.arguments)), ""
        elif payload:
            body = await self._jetstream.payloads.get(payload)
        task.signature.decode(body)
        if payload and queue == letter.queue:
            body = b""  # the object goes over to the new life; on another queue the job gets one of its own
        else:
            payload = ""
        kept = {k: v for k, v in letter.headers.items() if k in _KEPT or not _own(k)}
        kept |= task.own_headers
        return Job(
            letter.id,
            letter.task,
            queue,
            letter.lane,
            body,
            parse_id(letter.id).key,
            run=run_of(letter),
            max_attempts=int(header_number(letter.headers, h.MAX_ATTEMPTS, 0)),
            enqueued_at=letter.enqueued_at.timestamp() if letter.enqueued_at else 0.0,
            payload=payload,
            headers={**kept, h.REPLAY: provenance(letter, order, time.time())},
        )


async def replay_many(
    replayer: Replayer, letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter], rate: float = 0.0
) -> AsyncGenerator[ReplayAnswer, None]:
    """Replay letters as they come, up to 16 at a time; with a rate one by one, so many a second.

    When it is cancelled, those under way are brought to their end and answered first.
    """
    if not rate >= 0.0 or math.isinf(rate):
        raise DefinitionError(f"the rate must be 0 or more a second, not {rate}")
    await replayer.check_queue()
    async for group in _groups(letters, rate):
        work = asyncio.ensure_future(_all(map(replayer.replay, group)))
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            for answer in await work:
                yield answer
            raise
        for answer in work.result():
            yield answer


async def _groups(
    letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter], rate: float
) -> AsyncIterator[list[DeadLetter]]:
    """Letters in the portions in which they are replayed: by number and by size, or one by one and paced."""
    group: list[DeadLetter] = []
    due = time.monotonic()
    async for letter in _each(letters):
        if group and (rate or len(group) == AT_ONCE or sum(_weight(x) for x in group) > GROUP_BYTES):
            yield group
            group = []
        if rate:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1 / rate) + 1 / rate
        group.append(letter)
    if group:
        yield group


def _weight(letter: DeadLetter) -> int:
    """Bytes to hold for it; a body in the object store may be large, so it goes alone."""
    return len(letter.body) + (GROUP_BYTES if letter.payload else 0)


async def _each(letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter]) -> AsyncIterator[DeadLetter]:
    if isinstance(letters, AsyncIterable):
        async for letter in letters:
            yield letter
    else:
        for letter in letters:
            yield letter


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """What they return, once all have ended; the first error otherwise."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    for one in ended:
        if isinstance(one, BaseException):
            raise one
    return [one for one in ended if not isinstance(one, BaseException)]


def _own(name: str) -> bool:
    return name.lower().startswith(h.OWN_PREFIXES)
