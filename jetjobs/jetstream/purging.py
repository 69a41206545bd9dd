"""Delete the jobs that wait in a queue, and no others: message by message, behind a pause of our own. ADR 15.

A purge by subject would take running jobs too, and one by wildcard can leave the lanes' counts wrong. While the
lanes are paused nothing is delivered: what stands above the last delivery of a lane waits, what stands below runs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import MESSAGE_DELETE_FAILED, MESSAGE_NOT_FOUND
from jetjobs.jetstream.pausing import pause_lanes, restore_pauses
from jetjobs.jetstream.queue_facts import LaneLook, look_at_lanes, now_of, state_of
from jetjobs.jetstream.scan import page
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError
from jetjobs.model.names import Names

_PAGE = 2_000
_AT_ONCE = 128
_HOLD_S = 60.0
"""How long the lanes stay paused if we die on the way; renewed while we do not."""
_GONE = frozenset({MESSAGE_NOT_FOUND, MESSAGE_DELETE_FAILED, 10043})


class Purged(NamedTuple):
    """How many jobs were deleted: from the lanes, and of those for later."""

    queued: int
    scheduled: int


class Purge:
    """One purge of one queue."""

    def __init__(
        self, connection: Connection, names: Names, queue: str, step: Callable[[int], None] = lambda count: None
    ) -> None:
        """`step` is told of every so many that were deleted."""
        self._connection = connection
        self._names = names
        self._queue = queue
        self._stream = names.work_stream(queue)
        self._step = step
        self._renew_at = 0.0

    async def run(self, *, scheduled: bool = False) -> Purged:
        """Delete what waits now. What comes while it works stays. QueueNotFound when there is no such queue."""
        before = await look_at_lanes(self._connection, self._names, self._queue)
        later = 0
        try:
            await self._hold()
            if scheduled:
                # First, so that what falls due meanwhile is found in its lane. No consumer reads these.
                subject = self._names.lane_filter(self._queue, n.LATER)
                answer = await self._connection.api(f"STREAM.PURGE.{self._stream}", {"filter": subject}, 60.0)
                later = int(answer["purged"])
            state = await state_of(self._connection, self._stream)
            first, last = int(state["first_seq"]), int(state["last_seq"])
            queued = 0
            for lane in await look_at_lanes(self._connection, self._names, self._queue):
                if lane.lane in n.PULLED:
                    queued += await self._empty(lane, max(first, lane.delivered + 1), last)
            return Purged(queued, later)
        finally:
            await asyncio.shield(restore_pauses(self._connection, self._names, self._queue, before, _HOLD_S))

    async def _hold(self) -> None:
        """Keep the lanes paused."""
        if time.monotonic() < self._renew_at:
            return
        lanes = await look_at_lanes(self._connection, self._names, self._queue)
        now = now_of(lanes)
        if any(lane.paused_until < now + _HOLD_S / 2 for lane in lanes if lane.lane in n.PULLED):
            await pause_lanes(self._connection, self._names, self._queue, now + _HOLD_S)
        self._renew_at = time.monotonic() + _HOLD_S / 4

    async def _empty(self, lane: LaneLook, start: int, last: int) -> int:
        subject = self._names.lane_filter(self._queue, lane.lane)
        deleted = 0
        while start <= last:
            await self._hold()
            found = await page(self._connection, self._stream, subject, start, _PAGE)
            sequences = [message.sequence for message in found if message.sequence <= last]
            if not sequences:
                break
            for begin in range(0, len(sequences), _AT_ONCE):
                gone = await asyncio.gather(*map(self._delete, sequences[begin : begin + _AT_ONCE]))
                deleted += sum(gone)
                self._step(sum(gone))
            start = sequences[-1] + 1
        return deleted

    async def _delete(self, sequence: int) -> bool:
        try:
            await self._connection.api(f"STREAM.MSG.DELETE.{self._stream}", {"seq": sequence, "no_erase": True})
        except BrokerError as error:
            if error.code not in _GONE:
                raise
            return False
        return True
