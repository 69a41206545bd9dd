"""Find jobs that the server has stopped delivering, and dead-letter them. ADR 28.

The server reports such a job once, in an advisory on core NATS that can be missed or forged. An advisory therefore
only says where to look first. Whether a job is stranded is read from the stream and its consumer.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.flows.gates import Delivered
from jetjobs.jetstream.jobs.dead_letters import NewDeadLetter
from jetjobs.jetstream.messages.codec import decode, decode_malformed, with_error
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence
from jetjobs.jetstream.pull.delivery import ACK
from jetjobs.jetstream.queues.inspection import stranded_sequences
from jetjobs.jetstream.transport import api
from jetjobs.model.decision import refuse
from jetjobs.model.errors import AccessDenied, BrokerError, BrokerUnavailable, MalformedJob
from jetjobs.model.events import JobFinished, Observer
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.validation import is_token
from jetjobs.worker.leader.duty_runner import DutyResult

MAX_HINTS = 1_000
_TIMEOUT_S = 15.0
_CAUSE = "the server has stopped delivering the job: the worker crashed or lost its lease during every delivery"


class _Place(NamedTuple):
    queue: str
    lane: str
    sequence: int


class StrandedJobs:
    """Dead-letters jobs that two checks find stranded.

    The checks are two leases apart, or one lease for a message that an advisory named.
    """

    def __init__(self, jetstream: JetStreamClient, worker: str, lease_s: float, observe: Observer) -> None:
        self._jetstream = jetstream
        self._worker = worker
        self._lease_s = lease_s
        self._observe = observe
        self._seen: dict[_Place, float] = {}
        """When each stranded message was first found."""
        self._hints: set[_Place] = set()
        self._reconnects = 0
        """Of the connection when stranded messages were last searched for."""

    def add_hint(self, data: bytes) -> bool:
        """Remember the message that an advisory names. False if it names none of ours."""
        try:
            value = read_json(data)
            stream, lane, sequence = value["stream"], value["consumer"], value["stream_seq"]
        except (ValueError, KeyError, TypeError):
            return False
        queue = self._jetstream.names.queue_of(stream) if isinstance(stream, str) else None
        if lane not in n.PULLED or type(sequence) is not int or not is_token(queue):
            return False
        if len(self._hints) < MAX_HINTS:
            self._hints.add(_Place(queue, lane, sequence))
        return True

    async def check_hints(self) -> DutyResult:
        """Check the messages that advisories have named."""
        done = 0
        for queue, lane in {(place.queue, place.lane) for place in self._hints}:
            hinted = {place for place in self._hints if place[:2] == (queue, lane)}
            try:
                found = await self._find(queue, lane)
            except AccessDenied:
                found = set()  # this user has no permissions for the queue
            confirmed = self._confirmed(hinted & found, self._lease_s)
            done += await self._dead_letter_all(confirmed)
            self._hints -= (hinted - found) | set(confirmed)
        return DutyResult(done, self._lease_s if self._hints else None)

    async def sweep(self, queue: str) -> DutyResult:
        """Check every lane of a queue."""
        done, left = 0, False
        for lane in n.PULLED:
            found = await self._find(queue, lane)
            confirmed = self._confirmed(found, 2 * self._lease_s)
            done += await self._dead_letter_all(confirmed)
            left = left or len(found) > len(confirmed)
        return DutyResult(done, 2 * self._lease_s if left else None)

    async def _find(self, queue: str, lane: str) -> set[_Place]:
        """The messages that are stranded in a lane now."""
        self._reconnects = self._jetstream.connection.reconnects
        sequences = await stranded_sequences(self._jetstream.connection, self._jetstream.names, queue, lane)
        now, found = time.monotonic(), {_Place(queue, lane, sequence) for sequence in sequences}
        kept = {place: at for place, at in self._seen.items() if place[:2] != (queue, lane) or place in found}
        self._seen = dict.fromkeys(found, now) | kept
        return found

    def _confirmed(self, found: set[_Place], apart_s: float) -> list[_Place]:
        now = time.monotonic()
        return sorted(place for place in found if now - self._seen[place] >= apart_s)

    async def _dead_letter_all(self, places: list[_Place]) -> int:
        for place in places:
            await self._dead_letter(*place)
        return len(places)

    async def _dead_letter(self, queue: str, lane: str, sequence: int) -> None:
        """Turn the message into a dead letter, or only remove it if its job has moved on."""
        jetstream, stream = self._jetstream, self._jetstream.names.work_stream(queue)
        message = await at_sequence(jetstream.connection, stream, sequence)
        self._check_connection()
        if message is None:
            return
        job, outcome = _read(queue, lane, message)
        settled = await jetstream.locator.was_settled(job)
        if not settled:
            now = jetstream.server_clock.time()
            failed = with_error(job, outcome.error, self._worker, now)
            letter = NewDeadLetter(failed, outcome, f"{message.subject} {sequence}", self._worker, now)
            await jetstream.dead.add(letter, _TIMEOUT_S, lambda: True)
        if (end := await jetstream.locator.end_of(job)) is not None:
            await jetstream.follow_up(job, end, Delivered(queue, sequence), _TIMEOUT_S)
        if not settled:
            with contextlib.suppress(BrokerError):
                await jetstream.checkpoints.forget(job.id, job.run)
            finished = JobFinished(queue, job.task, job.id, job.attempt, "dead_lettered", 0.0, 0.0, outcome.reason)
            self._observe(replace(finished, error=outcome.error, delivery=0, sequence=sequence))
        self._check_connection()
        # An ack makes the consumer forget it too; after a delete it would still count it as redelivered.
        await jetstream.connection.ask(api.ack(stream, lane, sequence), ACK)

    def _check_connection(self) -> None:
        """BrokerUnavailable after a reconnect: the server may have come back with an older store, in which the
        sequence is another job. ADR 41."""
        if self._jetstream.connection.reconnects != self._reconnects:
            raise BrokerUnavailable("the connection was lost while stranded jobs were dead-lettered")


def _read(queue: str, lane: str, message: StoredMessage) -> tuple[Job, DeadLettered]:
    try:
        job = decode(message)
    except MalformedJob as error:
        return decode_malformed(message, queue, lane), refuse(error)
    return job, DeadLettered(DeadReason.CRASHED, ErrorInfo("Crashed", _CAUSE))
