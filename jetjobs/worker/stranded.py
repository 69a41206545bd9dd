"""Jobs that stand in a lane and that no consumer will deliver again: what even lane `lost` has missed. ADR 6.

The server's word that it gave a message up is sent once and may get lost. Then nothing tells of the message but a
count: the lane holds more than its consumer has still to deliver and has delivered.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.codec import decode
from jetjobs.jetstream.reads import StoredMessage, last_on
from jetjobs.jetstream.scan import count_on, scan
from jetjobs.model import names as n
from jetjobs.model.errors import MalformedJob
from jetjobs.model.names import kv_stream, kv_subject
from jetjobs.worker.lost import LostJobs

MOST = 10_000
"""Delivered messages looked at in one lane at the most."""


class _Look(NamedTuple):
    at: float
    sequences: frozenset[int]


class StrandedSweep:
    """Looks at every lane of a queue. What it finds twice, two leases apart, is buried."""

    def __init__(self, jetstream: JetStreamClient, lost: LostJobs, lease_s: float) -> None:
        self._jetstream = jetstream
        self._lost = lost
        self._apart_s = 2 * lease_s
        self._looks: dict[tuple[str, str], _Look] = {}

    async def sweep(self, queue: str) -> int:
        """One look at a queue; how many jobs were buried."""
        buried = 0
        for lane in n.PULLED:
            buried += await self._lane(queue, lane)
        return buried

    async def _lane(self, queue: str, lane: str) -> int:
        place, now = (queue, lane), time.monotonic()
        missing = await self._missing(queue, lane)
        if missing <= 0:
            self._looks.pop(place, None)
            return 0
        delivered = await self._delivered(queue, lane)
        first = self._looks.setdefault(place, _Look(now, frozenset(delivered)))
        if now - first.at < self._apart_s:
            return 0
        del self._looks[place]
        still = [delivered[s] for s in sorted(first.sequences & delivered.keys())]
        idle = [message for message in still if not await self._runs(queue, message)]
        # The count and the list are told apart from one another: only if they agree is it sure which they are.
        if len(idle) != missing or await self._missing(queue, lane) != missing:
            return 0
        for message in idle:
            why = "the server does not deliver it any more, and nobody runs it"
            await self._lost.bury(queue, lane, message.sequence, why)
        return len(idle)

    async def _missing(self, queue: str, lane: str) -> int:
        """How many messages the lane holds that its consumer does not know of."""
        names, connection = self._jetstream.names, self._jetstream.connection
        stream = names.work_stream(queue)
        stored = await count_on(connection, stream, names.lane_filter(queue, lane))
        info = await connection.api(f"CONSUMER.INFO.{stream}.{lane}")
        return stored - int(info["num_pending"]) - int(info["num_ack_pending"])

    async def _delivered(self, queue: str, lane: str) -> dict[int, StoredMessage]:
        """Messages of the lane that were handed out at least once, by sequence."""
        names, connection = self._jetstream.names, self._jetstream.connection
        stream = names.work_stream(queue)
        info = await connection.api(f"CONSUMER.INFO.{stream}.{lane}")
        last = int(info["delivered"]["stream_seq"])
        found: dict[int, StoredMessage] = {}
        async for message in scan(connection, stream, names.lane_filter(queue, lane), limit=MOST):
            if message.sequence > last:
                break
            found[message.sequence] = message
        return found

    async def _runs(self, queue: str, message: StoredMessage) -> bool:
        """Whether somebody shows the job as running."""
        try:
            job = decode(message, await self._lost.created(queue))
        except MalformedJob:
            return False
        bucket = self._jetstream.names.running_bucket
        subject = kv_subject(bucket, job.id)
        return await last_on(self._jetstream.connection, kv_stream(bucket), subject) is not None
