"""Delete the jobs that wait in a queue, and no others: each lane is pulled like a worker does, and acked. ADR 31.

What is delivered to a purge runs nowhere else: it is new, or its lease has expired. A lane that hands out nothing,
because it is paused or its workers hold as many jobs as they may, has its messages above the last delivery
deleted by their sequence.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import NamedTuple

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
from jetjobs.model.public import public
from jetjobs.model.views.queue_info import LaneState
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import Names

_BATCH = 500
_QUIET_S = 1.0
"""Nothing has come for this long: a pull request without an answer is given up."""
_PATIENCE_S = 15.0


@public("jetjobs.admin")
class Purged(NamedTuple):
    """How many jobs were deleted: from the lanes, and of those for later."""

    queued: int
    scheduled: int


class _Pulled(NamedTuple):
    """What one request has brought."""

    taken: int
    expired: int
    """How many of them a worker had before, and did not settle within its lease."""
    newer: list[Delivery]
    empty: bool
    """The server said that the lane has no more."""


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
        """`step` is called with every so many that were deleted."""
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._queue = queue
        self._stream = names.work_stream(queue)
        self._step = step
        self._last = 0
        """The last sequence at the start. What is newer stays."""

    async def run(self, *, scheduled: bool = False) -> Purged:
        """Delete what waits now. QueueNotFound when there is no such queue."""
        await lane_states(self._connection, self._names, self._queue)
        later = 0
        # First, so that what falls due in the meantime is found in its lane. No consumer reads these.
        for lane in n.WAITING if scheduled else ():
            query = {"filter": self._names.lane_filter(self._queue, lane)}
            answer = await self._connection.api(api.stream_purge(self._stream), query, 60.0)
            later += int(answer["purged"])
        self._last = int((await stream_state(self._connection, self._stream))["last_seq"])
        # The lanes of returned jobs come first: what is newer is put there.
        queued = sum([await self._empty(lane) for lane in reversed(n.PULLED)])
        return Purged(queued, later)

    async def _empty(self, lane: str) -> int:
        deleted, left, heard_at = 0, -1, time.monotonic()
        while (look := await lane_state(self._connection, self._names, self._queue, lane)) is not None:
            left = look.queued if left < 0 else min(look.queued, left)
            left = left if look.delivered < self._last else 0
            if not left and (look.paused_until or not look.running):
                break
            if left and (look.paused_until or look.full):
                count = await self._delete_page(look)
                pulled = _Pulled(count, 0, [], not count)
            else:
                # Expired deliveries come first, and are no part of `left`. How many there are, nobody can tell.
                pulled = await self._pull(lane, min(left or 1, _BATCH))
            deleted += pulled.taken
            left -= pulled.taken - pulled.expired
            self._step(pulled.taken)
            for delivery in pulled.newer:
                await self._give_back(delivery)
            if pulled.empty or pulled.newer or (look.full and not pulled.taken):
                break
            if pulled.taken:
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + _PATIENCE_S:
                raise BrokerUnavailable(
                    f"lane {lane} of queue {self._queue} does not answer",
                    hint="a purge pulls and acks: this user may need the rights to do so",
                )
        return deleted

    async def _pull(self, lane: str, batch: int) -> _Pulled:
        """Ask for a batch, and ack what was there at the start as it comes. The last ack is confirmed, and with it
        those before: the server handles them in their order."""
        taken, expired, newer, status = 0, 0, list[Delivery](), ""
        latest: Delivery | None = None
        news = asyncio.Event()

        def on_message(subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
            nonlocal taken, expired, latest, status
            news.set()
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
                await nc.unlisten(sid)  # waits for what is on its way
        if latest is not None and not await latest.ack_confirmed():
            raise BrokerUnavailable(f"the acks of lane {lane} of queue {self._queue} were not confirmed")
        if status and not status.startswith(("404", "408")):
            raise BrokerUnavailable(f"pull from lane {lane} of queue {self._queue}: {status}")
        return _Pulled(taken, expired, newer, bool(status))

    async def _give_back(self, delivery: Delivery) -> None:
        """A move to the lane of returned jobs: a NAK would count as a crash. What cannot be moved is left to its
        lease, after which a worker gets it."""
        try:
            job = decode(delivery)
        except MalformedJob:
            return
        publisher, crashes = self._publisher, job.crashes + delivery.delivered - 1
        message = publisher.outgoing(job._replace(hop=job.hop + 1, crashes=crashes), lane=n.RETURNED)
        if message.size <= self._connection.max_payload and await publisher.store(self._stream, message):
            delivery.ack()

    async def _delete_page(self, lane: LaneState) -> int:
        subject = self._names.lane_filter(self._queue, lane.lane)
        found = await page(self._connection, self._stream, subject, lane.delivered + 1, _BATCH)
        waiting = [message.sequence for message in found if message.sequence <= self._last]
        delete = (delete_message(self._connection, self._stream, sequence, erase=False) for sequence in waiting)
        return sum(await asyncio.gather(*delete))
