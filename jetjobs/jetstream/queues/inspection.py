"""Looks at the server that change nothing: for those who ask whether all is well."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.messages.get import next_on
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.subjects import Names

_NEVER = str(2**53 - 1)
"""A sequence that no stream reaches: a publish that expects it is refused, once permissions were checked."""


MAX_STRANDED = 1_000
"""So many are found in a lane at one look."""


class Usage(NamedTuple):
    """How much of something the account uses, and how much it may: -1 for no limit of its own."""

    what: str
    used: int
    most: int


async def round_trip_s(connection: Connection, enough_s: float, tries: int = 10) -> float:
    """The shortest way there and back of a few, so that a busy machine does not count as a slow network."""
    best = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        try:
            await connection.nc.flush(5)
        except (TimeoutError, nats.errors.Error) as error:
            raise from_exception(error, "ping") from error
        best = min(best, time.perf_counter() - started)
        if best < enough_s:
            break
    return best


async def account_usage(connection: Connection) -> list[Usage]:
    """What the account uses of JetStream, in each tier where it has tiers."""
    info = await connection.api(api.ACCOUNT_INFO)
    tiers: dict[str, dict[str, Any]] = info.get("tiers") or {"": info}
    found = []
    for name, tier in tiers.items():
        limits, of = tier.get("limits") or {}, f" of tier {name}" if name else ""
        for what, used, most in (
            ("file storage", "storage", "max_storage"),
            ("memory storage", "memory", "max_memory"),
            ("streams", "streams", "max_streams"),
            ("consumers", "consumers", "max_consumers"),
        ):
            found.append(Usage(what + of, int(tier.get(used, 0)), int(limits.get(most, -1))))
    return found


async def stream_info(connection: Connection, stream: str) -> dict[str, Any] | None:
    """All that the server says of a stream; None when it is not there."""
    try:
        return await connection.api(api.stream_info(stream))
    except TopologyMissing:
        return None


async def may_publish(connection: Connection, subject: str) -> bool | None:
    """Whether this user may publish to `subject`; None when nobody takes it. Nothing is stored."""
    try:
        await connection.ask(subject, b"", {h.EXPECTED_LAST_SUBJECT_SEQ: _NEVER}, 3.0)
    except AccessDenied:
        return False
    except BrokerError as error:
        if error.code == 503:
            return None
        raise
    return True


async def consumers_of(connection: Connection, stream: str) -> list[dict[str, Any]]:
    """Every consumer of a stream, as the server describes it."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await connection.api(api.consumer_list(stream), {"offset": len(found)})
        page = answer.get("consumers") or []
        found += page
        if not page or len(found) >= int(answer.get("total", 0)):
            return found


async def stranded_sequences(connection: Connection, names: Names, queue: str, lane: str) -> list[int]:
    """Sequences of messages that stand in a lane and that its consumer will never deliver again, oldest first.

    All that is at or below a consumer's ack floor was acknowledged or given up after `max_deliver`, and what was
    acknowledged leaves the stream. It may be about to: only what is found at two looks is given up for certain.
    """
    stream, subject = names.work_stream(queue), names.lane_filter(queue, lane)
    try:
        info = await connection.api(api.consumer_info(stream, lane))
    except TopologyMissing:
        return []  # others may be about to make it again
    last = int(info["ack_floor" if info["num_ack_pending"] else "delivered"]["stream_seq"])
    found: list[int] = []
    after = 1  # the pin: from it the server would walk every subject. ADR 1
    while after < last and len(found) < MAX_STRANDED:
        message = await next_on(connection, stream, subject, after + 1)
        if message is None or message.sequence > last:
            break
        found.append(after := message.sequence)
    return found
