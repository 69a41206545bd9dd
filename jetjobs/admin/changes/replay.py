"""Replay dead letters, one or many. A replay is safe to interrupt and to repeat. ADR 27."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from jetjobs.define.router import Router
from jetjobs.enqueue import claim_check
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.flows.continuation import deadline_of
from jetjobs.jetstream.messages.codec import MAX_MOVABLE, header_number, header_size
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.payloads import labels_of
from jetjobs.jetstream.messages.publisher import Outgoing, WrongLastSequence
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
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import GATE

AT_ONCE = 16
"""Letters replayed concurrently when there are many."""
GROUP_BYTES = 2 * 1024 * 1024
FLOW_AGAIN_S = 86400.0
"""How long a flow may take after a replay of one of its jobs, if its deadline is earlier."""
_KEPT = frozenset({h.PRODUCER, h.RETRY_POLICY, h.PARENT, h.ROOT, h.CALLBACK, h.KEEP, *h.OF_FLOW})
"""Headers of jetjobs that the replayed job keeps."""
_REFUSALS = (DeliveryError, DefinitionError, EnqueueError, TopologyMissing)
"""Errors that concern one letter. Every other error concerns the server."""
T = TypeVar("T")


class _Ready(NamedTuple):
    """A letter and the job made from it, validated and ready to be stored."""

    letter: DeadLetter
    job: Job
    guard: str


class Replayer:
    """Enqueues the job of each letter, and removes the letter only then.

    The run id of the replayed job is derived from its letter. A replay that was interrupted before it removed the
    letter is therefore recognised by the live job or the done record of that run, or by the job's message id.
    """

    def __init__(self, jetstream: JetStreamClient, registry: Router, options: ReplayOptions) -> None:
        options.check()
        self._jetstream = jetstream
        self._registry = registry
        self._options = options

    async def check_queue(self) -> None:
        """QueueNotFound when the target queue of the jobs does not exist."""
        queue = self._options.to_queue
        if queue is None:
            return
        try:
            await self._jetstream.connection.api(api.stream_info(self._jetstream.names.work_stream(queue)))
        except TopologyMissing as error:
            raise QueueNotFound(f"queue {queue!r} does not exist; nothing was changed", hint=error.hint) from error
        except AccessDenied:
            return  # this user may not read the stream; the publish reports a missing queue

    async def replay(self, letter: DeadLetter) -> ReplayAnswer:
        """Replay one letter. Problems of the letter are answered; only BrokerError is raised."""
        names, dead = self._jetstream.names, self._jetstream.dead
        if not await dead.exists(letter.sequence):
            return ReplayAnswer(letter, ReplayOutcome.GONE)
        if await self._has_ended(letter):
            await dead.remove(letter.sequence, erase=False)
            return ReplayAnswer(letter, ReplayOutcome.ALREADY)
        try:
            job = await self.revive(letter)
            guard = names.job_anywhere(job.queue, job.task, JobId(job.key, job.uid))
            if job.key != NO_KEY and h.FLOW not in job.headers:  # all jobs of a flow have its key
                guard = names.key_anywhere(job.queue, job.task, job.key)
            ready = _Ready(letter, await self._fit(job, guard), guard)
        except _REFUSALS as error:
            return ReplayAnswer(letter, ReplayOutcome.REFUSED, str(error))
        try:
            outcome = await self._store(ready)
        except _REFUSALS as error:
            await self._drop_body(ready)
            return ReplayAnswer(letter, ReplayOutcome.REFUSED, str(error))
        if outcome is ReplayOutcome.ALIVE:
            await self._drop_body(ready)
            return ReplayAnswer(letter, outcome, "a live job has its id or key")
        if _is_gate(ready.job.headers):
            await self._jetstream.flow_continuation.look(ready.job)
        await dead.remove(letter.sequence, erase=False)
        if outcome is ReplayOutcome.ALREADY:
            await self._drop_body(ready)
        elif letter.payload and letter.payload != ready.job.payload:
            await self._discard(letter.queue, ready, letter.payload)
        return ReplayAnswer(letter, outcome)

    async def _has_ended(self, letter: DeadLetter) -> bool:
        """Whether the job that a replay of this letter enqueues has run and left its record."""
        try:
            done = await self._jetstream.results.get(
                self._options.to_queue or letter.queue, letter.task, letter.id
            )
        except TopologyMissing:
            return False
        return done is not None and read_record(done.data).get("run") == run_of(letter)

    async def _store(self, ready: _Ready) -> ReplayOutcome:
        stream = self._jetstream.names.work_stream(ready.job.queue)
        message = self._message(ready.job, ready.guard)
        while True:
            try:
                stored = await self._jetstream.publisher.store(stream, message)
                return ReplayOutcome.REPLAYED if stored else ReplayOutcome.ALREADY
            except WrongLastSequence:
                there = await last_on(self._jetstream.connection, stream, ready.guard)
                if there is not None:
                    ours = there.headers.get(h.RUN) == ready.job.run
                    return ReplayOutcome.ALREADY if ours else ReplayOutcome.ALIVE
            await asyncio.sleep(0.05)  # the job that had the key has ended or moved: try again

    def _message(self, job: Job, guard: str) -> Outgoing:
        """The message of a replayed job. A gate waits again."""
        publisher = self._jetstream.publisher
        if not _is_gate(job.headers):
            return publisher.outgoing(job, None, guard)
        return publisher.outgoing(job, deadline_of(job), guard, GATE)

    async def _fit(self, job: Job, guard: str) -> Job:
        """The job as it is stored: a body too large for a message goes to the object store."""
        publisher, limit = self._jetstream.publisher, self._jetstream.connection.inline_limit
        message = self._message(job, guard)
        if (size := header_size(message.headers)) > MAX_MOVABLE:
            raise JobTooLarge(f"its headers are {size:,} bytes", size=size, limit=MAX_MOVABLE)
        if publisher.fits(message, limit):
            return job
        # The name is unique to this try: an earlier one may have succeeded with other arguments.
        job = claim_check(job, new_run())
        await self._jetstream.payloads.put(job.payload, job.body, labels_of(job))
        return job._replace(body=b"")

    async def _drop_body(self, ready: _Ready) -> None:
        """Delete the body that `_fit` stored for a job that was not enqueued."""
        if ready.job.payload and ready.job.payload != ready.letter.payload:
            await self._discard(ready.job.queue, ready, ready.job.payload)

    async def _discard(self, queue: str, ready: _Ready, name: str) -> None:
        await self._jetstream.locator.delete_unreferenced(queue, ready.job.task, ready.job.id, name)

    async def revive(self, letter: DeadLetter) -> Job:
        """The job as it will be enqueued, validated against the current task. Changes nothing."""
        options = self._options
        if h.PAYLOAD_HEADERS in letter.headers:
            raise MalformedJob("its headers are too large for a job; enqueue a new job with fewer headers")
        task = self._registry.find(letter.task)
        queue = options.to_queue or letter.queue
        body, payload = letter.body, letter.payload
        now = await self._jetstream.server_clock.seconds()
        kept = {k: v for k, v in letter.headers.items() if k in _KEPT or not _own(k)} | task.own_headers
        if h.FLOW in kept:
            kept |= _again_in_flow(letter.headers, now)
        if options.arguments is not None:
            body, payload = task.signature.encode(task.signature.bind((), options.arguments)), ""
            if _is_gate(kept):
                kept[h.BOUND] = "1"
        elif payload:
            body = await self._jetstream.payloads.get(payload)
        if not _is_gate(kept):
            task.signature.decode(body)
        elif queue != letter.queue:
            raise MalformedJob("it waits for other steps of its flow, which look for it in its queue")
        if payload and queue == letter.queue:
            body = b""  # the replayed job takes over the object; on another queue it gets its own
        else:
            payload = ""
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
            due_at=now,  # its waiting time begins now
            payload=payload,
            headers={**kept, h.REPLAY: provenance(letter, options, time.time())},
        )


class ReplayTally:
    """Counts the outcomes of replays, which are there even after an interruption."""

    def __init__(self) -> None:
        self.counts: Counter[ReplayOutcome] = Counter()
        self.refused: list[dict[str, Any]] = []
        """The letters that were refused or whose job is alive."""

    def add(self, answer: ReplayAnswer) -> None:
        self.counts[answer.outcome] += 1
        if answer.outcome in (ReplayOutcome.REFUSED, ReplayOutcome.ALIVE):
            self.refused.append(answer.as_dict())

    def as_dict(self, *, complete: bool) -> dict[str, Any]:
        counts = {str(outcome): number for outcome, number in self.counts.items()}
        return {"counts": counts, "refused": self.refused, "complete": complete}


async def replay_many(
    replayer: Replayer, letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter], rate: float = 0.0
) -> AsyncGenerator[ReplayAnswer, None]:
    """Replay letters, up to 16 at a time; with a `rate`, one by one and at most that many per second.

    When it is cancelled, the replays in progress finish and are answered first.
    """
    if not rate >= 0.0 or math.isinf(rate):
        raise DefinitionError(f"invalid rate {rate}: use 0 or more letters per second")
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
    """Split letters into groups to replay together: limited by number and size, or one by one at the rate."""
    group: list[DeadLetter] = []
    due = time.monotonic()
    async for letter in _each(letters):
        if group and (rate or len(group) == AT_ONCE or sum(map(_size, group)) > GROUP_BYTES):
            yield group
            group = []
        if rate:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1 / rate) + 1 / rate
        group.append(letter)
    if group:
        yield group


def _size(letter: DeadLetter) -> int:
    """Bytes of memory for a letter. A body in the object store may be large, so its letter fills a group."""
    return len(letter.body) + (GROUP_BYTES if letter.payload else 0)


async def _each(letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter]) -> AsyncIterator[DeadLetter]:
    if isinstance(letters, AsyncIterable):
        async for letter in letters:
            yield letter
    else:
        for letter in letters:
            yield letter


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    """The results, once all have ended; then the first error is raised, if there is one."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    for result in ended:
        if isinstance(result, BaseException):
            raise result
    return [result for result in ended if not isinstance(result, BaseException)]


def _is_gate(headers: Mapping[str, str]) -> bool:
    """Whether a job of a flow lacks the results of other steps."""
    return h.FLOW in headers and h.BOUND not in headers and (h.AFTER in headers or h.MAP in headers)


def _again_in_flow(headers: Mapping[str, str], now: float) -> dict[str, str]:
    """Headers of a job of a flow that goes on: what its end needs is kept for another while, and the secrets in
    results of other steps are named by the letter alone."""
    deadline = max(header_number(headers, h.FLOW_DEADLINE, 0.0), now + FLOW_AGAIN_S)
    secret = {h.SECRET: headers[h.SECRET]} if h.SECRET in headers else {}
    return {h.FLOW_DEADLINE: f"{deadline:.6f}", **secret}


def _own(name: str) -> bool:
    return name.lower().startswith(h.OWN_PREFIXES)
