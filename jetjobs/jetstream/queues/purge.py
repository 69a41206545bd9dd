"""Delete the jobs that wait in a queue, and no others: pull each lane as a worker does, and ack the jobs. ADR 31.

A job that is delivered to a purge runs nowhere else: it is new, or its lease has expired. A lane that delivers
nothing, because it is paused or its workers have the maximum of running jobs, is purged by deleting the messages
after its last delivery by their sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.messages.codec import decode
from jetjobs.jetstream.messages.get import delete_message
from jetjobs.jetstream.messages.publisher import Publisher
from jetjobs.jetstream.messages.scan import page
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.queues.queue_state import lane_state, lane_states, stream_state
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.jetstream.transport.nats_client import read_status
from jetjobs.model.errors import BrokerUnavailable, MalformedJob
from jetjobs.model.public import Record, public
from jetjobs.model.views.queue_info import LaneState
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import Names

_BATCH = 500
_QUIET_S = 1.0
"""A pull request without an answer ends after this."""
_PATIENCE_S = 15.0


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class Purged(Record):
    """How many queued and scheduled jobs were deleted."""

    queued: int
    scheduled: int

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the keys of the command line."""
        return {"purged": self.queued, "purged_scheduled": self.scheduled}


class _Pulled(NamedTuple):
    """The result of one pull request."""

    taken: int
    expired: int
    """How many of them a worker had before and did not settle within its lease."""
    newer: list[Delivery]
    empty: bool
    """The server reported that the lane has no more."""


class Purge:
    """One purge of one queue."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        names: Names,
        queue: str,
        step: Callable[[int], None] = lambda count: None,
    ) -> None:
        """`step` is called with the number of jobs deleted since its last call."""
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._queue = queue
        self._stream = names.work_stream(queue)
        self._step = step
        self._last = 0
        """The last sequence at the start. Newer jobs are kept."""
        self._reconnects = connection.reconnects

    async def run(self, *, scheduled: bool = False) -> Purged:
        """Delete the jobs that wait now. QueueNotFound when the queue does not exist."""
        await lane_states(self._connection, self._names, self._queue)
        later = 0
        # These lanes first, so that a job that becomes due in the meantime is found in its lane.
        # Gates stay: without them the flows of this and of other queues would never end.
        for lane in (n.LATER, n.RETRY) if scheduled else ():
            query = {"filter": self._names.lane_filter(self._queue, lane)}
            answer = await self._connection.api(api.stream_purge(self._stream), query, 60.0)
            later += int(answer["purged"])
        self._last = int((await stream_state(self._connection, self._stream))["last_seq"])
        # The lane of returned jobs first: newer jobs are returned to it.
        queued = sum([await self._empty(lane) for lane in reversed(n.PULLED)])
        return Purged(queued, later)

    async def _empty(self, lane: str) -> int:
        deleted, left, progress_at = 0, -1, time.monotonic()
        while (state := await lane_state(self._connection, self._names, self._queue, lane)) is not None:
            self._check_connection()
            left = state.queued if left < 0 else min(state.queued, left)
            left = left if state.delivered < self._last else 0
            if not left and (state.paused_until or not state.running):
                break
            if left and (state.paused_until or state.full):
                count = await self._delete_page(state)
                pulled = _Pulled(count, 0, [], not count)
            else:
                # Expired deliveries come first and are not counted in `left`. Their number is unknown.
                pulled = await self._pull(lane, min(left or 1, _BATCH))
            deleted += pulled.taken
            left -= pulled.taken - pulled.expired
            self._step(pulled.taken)
            for delivery in pulled.newer:
                await self._return_job(delivery)
            if pulled.empty or pulled.newer or (state.full and not pulled.taken):
                break
            if pulled.taken:
                progress_at = time.monotonic()
            elif time.monotonic() > progress_at + _PATIENCE_S:
                raise BrokerUnavailable(
                    f"lane {lane} of queue {self._queue} does not answer",
                    hint="a purge pulls and acks; this user may lack the permissions",
                )
        return deleted

    async def _pull(self, lane: str, batch: int) -> _Pulled:
        """Pull a batch and ack the jobs that were there at the start. The confirmation of the last ack covers all,
        because the server handles them in order."""
        taken, expired, newer, status = 0, 0, list[Delivery](), ""
        latest: Delivery | None = None
        news = asyncio.Event()

        def on_message(subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
            nonlocal taken, expired, latest, status
            news.set()
            if self._connection.reconnects != self._reconnects:
                return
            if not reply.startswith(api.ACK_PREFIX):
                status = " ".join(read_status(headers)) if headers is not None else "no headers"
                return
            delivery = Delivery(self._connection, subject, reply, data, headers)
            if delivery.sequence > self._last:
                newer.append(delivery)
                return
            if latest is not None:
                latest.ack()
            latest = delivery
            taken += 1
            expired += delivery.delivered > 1

        nc = self._connection.nc
        inbox = nc.new_inbox()
        try:
            sid = await nc.listen(inbox, on_message)
        except nats.errors.Error as error:
            raise from_exception(error, f"purge lane {lane}") from error
        try:
            request = b'{"batch":%d,"no_wait":true}' % batch
            self._connection.post(api.next_messages(self._stream, lane), request, inbox)
            with contextlib.suppress(TimeoutError):
                while not status and taken + len(newer) < batch:
                    async with asyncio.timeout(_QUIET_S):
                        await news.wait()
                    news.clear()
        finally:
            with contextlib.suppress(nats.errors.Error, TimeoutError):
                await nc.unlisten(sid)  # waits for deliveries on their way
        self._check_connection()
        if latest is not None and not await latest.ack_confirmed():
            raise BrokerUnavailable(f"the acks of lane {lane} of queue {self._queue} were not confirmed")
        if status and not status.startswith(("404", "408")):
            raise BrokerUnavailable(f"pull from lane {lane} of queue {self._queue}: {status}")
        return _Pulled(taken, expired, newer, bool(status))

    async def _return_job(self, delivery: Delivery) -> None:
        """Move the job to the lane of returned jobs: a NAK would count as a crash. A job that cannot be moved is
        delivered to a worker when its lease expires."""
        try:
            job = decode(delivery)
        except MalformedJob:
            return
        publisher, crashes = self._publisher, job.crashes + delivery.delivered - 1
        message = publisher.outgoing(job._replace(hop=job.hop + 1, crashes=crashes), lane=n.RETURNED)
        if message.size <= self._connection.max_payload and await publisher.store(self._stream, message):
            self._check_connection()
            delivery.ack()

    def _check_connection(self) -> None:
        """BrokerUnavailable after a reconnect: the server may have come back with an older store, in which these
        sequences are other jobs. ADR 41."""
        if self._connection.reconnects != self._reconnects:
            raise BrokerUnavailable(
                f"the connection was lost during the purge of queue {self._queue}", hint="purge it again"
            )

    async def _delete_page(self, lane: LaneState) -> int:
        subject = self._names.lane_filter(self._queue, lane.lane)
        found = await page(self._connection, self._stream, subject, lane.delivered + 1, _BATCH)
        waiting = [message.sequence for message in found if message.sequence <= self._last]
        delete = (delete_message(self._connection, self._stream, sequence, erase=False) for sequence in waiting)
        return sum(await asyncio.gather(*delete))
