"""Count what stands in a queue, by what the server knows already: some ten requests, however long the queue is."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.reads import StoredMessage, parse_time
from jetjobs.jetstream.results import read_record
from jetjobs.jetstream.scan import count_on, page, scan
from jetjobs.model import names as n
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.names import kv_stream, kv_subject
from jetjobs.model.queue_counts import QueueCounts

MOST_LATER = 10_000
"""Jobs for later that are read to tell retries from the others: only their headers say it."""
MOST_WORKERS = 10_000


class _Lane(NamedTuple):
    pending: int
    delivered: int
    oldest_s: float
    paused_until: datetime | None


async def count_queue(jetstream: JetStreamClient, queue: str, most_later: int = MOST_LATER) -> QueueCounts:
    """How the queue stands. TopologyMissing when it, or one of its lanes, is not there."""
    connection, names = jetstream.connection, jetstream.names
    stream, later = names.work_stream(queue), names.lane_filter(queue, n.LATER)
    info, dead, waiting, *lanes = await asyncio.gather(
        connection.api(f"STREAM.INFO.{stream}"),
        count_on(connection, names.dead_stream, names.dead(queue, "*", "*")),
        count_on(connection, stream, later),
        *(_lane(jetstream, queue, lane) for lane in n.PULLED),
    )
    retrying = await _retrying(jetstream, queue, most_later) if waiting else 0
    # A pause is of the lanes jobs are enqueued to: those on a detour may still pass.
    pauses = [lane.paused_until for lane, name in zip(lanes, n.PULLED, strict=True) if name in n.PRIORITIES]
    ends = [until for until in pauses if until is not None]
    return QueueCounts(
        queue,
        queued=sum(lane.pending for lane in lanes),
        running=sum(lane.delivered for lane in lanes),
        scheduled=max(0, waiting - retrying),
        retrying=retrying,
        dead=dead,
        oldest_s=max(lane.oldest_s for lane in lanes),
        paused_until=min(ends) if len(ends) == len(pauses) else None,
        bytes=int(info["state"]["bytes"]),
        limit_bytes=max(0, int(info["config"].get("max_bytes", 0))),
        exact=waiting <= most_later,
    )


async def count_workers(jetstream: JetStreamClient) -> Counter[str]:
    """How many live workers take jobs of each queue, by what they say of themselves."""
    bucket = jetstream.names.workers_bucket
    workers: Counter[str] = Counter()
    subject = kv_subject(bucket, ">")
    try:
        async for message in scan(jetstream.connection, kv_stream(bucket), subject, limit=MOST_WORKERS):
            queues = read_record(message.data).get("queues") if message.data else None
            if isinstance(queues, list | dict):
                workers.update({str(queue) for queue in queues})
    except TopologyMissing:
        return Counter()  # made by an earlier version: nobody is registered
    return workers


async def _lane(jetstream: JetStreamClient, queue: str, lane: str) -> _Lane:
    connection, names = jetstream.connection, jetstream.names
    stream = names.work_stream(queue)
    info = await connection.api(f"CONSUMER.INFO.{stream}.{lane}")
    now = parse_time(info["ts"]) if "ts" in info else datetime.now(UTC).timestamp()
    pending = int(info["num_pending"])
    oldest_s = 0.0
    if pending:
        following = int(info["delivered"]["stream_seq"]) + 1
        oldest = await page(connection, stream, names.lane_filter(queue, lane), following, 1)
        oldest_s = max(0.0, now - _due_at(oldest[0])) if oldest else 0.0
    return _Lane(pending, int(info["num_ack_pending"]), oldest_s, _paused_until(info, now))


async def _retrying(jetstream: JetStreamClient, queue: str, most: int) -> int:
    names = jetstream.names
    found = scan(jetstream.connection, names.work_stream(queue), names.lane_filter(queue, n.LATER), limit=most)
    return sum([message.headers.get(n.ATTEMPT, "1") not in ("0", "1") async for message in found])


def _paused_until(info: dict[str, Any], now: float) -> datetime | None:
    text = info["config"].get("pause_until")
    if not text or not info.get("paused", parse_time(text) > now):
        return None
    return datetime.fromtimestamp(parse_time(text), UTC)


def _due_at(message: StoredMessage) -> float:
    """Since when the job could run, as far as its headers can be read."""
    for name in (n.DUE_AT, n.ENQUEUED_AT):
        try:
            seconds = float(message.headers.get(name, ""))
        except ValueError:
            continue
        if 0.0 < seconds < 253402300800.0:
            return seconds
    return message.stored_at
