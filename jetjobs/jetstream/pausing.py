"""Pause and resume a queue: the server's own pause, on every lane, and a note of why beside it.

The lanes are the truth. The note stands in the bucket of locks, and goes when the pause does.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.publisher import Outgoing, Publisher
from jetjobs.jetstream.queue_facts import LaneLook, look_at_lanes, now_of
from jetjobs.jetstream.reads import last_on
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError, BrokerUnavailable
from jetjobs.model.names import Names, kv_stream, kv_subject
from jetjobs.model.queue import FOR_EVER_S, Pause
from jetjobs.model.reading import read_json, seconds

_CENTURY_S = 100 * 365 * 86400.0
_SOON_S = 0.05
_SETTLED_S = 10.0


async def pause(connection: Connection, publisher: Publisher, names: Names, queue: str, wanted: Pause) -> Pause:
    """No job of the queue starts until `wanted.until`, or until `resume`. What runs is left to finish."""
    now = now_of(await look_at_lanes(connection, names, queue))
    for_s = wanted.until - now if wanted.until else 0.0
    kept = wanted._replace(at=now)
    headers = {n.TTL: f"{max(1, round(for_s))}s"} if wanted.until else {}
    await publisher.store(
        kv_stream(names.locks_bucket),
        Outgoing(
            _note(names, queue), json.dumps(kept._asdict()).encode(), {**headers, n.MSG_ID: f"{queue}.{now}"}
        ),
    )
    await pause_lanes(connection, names, queue, wanted.until or now + _CENTURY_S)
    return kept


async def resume(connection: Connection, publisher: Publisher, names: Names, queue: str) -> bool:
    """Let jobs start again, at once. False when the queue was not paused."""
    lanes = _paused(await look_at_lanes(connection, names, queue))
    if lanes:
        await resume_lanes(connection, names, queue, lanes)
    headers = {n.KV_OPERATION: "DEL", n.TTL: "1s", n.MSG_ID: f"{queue}.resume.{time.time()}"}
    try:
        await publisher.store(kv_stream(names.locks_bucket), Outgoing(_note(names, queue), b"", headers))
    except BrokerError:
        if not lanes:
            raise
    return bool(lanes)


async def pause_lanes(connection: Connection, names: Names, queue: str, until: float) -> None:
    """Pause every lane that workers pull from, and wait until all are."""
    for lane in n.PULLED:
        await _set(connection, names, queue, lane, until)
    await _until(connection, names, queue, n.PULLED, paused=True, end=until)


async def _until(
    connection: Connection, names: Names, queue: str, lanes: Sequence[str], *, paused: bool, end: float = 0.0
) -> None:
    """Wait until the lanes are so: in a cluster the answer comes before a lane's leader has heard of it."""
    give_up = time.monotonic() + _SETTLED_S
    while True:
        found = await look_at_lanes(connection, names, queue)
        others = [look for look in found if look.lane in lanes and bool(look.paused_until) is not paused]
        if not others or (paused and now_of(found) >= end):
            return
        if time.monotonic() > give_up:
            state = "paused" if paused else "resumed"
            raise BrokerUnavailable(f"the lanes of queue {queue} are not all {state} yet")
        await asyncio.sleep(0.02)


async def resume_lanes(connection: Connection, names: Names, queue: str, lanes: list[LaneLook]) -> None:
    """By a pause that runs out in a moment: the server wakes waiting requests then, and not when it is told to end
    a pause at once. Those would sleep until their next heartbeat."""
    looked_at = time.monotonic()
    for lane in lanes:
        soon_s = _SOON_S
        # Unpaused in the answer: the moment had passed before the server heard of it.
        while not await _set(connection, names, queue, lane.lane, lane.at + time.monotonic() - looked_at + soon_s):
            soon_s *= 2
    await _until(connection, names, queue, [lane.lane for lane in lanes], paused=False)


async def restore_pauses(
    connection: Connection, names: Names, queue: str, before: list[LaneLook], hold_s: float
) -> None:
    """Undo a pause of our own, of up to `hold_s`: lanes that were paused before it are so again, until the time
    they had. One that is paused for longer was paused by somebody else meanwhile."""
    was = {lane.lane: lane.paused_until for lane in before}
    free = []
    for lane in await look_at_lanes(connection, names, queue):
        if (until := was.get(lane.lane, 0.0)) > lane.at:
            await _set(connection, names, queue, lane.lane, until)
        elif lane.at < lane.paused_until <= lane.at + hold_s and lane.lane in n.PULLED:
            free.append(lane)
    await resume_lanes(connection, names, queue, free)


async def _set(connection: Connection, names: Names, queue: str, lane: str, until: float) -> bool:
    """Whether the lane is paused now."""
    moment = datetime.fromtimestamp(until, UTC).isoformat().replace("+00:00", "Z")
    answer = await connection.api(f"CONSUMER.PAUSE.{names.work_stream(queue)}.{lane}", {"pause_until": moment})
    return bool(answer.get("paused"))


def _paused(lanes: list[LaneLook]) -> list[LaneLook]:
    return [lane for lane in lanes if lane.paused_until and lane.lane in n.PULLED]


async def pause_of(connection: Connection, names: Names, queue: str, lanes: list[LaneLook]) -> Pause | None:
    """The pause of a queue, with what the note says of it; None when its lanes are not paused."""
    paused = _paused(lanes)
    if not paused:
        return None
    lane = max(paused, key=lambda lane: lane.paused_until)
    until = lane.paused_until if lane.paused_until - lane.at < FOR_EVER_S else 0.0
    note: dict[str, Any] = {}
    try:
        message = await last_on(connection, kv_stream(names.locks_bucket), _note(names, queue))
        note = read_json(message.data) if message is not None and message.data else {}
        return Pause(until, str(note.get("reason", "")), str(note.get("by", "")), seconds(note.get("at")))
    except (BrokerError, ValueError, TypeError, AttributeError):
        return Pause(until)  # paused by other means than ours, or we may not read why


def _note(names: Names, queue: str) -> str:
    return kv_subject(names.locks_bucket, f"pause.{queue}")
