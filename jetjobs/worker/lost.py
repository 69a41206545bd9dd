"""Jobs that the server has given up delivering: found by its advisories or by a sweep, and buried. ADR 6."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.codec import decode, salvage, with_error
from jetjobs.jetstream.dead_letters import Letter
from jetjobs.jetstream.delivery import ACK, Delivery
from jetjobs.jetstream.puller import LanePuller
from jetjobs.jetstream.reads import StoredMessage, at_sequence
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError, MalformedJob
from jetjobs.model.events import JobLost, Observer
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo, refuse
from jetjobs.model.reading import read_json

_TIMEOUT_S = 15.0
_log = logging.getLogger("jetjobs.worker")


class LostJobs:
    """Buries what stands in a work stream and is not delivered any more."""

    def __init__(self, jetstream: JetStreamClient, worker: str, observe: Observer) -> None:
        self._jetstream = jetstream
        self._worker = worker
        self._observe = observe

    async def bury(self, queue: str, lane: str, sequence: int, why: str) -> None:
        """The message at `sequence` ends as a dead letter, or just goes if its job has moved on already."""
        connection, stream = self._jetstream.connection, self._jetstream.names.work_stream(queue)
        message = await at_sequence(connection, stream, sequence)
        if message is None or not message.subject.startswith(self._jetstream.names.lane_filter(queue, lane)[:-1]):
            return
        job, outcome = self._read(queue, lane, message, await self.created(queue), why)
        if not await self._jetstream.places.has_moved_on(job):
            now = time.time()
            buried = with_error(job, outcome.error, self._worker, now)
            letter = Letter(buried, outcome, f"{message.subject} {sequence}", self._worker, now)
            await self._jetstream.dead.add(letter, _TIMEOUT_S, lambda: True)
            with contextlib.suppress(BrokerError):
                await self._jetstream.checkpoints.forget(job.id, job.run)
            self._observe(JobLost(queue, job.task, job.id))
        await self._remove(stream, lane, sequence)

    async def most_deliveries(self, queue: str, lane: str) -> int:
        """How often the server hands a message of the lane out before it gives it up."""
        stream = self._jetstream.names.work_stream(queue)
        info = await self._jetstream.connection.api(f"CONSUMER.INFO.{stream}.{lane}")
        return int(info["config"].get("max_deliver", 1))

    async def created(self, queue: str) -> str:
        """When the queue's stream was made: part of the id of a hand-made job."""
        info = await self._jetstream.connection.api(f"STREAM.INFO.{self._jetstream.names.work_stream(queue)}")
        return str(info["created"])

    def _read(
        self, queue: str, lane: str, message: StoredMessage, created: str, why: str
    ) -> tuple[Job, DeadLettered]:
        try:
            job = decode(message, created)
        except MalformedJob as error:
            return salvage(message, queue, lane, created), refuse(error)
        return job, DeadLettered(DeadReason.CRASHED, ErrorInfo("Crashed", why))

    async def _remove(self, stream: str, lane: str, sequence: int) -> None:
        """Ack it by its sequence: the consumer then forgets it too, which it would not if it were deleted."""
        connection = self._jetstream.connection
        await connection.ask(f"$JS.ACK.{stream}.{lane}.1.{sequence}.{sequence}.0.0", ACK)
        if await at_sequence(connection, stream, sequence) is not None:
            await connection.api(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})


class LostLane:
    """Reads the server's advisories, which the work stream itself stores, one at a time."""

    def __init__(
        self,
        jetstream: JetStreamClient,
        queue: str,
        lost: LostJobs,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        mend: Callable[[LanePuller], None],
    ) -> None:
        self._lost = lost
        self._spawn = spawn
        self._mend = mend
        stream = jetstream.names.work_stream(queue)
        self.puller = LanePuller(jetstream.connection, queue, n.LOST, stream, self._on_advisory, self._on_change)

    async def open(self) -> None:
        await self.puller.open()
        self._ask()

    def _ask(self) -> None:
        if not self.puller.owed and not self.puller.blocked:
            self.puller.ask(1, backlog=False)

    def _on_change(self, puller: LanePuller, problem: str | None) -> None:
        if problem and puller.blocked:
            self._mend(puller)
        else:
            self._ask()

    def _on_advisory(self, puller: LanePuller, delivery: Delivery) -> None:
        self._spawn(self._handle(delivery))

    async def _handle(self, delivery: Delivery) -> None:
        try:
            advisory = _read_advisory(delivery)
            if advisory is not None:
                lane, sequence, deliveries = advisory
                if deliveries < await self._lost.most_deliveries(self.puller.queue, lane):
                    deliveries = 0
            if advisory is not None and deliveries:
                why = f"{deliveries} deliveries ended without a word from the worker, and the server gave it up"
                await self._lost.bury(self.puller.queue, lane, sequence, why)
            delivery.ack()
        except BrokerError as error:
            # Not acked: the advisory comes again after a lease.
            extra = {"event": "job.lost_not_buried", "queue": self.puller.queue, "error": str(error)}
            _log.error("a job the server gave up could not be dead-lettered yet", extra=extra)
        self._ask()


def _read_advisory(delivery: Delivery) -> tuple[str, int, int] | None:
    """Lane, sequence and deliveries; None for what is no advisory, for anybody may publish there."""
    try:
        value = read_json(delivery.data)
        lane, sequence, deliveries = value["consumer"], value["stream_seq"], value.get("deliveries", 0)
    except (ValueError, KeyError, TypeError):
        return None
    fits = lane in n.PULLED and type(sequence) is int and type(deliveries) is int and 1 <= sequence < 2**63
    return (lane, sequence, deliveries) if fits else None
