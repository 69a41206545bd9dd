"""What the server knows of a queue, read without touching it: lanes, jobs for later, the oldest, the dead.

A million queued jobs must not make a look dear. What consumers and streams count anyway is asked for; a count by
subject walks every matching subject on the server, and is made only where few can match or nothing else tells.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import STREAM_NOT_FOUND
from jetjobs.jetstream.reads import StoredMessage, next_on, parse_time
from jetjobs.jetstream.scan import count_on, page
from jetjobs.model import names as n
from jetjobs.model.errors import QueueNotFound, TopologyMissing
from jetjobs.model.names import Names


class LaneLook(NamedTuple):
    """The consumer of one lane at one moment, by the server's clock."""

    lane: str
    at: float
    pending: int
    running: int
    delivered: int
    """Stream sequence of the last job it has delivered for the first time."""
    deliveries: int
    waiting_pulls: int
    paused_until: float

    @property
    def came(self) -> int:
        """Rises with every job that comes into the lane."""
        return self.pending + self.deliveries

    @property
    def went(self) -> int:
        """Rises with every job that leaves it. A delivery that is made again counts too; that is rare."""
        return self.deliveries - self.running


Fronts = dict[tuple[str, str], tuple[int, int]]
"""By queue and lane: the sequence of the job in front, and how far the lane had been delivered then."""


class Backlog(NamedTuple):
    """Jobs for later, and how many of them are at least to be tried again."""

    later: int
    retrying: int
    exact: bool


async def look_at_lanes(connection: Connection, names: Names, queue: str) -> list[LaneLook]:
    """Every lane with a consumer, `lost` included. QueueNotFound when there is no such queue."""
    found = await asyncio.gather(*(look_at_lane(connection, names, queue, lane) for lane in (*n.PULLED, n.LOST)))
    return [look for look in found if look is not None]


def now_of(lanes: list[LaneLook]) -> float:
    """The server's time at the look; our own where there is no lane that could tell."""
    return max((lane.at for lane in lanes), default=time.time())


async def look_at_lane(connection: Connection, names: Names, queue: str, lane: str) -> LaneLook | None:
    """None for a lane that is not there: others may be about to make it again."""
    try:
        info = await connection.api(f"CONSUMER.INFO.{names.work_stream(queue)}.{lane}")
    except TopologyMissing as error:
        if error.code == STREAM_NOT_FOUND:
            raise QueueNotFound(f"there is no queue {queue!r}", hint="jetjobs queues list") from error
        return None
    return LaneLook(
        lane,
        parse_time(info["ts"]),
        int(info["num_pending"]),
        int(info["num_ack_pending"]),
        int(info["delivered"]["stream_seq"]),
        int(info["delivered"]["consumer_seq"]),
        int(info["num_waiting"]),
        parse_time(info["config"]["pause_until"]) if info.get("paused") else 0.0,
    )


async def state_of(connection: Connection, stream: str) -> dict[str, Any]:
    """The state of a stream as it counts it itself."""
    state: dict[str, Any] = (await connection.api(f"STREAM.INFO.{stream}"))["state"]
    return state


async def look_at_later(
    connection: Connection, names: Names, queue: str, lanes: list[LaneLook], most: int
) -> Backlog:
    """How many wait for their time, and how many of them for another attempt: only a header tells that.

    Up to `most` all are read. Beyond that what is in no lane is for later, and retries are looked for among
    half as many newest messages only, where most of them stand: they were published when an attempt failed.
    """
    stream, subject = names.work_stream(queue), names.lane_filter(queue, n.LATER)
    state, left = await _in_no_lane(connection, names, queue, lanes)
    if left <= most:
        found = await page(connection, stream, subject, 1, most)
        if not found or not found[-1].following:
            return Backlog(len(found), _retrying(found), exact=True)
        left = max(left, len(found) + found[-1].following)
    start = max(int(state["first_seq"]), int(state["last_seq"]) - most // 2)
    newest = await page(connection, stream, subject, start, most // 2)
    return Backlog(left, _retrying(newest), exact=False)


async def count_later(connection: Connection, names: Names, queue: str, lanes: list[LaneLook]) -> int:
    """About how many wait for their time: what is in the stream and in no lane."""
    return (await _in_no_lane(connection, names, queue, lanes))[1]


async def _in_no_lane(
    connection: Connection, names: Names, queue: str, lanes: list[LaneLook]
) -> tuple[dict[str, Any], int]:
    stream = names.work_stream(queue)
    state, others = await asyncio.gather(
        state_of(connection, stream), count_on(connection, stream, names.lane_filter(queue, n.TICK))
    )
    return state, max(0, int(state["messages"]) - others - sum(lane.pending + lane.running for lane in lanes))


def _retrying(found: list[StoredMessage]) -> int:
    return sum(message.headers.get(n.ATTEMPT, "1") not in ("0", "1") for message in found)


async def oldest_due(
    connection: Connection, names: Names, queue: str, lanes: list[LaneLook], fronts: Fronts | None = None
) -> float | None:
    """Since when the job that has waited longest in front of its lane has been due; None when none waits.

    `fronts` is for who looks again and again: what it keeps spares the server the way to where it was before.
    """
    stream = names.work_stream(queue)
    waiting = [lane for lane in lanes if lane.pending and lane.lane != n.LOST]
    # Never from the stream's first message, which is the pin: from there the server walks every subject. ADR 1.
    first = int((await state_of(connection, stream))["first_seq"]) + 1 if waiting else 0
    kept = {} if fronts is None else fronts
    found = await asyncio.gather(*(_front(connection, names, queue, lane, first, kept) for lane in waiting))
    return min((_due(message) for message in found if message is not None), default=None)


async def _front(
    connection: Connection, names: Names, queue: str, lane: LaneLook, first: int, fronts: Fronts
) -> StoredMessage | None:
    """The first job that waits in a lane. Of one seldom used it may stand behind all of the others."""
    stream, subject = names.work_stream(queue), names.lane_filter(queue, lane.lane)
    start = max(first, lane.delivered + 1)
    known, delivered = fronts.pop((queue, lane.lane), (0, 0))
    found = None
    if known > start and delivered <= lane.delivered:  # else the lane was made anew
        found = await next_on(connection, stream, subject, known)
    if found is None:
        found = await next_on(connection, stream, subject, start)
    if found is not None:
        fronts[queue, lane.lane] = found.sequence, lane.delivered
    return found


def _due(message: StoredMessage) -> float:
    for header in (n.DUE_AT, n.ENQUEUED_AT):
        try:
            if (moment := float(message.headers.get(header, "0"))) > 0:
                return moment
        except ValueError:
            continue
    return message.stored_at


async def count_dead(connection: Connection, names: Names, queue: str) -> int:
    """The queue's dead letters."""
    return await count_on(connection, names.dead_stream, names.dead_of(queue))
