"""Count the jobs of a queue, with one request for each place, and pause or resume the queue."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from jetjobs.jetstream.messages.codec import header_number
from jetjobs.jetstream.messages.get import StoredMessage, last_on, next_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher
from jetjobs.jetstream.messages.scan import count_on
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import STREAM_NOT_FOUND
from jetjobs.model.errors import BrokerError, BrokerUnavailable, QueueNotFound, TopologyMissing
from jetjobs.model.views.queue_info import NO_END, LaneState, Pause, QueueState, rates
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.lenient_json import as_time, read_json
from jetjobs.model.wire.subjects import Names, kv_stream, kv_subject

_CENTURY = timedelta(days=36500)
_SOON_S = 0.05
_SETTLED_S = 10.0


async def lane_states(connection: Connection, names: Names, queue: str) -> list[LaneState]:
    """The state of every lane with a consumer. QueueNotFound when the queue does not exist."""
    found = await asyncio.gather(*(lane_state(connection, names, queue, lane) for lane in n.PULLED))
    return [state for state in found if state is not None]


def server_time_of(lanes: list[LaneState]) -> datetime:
    """The server's time of these states; this machine's time without lanes."""
    return max((lane.at for lane in lanes), default=datetime.now(UTC))


async def lane_state(connection: Connection, names: Names, queue: str, lane: str) -> LaneState | None:
    """The state of one lane; None if it does not exist: it may be about to be created again."""
    try:
        info = await connection.api(api.consumer_info(names.work_stream(queue), lane))
    except TopologyMissing as error:
        if error.code == STREAM_NOT_FOUND:
            raise QueueNotFound(
                f"queue {queue!r} does not exist", hint="list them with `jetjobs queues list`"
            ) from error
        return None
    return LaneState(
        lane,
        _time(info["ts"]),
        int(info["num_pending"]),
        int(info["num_ack_pending"]),
        int(info["delivered"]["stream_seq"]),
        int(info["delivered"]["consumer_seq"]),
        int(info["num_waiting"]),
        _time(info["config"]["pause_until"]) if info.get("paused") else None,
        int(info["num_ack_pending"]) >= int(info["config"].get("max_ack_pending", -1)) > 0,
    )


def _time(text: str) -> datetime:
    return datetime.fromtimestamp(api.parse_time(text), UTC)


async def stream_state(connection: Connection, stream: str) -> dict[str, Any]:
    """The state of a stream, as the server reports it."""
    state: dict[str, Any] = (await connection.api(api.stream_info(stream)))["state"]
    return state


async def queue_state(
    connection: Connection,
    names: Names,
    queue: str,
    workers: Sequence[WorkerRecord],
    before: Sequence[LaneState] = (),
) -> QueueState:
    """The state of the queue now. Rates are relative to `before`. QueueNotFound when it does not exist."""
    lanes = await lane_states(connection, names, queue)
    stream = names.work_stream(queue)
    stored, scheduled, retrying, dead, pause = await asyncio.gather(
        stream_state(connection, stream),
        count_on(connection, stream, names.lane_filter(queue, n.LATER)),
        count_on(connection, stream, names.lane_filter(queue, n.RETRY)),
        _count_dead(connection, names, queue),
        pause_of(connection, names, queue, lanes),
    )
    # Not from the first message of the stream, the pin: from there the server walks every subject. ADR 1.
    oldest = await _oldest_due(connection, names, queue, lanes, int(stored["first_seq"]) + 1)
    at = server_time_of(lanes)
    all_of = [worker for worker in workers if queue in worker.queues]
    ours = [worker for worker in all_of if worker.takes_jobs]
    came, went = rates(before, lanes)
    slots, running = sum(worker.queues[queue].total for worker in ours), sum(lane.running for lane in lanes)
    # Workers report their slots every few seconds; the server counts what it has delivered at once.
    busy = min(slots, max(running, sum(worker.queues[queue].busy for worker in ours)))
    return QueueState(
        queue,
        at,
        pause,
        tuple(lanes),
        scheduled,
        retrying,
        dead,
        None if oldest is None else timedelta(seconds=max(0.0, at.timestamp() - oldest)),
        int(stored["bytes"]),
        len(ours),
        busy,
        slots,
        came,
        went,
        sum(worker.queues[queue].busy for worker in all_of if not worker.takes_jobs),
    )


async def _oldest_due(
    connection: Connection, names: Names, queue: str, lanes: Sequence[LaneState], first: int
) -> float | None:
    """The due time of the job that has waited longest at the head of a lane; None if none waits."""
    stream = names.work_stream(queue)
    fronts = await asyncio.gather(
        *(
            next_on(connection, stream, names.lane_filter(queue, lane.lane), max(first, lane.delivered + 1))
            for lane in lanes
            if lane.queued
        )
    )
    return min((_due(message) for message in fronts if message is not None), default=None)


def _due(message: StoredMessage) -> float:
    headers = message.headers
    due: float = header_number(headers, h.DUE_AT, 0) or header_number(headers, h.ENQUEUED_AT, 0)
    return due or message.stored_at


async def _count_dead(connection: Connection, names: Names, queue: str) -> int:
    try:
        return await count_on(connection, names.dead_stream, names.dead_of(queue))
    except TopologyMissing:
        return 0


# A pause is the server's own pause of every lane. A record in the bucket of locks explains it.


async def pause(connection: Connection, publisher: Publisher, names: Names, queue: str, wanted: Pause) -> None:
    """Start no job of the queue until `wanted.until` or `resume`. Running jobs finish."""
    at = wanted.at or datetime.now(UTC)
    headers = {h.MSG_ID: f"{queue}.{at.timestamp()}"}
    if wanted.until is not None:
        headers[h.TTL] = f"{max(1, round((wanted.until - at).total_seconds()))}s"
    until_s = 0.0 if wanted.until is None else wanted.until.timestamp()
    note = {"until": until_s, "reason": wanted.reason, "by": wanted.by, "at": at.timestamp()}
    record = Outgoing(pause_record(names, queue), json.dumps(note).encode(), headers)
    await publisher.store(kv_stream(names.locks_bucket), record)
    until = wanted.until or at + _CENTURY
    for lane in n.PULLED:
        await _set(connection, names, queue, lane, until.timestamp())
    await _settled(connection, names, queue, lambda lane: lane.paused_until is not None or lane.at >= until)


async def resume(connection: Connection, publisher: Publisher, names: Names, queue: str) -> bool:
    """Let jobs start again at once. False when the queue was not paused.

    It sets a pause that ends in a moment: the server then wakes waiting pull requests. When a pause is removed, it
    does not, and they would wait until their next heartbeat.
    """
    lanes = [lane for lane in await lane_states(connection, names, queue) if lane.paused_until]
    looked_at = time.monotonic()
    for lane in lanes:
        soon_s, at = _SOON_S, lane.at.timestamp()
        # Not paused in the answer: the time had passed before the server received it.
        while not await _set(connection, names, queue, lane.lane, at + time.monotonic() - looked_at + soon_s):
            soon_s *= 2
    if lanes:
        await _settled(connection, names, queue, lambda lane: not lane.paused_until)
    headers = {h.KV_OPERATION: "DEL", h.TTL: "1s", h.MSG_ID: f"{queue}.resume.{time.time()}"}
    with contextlib.suppress(BrokerError):  # the record has no effect without a pause
        await publisher.store(kv_stream(names.locks_bucket), Outgoing(pause_record(names, queue), b"", headers))
    return bool(lanes)


async def _settled(connection: Connection, names: Names, queue: str, settled: Callable[[LaneState], bool]) -> None:
    """Wait until all lanes are as wanted: in a cluster the answer comes before the leader of a lane knows it."""
    give_up = time.monotonic() + _SETTLED_S
    while not all(map(settled, await lane_states(connection, names, queue))):
        if time.monotonic() > give_up:
            raise BrokerUnavailable(f"not all lanes of queue {queue} are paused or resumed yet")
        await asyncio.sleep(0.02)


async def _set(connection: Connection, names: Names, queue: str, lane: str, until: float) -> bool:
    """Pause the lane until then. Returns whether it is paused now."""
    answer = await connection.api(
        api.consumer_pause(names.work_stream(queue), lane), {"pause_until": api.format_time(until)}
    )
    return bool(answer.get("paused"))


async def pause_of(connection: Connection, names: Names, queue: str, lanes: list[LaneState]) -> Pause | None:
    """The pause of a queue with its reason; None when its lanes are not paused."""
    ends = [(lane.paused_until, lane.at) for lane in lanes if lane.paused_until is not None]
    if not ends:
        return None
    last, at = max(ends)
    until = last if last - at < NO_END else None
    try:
        message = await last_on(connection, kv_stream(names.locks_bucket), pause_record(names, queue))
        note = read_json(message.data) if message is not None and message.data else {}
        return Pause(until, str(note.get("reason", "")), str(note.get("by", "")), as_time(note.get("at")))
    except (BrokerError, ValueError, TypeError, AttributeError):
        return Pause(until)  # not paused by jetjobs, or the reason is not readable


def pause_record(names: Names, queue: str) -> str:
    return kv_subject(names.locks_bucket, f"pause.{queue}")
