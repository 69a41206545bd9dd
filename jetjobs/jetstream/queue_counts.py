"""A queue and its workers as numbers, for the metrics: some ten requests, however long the queue is."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.queue_facts import (
    Fronts,
    LaneLook,
    count_dead,
    look_at_lanes,
    look_at_later,
    now_of,
    oldest_due,
)
from jetjobs.jetstream.registry import workers_on
from jetjobs.model import names as n
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.queue_counts import QueueCounts

MOST_LATER = 10_000
"""Jobs for later that are read to tell retries from the others: only their headers say it."""


async def count_queue(
    jetstream: JetStreamClient, queue: str, most_later: int = MOST_LATER, fronts: Fronts | None = None
) -> QueueCounts:
    """How the queue stands. TopologyMissing, or QueueNotFound, when it or one of its lanes is not there."""
    connection, names = jetstream.connection, jetstream.names
    lanes = await look_at_lanes(connection, names, queue)
    if missing := sorted(set(n.PULLED) - {lane.lane for lane in lanes}):
        # What stands in it would be taken for jobs for later.
        raise TopologyMissing(f"queue {queue!r} has no lane {', '.join(missing)}", hint="jetjobs setup apply")
    info, backlog, due, dead = await asyncio.gather(
        connection.api(f"STREAM.INFO.{names.work_stream(queue)}"),
        look_at_later(connection, names, queue, lanes, most_later),
        oldest_due(connection, names, queue, lanes, fronts),
        count_dead(connection, names, queue),
    )
    pulled = [lane for lane in lanes if lane.lane in n.PULLED]
    return QueueCounts(
        queue,
        queued=sum(lane.pending for lane in pulled),
        running=sum(lane.running for lane in pulled),
        scheduled=max(0, backlog.later - backlog.retrying),
        retrying=backlog.retrying,
        dead=dead,
        oldest_s=max(0.0, now_of(lanes) - due) if due is not None else 0.0,
        paused_until=_paused_until(lanes),
        bytes=int(info["state"]["bytes"]),
        limit_bytes=max(0, int(info["config"].get("max_bytes", 0))),
        exact=backlog.exact,
    )


async def count_workers(jetstream: JetStreamClient) -> Counter[str]:
    """How many live workers take jobs of each queue, by what they say of themselves."""
    workers = await workers_on(jetstream.connection, jetstream.names)
    return Counter(queue for worker in workers if worker.takes_jobs for queue in worker.queues)


def _paused_until(lanes: list[LaneLook]) -> datetime | None:
    """When the first of the lanes that jobs are enqueued to goes on; None unless all of them are paused."""
    ends = [lane.paused_until for lane in lanes if lane.lane in n.PRIORITIES]
    return datetime.fromtimestamp(min(ends), UTC) if all(ends) else None
