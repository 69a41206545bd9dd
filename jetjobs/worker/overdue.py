"""Jobs for later that the clock has passed by: published again, so that the server fires them.

A schedule that falls due while JetStream storage is full is not fired, and stays so until the server restarts.
"""

from __future__ import annotations

import asyncio
from datetime import datetime

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.publisher import Outgoing, Taken
from jetjobs.jetstream.reads import StoredMessage, parse_time
from jetjobs.jetstream.scan import PAGE, scan
from jetjobs.model import names as n
from jetjobs.worker.duties import Swept

LATE_S = 30.0
"""So late that the clock cannot be about to fire it."""
SLOW_S = 2.0
"""So late the clock should not be, though it may yet fire it."""
_REST_S = 0.02
"""After each page: a million waiting jobs are read without haste."""


async def sweep_overdue(jetstream: JetStreamClient, queue: str, late_s: float = LATE_S) -> Swept:
    """Publish again what has been due for `late_s`. What is late, but not so late, is for another look."""
    names = jetstream.names
    stream = names.work_stream(queue)
    info = await jetstream.connection.api(f"STREAM.INFO.{stream}")
    now, last = parse_time(info["ts"]), int(info["state"]["last_seq"])
    mended = seen = 0
    again_in_s: float | None = None
    async for message in scan(jetstream.connection, stream, names.lane_filter(queue, n.LATER)):
        if message.sequence > last:
            break  # came after we began, perhaps from us
        due_at = due_time(message)
        if due_at is not None and now - due_at > late_s:
            mended += await _again(jetstream, stream, message)
        elif due_at is not None and now - due_at > SLOW_S:
            again_in_s = min(again_in_s or late_s, late_s)
        seen += 1
        if seen % PAGE == 0:
            await asyncio.sleep(_REST_S)
    return Swept(mended, again_in_s)


def due_time(message: StoredMessage) -> float | None:
    """When the server is to fire it; None for what has no single time."""
    kind, _, text = message.headers.get(n.SCHEDULE, "").partition(" ")
    if kind != "@at":
        return None
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


async def _again(jetstream: JetStreamClient, stream: str, message: StoredMessage) -> bool:
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    headers[n.SCHEDULE] = message.headers[n.SCHEDULE]
    headers[n.SCHEDULE_TARGET] = message.headers.get(n.SCHEDULE_TARGET, "")
    headers[n.MSG_ID] = f"overdue.{message.sequence}"
    # Only if it still stands there as we read it: it may have been fired, cancelled or moved meanwhile.
    headers[n.EXPECTED_LAST_SUBJECT_SEQ] = str(message.sequence)
    try:
        return await jetstream.publisher.store(stream, Outgoing(message.subject, message.data, headers))
    except Taken:
        return False
