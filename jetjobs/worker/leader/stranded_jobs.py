"""Jobs that the server has stopped delivering: found in their lanes and dead-lettered. ADR 28.

The server reports such a job once, by an advisory on core NATS that anybody can miss or forge. So an advisory only
says where to look first; whether a job is stranded is read from the stream and its consumer.
"""

from __future__ import annotations

import contextlib
import time
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.dead_letters import Letter
from jetjobs.jetstream.messages.codec import decode, salvage, with_error
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence
from jetjobs.jetstream.pull.delivery import ACK
from jetjobs.jetstream.queues.inspection import given_up
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import AccessDenied, BrokerError, MalformedJob
from jetjobs.model.events import JobFinished, Observer
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo, refuse
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.validation import is_token
from jetjobs.worker.leader.duty_runner import Swept

MOST_HINTS = 1_000
_TIMEOUT_S = 15.0
_WHY = "the server has stopped delivering it: the worker crashed or lost its lease during every delivery"


class _Place(NamedTuple):
    queue: str
    lane: str
    sequence: int


class StrandedJobs:
    """Dead-letters what is found stranded at two looks: two leases apart, or one for what an advisory names."""

    def __init__(self, jetstream: JetStreamClient, worker: str, lease_s: float, observe: Observer) -> None:
        self._jetstream = jetstream
        self._worker = worker
        self._lease_s = lease_s
        self._observe = observe
        self._seen: dict[_Place, float] = {}
        """When each was first found."""
        self._hints: set[_Place] = set()

    def hint(self, data: bytes) -> bool:
        """Note the message that an advisory names. False when there is nothing to look at."""
        try:
            value = read_json(data)
            stream, lane, sequence = value["stream"], value["consumer"], value["stream_seq"]
        except (ValueError, KeyError, TypeError):
            return False
        queue = self._jetstream.names.queue_of(stream) if isinstance(stream, str) else None
        if lane not in n.PULLED or type(sequence) is not int or not is_token(queue):
            return False
        if len(self._hints) < MOST_HINTS:
            self._hints.add(_Place(queue, lane, sequence))
        return True

    async def check_hints(self) -> Swept:
        """Look at what advisories have named since."""
        buried = 0
        for queue, lane in {(place.queue, place.lane) for place in self._hints}:
            hinted = {place for place in self._hints if place[:2] == (queue, lane)}
            try:
                found = await self._look(queue, lane)
            except AccessDenied:
                found = set()  # not ours to look after
            ripe = self._ripe(hinted & found, self._lease_s)
            buried += await self._bury(ripe)
            self._hints -= (hinted - found) | set(ripe)
        return Swept(buried, self._lease_s if self._hints else None)

    async def sweep(self, queue: str) -> Swept:
        """Look at every lane of a queue."""
        buried, left = 0, False
        for lane in n.PULLED:
            found = await self._look(queue, lane)
            ripe = self._ripe(found, 2 * self._lease_s)
            buried += await self._bury(ripe)
            left = left or len(found) > len(ripe)
        return Swept(buried, 2 * self._lease_s if left else None)

    async def _look(self, queue: str, lane: str) -> set[_Place]:
        """What is stranded in a lane now."""
        sequences = await given_up(self._jetstream.connection, self._jetstream.names, queue, lane)
        now, found = time.monotonic(), {_Place(queue, lane, sequence) for sequence in sequences}
        kept = {place: at for place, at in self._seen.items() if place[:2] != (queue, lane) or place in found}
        self._seen = dict.fromkeys(found, now) | kept
        return found

    def _ripe(self, found: set[_Place], apart_s: float) -> list[_Place]:
        now = time.monotonic()
        return sorted(place for place in found if now - self._seen[place] >= apart_s)

    async def _bury(self, places: list[_Place]) -> int:
        for place in places:
            await self._bury_one(*place)
        return len(places)

    async def _bury_one(self, queue: str, lane: str, sequence: int) -> None:
        """The message becomes a dead letter, or is only removed if its job has moved on."""
        jetstream, stream = self._jetstream, self._jetstream.names.work_stream(queue)
        message = await at_sequence(jetstream.connection, stream, sequence)
        if message is None:
            return
        job, outcome = _read(queue, lane, message)
        if not await jetstream.places.has_moved_on(job):
            now = time.time()
            buried = with_error(job, outcome.error, self._worker, now)
            letter = Letter(buried, outcome, f"{message.subject} {sequence}", self._worker, now)
            await jetstream.dead.add(letter, _TIMEOUT_S, lambda: True)
            with contextlib.suppress(BrokerError):
                await jetstream.checkpoints.forget(job.id, job.run)
            finished = JobFinished(queue, job.task, job.id, job.attempt, "dead_lettered", 0.0, 0.0, outcome.reason)
            self._observe(finished._replace(error=outcome.error, delivery=0, sequence=sequence))
        # By an ack the consumer forgets it too; after a delete it would go on counting it as redelivered.
        await jetstream.connection.ask(api.ack(stream, lane, sequence), ACK)


def _read(queue: str, lane: str, message: StoredMessage) -> tuple[Job, DeadLettered]:
    try:
        job = decode(message)
    except MalformedJob as error:
        return salvage(message, queue, lane), refuse(error)
    return job, DeadLettered(DeadReason.CRASHED, ErrorInfo("Crashed", _WHY))
