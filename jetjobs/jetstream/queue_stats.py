"""How the jobs of a queue ended lately: from the done records and dead letters that are still there."""

from __future__ import annotations

from collections import Counter, defaultdict

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.queue_facts import state_of
from jetjobs.jetstream.reads import StoredMessage
from jetjobs.jetstream.results import read_record
from jetjobs.jetstream.scan import scan
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.names import Names, kv_stream, kv_subject
from jetjobs.model.queue import QueueStats, TaskStats, spread
from jetjobs.model.reading import seconds

MOST = 10_000
"""So many of the newest records and letters are looked at."""


async def stats_of(connection: Connection, names: Names, queue: str, since: float) -> QueueStats:
    """By task. `since` is by the server's clock."""
    bucket = names.done_bucket(queue)
    waits: dict[str, list[float]] = defaultdict(list)
    runs: dict[str, list[float]] = defaultdict(list)
    records, all_records = await _newest(connection, kv_stream(bucket), kv_subject(bucket, ">"), since)
    prefix = len(kv_subject(bucket, ""))
    for message in records:
        try:
            record = read_record(message.data)
            if record["state"] == "succeeded":
                task = message.subject[prefix:].partition(".")[0]
                enqueued, started, ended = (
                    seconds(record[f"{what}_at"]) for what in ("enqueued", "started", "ended")
                )
                waits[task].append(max(0.0, started - enqueued))
                runs[task].append(max(0.0, ended - started))
        except (ValueError, KeyError, TypeError):
            continue  # the mark of a deleted key, or written by another hand
    letters, all_letters = await _newest(connection, names.dead_stream, names.dead_of(queue), since)
    dead = Counter(message.subject.split(".")[3] for message in letters)
    tasks = tuple(
        TaskStats(task, len(runs[task]), dead[task], spread(waits[task]), spread(runs[task]))
        for task in sorted({*runs, *dead})
    )
    return QueueStats(queue, since, all_records and all_letters, tasks)


async def _newest(
    connection: Connection, stream: str, subject: str, since: float
) -> tuple[list[StoredMessage], bool]:
    """The newest messages, oldest first, that were stored after `since`, and whether these are all of them."""
    try:
        state = await state_of(connection, stream)
        start = max(int(state["first_seq"]), int(state["last_seq"]) - MOST + 1)
        found = [message async for message in scan(connection, stream, subject, start)]
    except TopologyMissing:
        return [], True
    kept = [message for message in found if message.stored_at >= since]
    return kept, start == int(state["first_seq"]) or len(kept) < len(found)
