"""Gates: steps of a flow that wait for others. Read them, fire them and remove them, each exactly once.

A gate is a message schedule due at the deadline of its flow. A message with `Nats-Scheduler` and
`Nats-Schedule-Next: purge` stores the job in its lane and removes the gate in one step. It expects the sequence of
the gate, so that of several processes that fire a gate one succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.codec import decode_waiting
from jetjobs.jetstream.messages.get import StoredMessage, last_on, look_twice
from jetjobs.jetstream.messages.payloads import Payloads, labels_of
from jetjobs.jetstream.messages.publisher import Publisher, WrongLastSequence
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import BrokerUnavailable, MalformedJob
from jetjobs.model.flow.steps import FlowHeaders, GateRef
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.flow_names import FlowNames

CLOSE_S = 2.0
"""This close to the deadline the server may be firing the gate, which an expected sequence does not prevent."""


class Gate(NamedTuple):
    """A gate as it is stored."""

    message: StoredMessage
    job: Job
    flow: FlowHeaders
    due_at: float


class Delivered(NamedTuple):
    """The message that this process holds: what it reads of that queue must be newer."""

    queue: str
    sequence: int


class Gates:
    """The gates of one namespace."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        payloads: Payloads,
        names: FlowNames,
        clock: ServerClock,
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._payloads = payloads
        self._names = names
        self._clock = clock

    async def read(self, ref: GateRef, fkey: str, held: Delivered) -> Gate | None:
        """The gate, read from the leader of its stream; None if it was fired or removed. MalformedJob if it cannot
        be read."""
        stream = self._names.names.work_stream(ref.queue)
        subject = self._names.gate(ref.queue, ref.task, fkey, ref.uid)
        while (message := await last_on(self._connection, stream, subject)) is None:
            if await self._is_gone(stream, subject, held.sequence if held.queue == ref.queue else 0):
                return None
        flow = FlowHeaders.read(message.headers)
        due_at = due_time(message.headers)
        if flow is None or due_at is None:
            raise MalformedJob(f"gate {ref} is not a step of a flow")
        return Gate(message, decode_waiting(message), flow, due_at)

    async def _is_gone(self, stream: str, subject: str, known: int) -> bool:
        """Whether the subject has no message, by a leader that knows sequence `known`. Of a queue of which nothing
        is known, only two looks show it."""

        async def look() -> bool:
            info = await self._connection.api(api.stream_info(stream), {"subjects_filter": subject})
            if int(info["state"]["last_seq"]) < known:
                raise BrokerUnavailable(f"the leader of {stream} does not know its last messages yet")
            return bool(info["state"].get("subjects"))

        return not (await look() if known else await look_twice(look))

    async def is_left_to_the_clock(self, gate: Gate) -> bool:
        """Whether the server may be firing the gate: its deadline is near or has passed."""
        return gate.due_at - await self._clock.seconds() < CLOSE_S

    async def fire(self, gate: Gate, job: Job, owned: Callable[[], bool]) -> bool:
        """Move the gate to its lane as `job`. False if another process has fired or removed it."""
        job = job._replace(hop=job.hop + 1, due_at=await self._clock.seconds())
        message = self._publisher.outgoing(job)
        if not self._publisher.fits(message, self._connection.inline_limit):
            # Not the name of the gate's own body: the gate may stay.
            job = job._replace(body=b"", payload=n.body_object(job.id, job.run, "bound"))
            await self._payloads.put(job.payload, message.body, labels_of(job), owned=owned)
            message = self._publisher.outgoing(job)
        assert isinstance(message.headers, dict)
        headers = {
            **message.headers,
            h.SCHEDULER: gate.message.subject,
            h.SCHEDULE_NEXT: "purge",
            h.EXPECTED_LAST_SUBJECT_SEQ: str(gate.message.sequence),
            h.EXPECTED_LAST_SUBJECT: gate.message.subject,
        }
        stream = self._names.names.work_stream(job.queue)
        try:
            return await self._publisher.store(stream, message._replace(headers=headers), owned=owned)
        except WrongLastSequence:
            return False
