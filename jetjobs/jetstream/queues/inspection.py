"""Read-only checks of the server, for the doctor and for maintenance."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.messages.get import next_on
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import WRITE_FAILED, from_exception
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.namespaces import WORK_OF_ALL, namespace_of
from jetjobs.model.wire.subjects import Names

_NEVER = str(2**53 - 1)
"""A sequence that no stream reaches. A publish that expects it is refused after the permissions are checked."""


MAX_STRANDED = 1_000
"""The most that one call returns for a lane."""


class Usage(NamedTuple):
    """How much of a resource the account uses, and its limit; -1 for no limit."""

    what: str
    used: int
    most: int


async def round_trip_s(connection: Connection, enough_s: float, tries: int = 10) -> float:
    """The shortest of several round trips, so that a busy machine does not look like a slow network."""
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
    """The JetStream resources that the account uses, by tier if it has tiers."""
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
    """The server's description of a stream; None if it does not exist."""
    try:
        return await connection.api(api.stream_info(stream))
    except TopologyMissing:
        return None


async def may_publish(connection: Connection, subject: str) -> bool | None:
    """Whether this user may publish to `subject`; None if no stream accepts it. Stores nothing."""
    try:
        await connection.ask(subject, b"", {h.EXPECTED_LAST_SUBJECT_SEQ: _NEVER}, 3.0)
    except AccessDenied:
        return False
    except BrokerError as error:
        if error.code == 503:
            return None
        raise
    return True


async def write_error(connection: Connection, stream: str, unused: str) -> str:
    """Why the server has frozen the stream; empty if it has not, and for a stream that does not exist.

    Purges `unused`, a subject without messages: the server first reports an earlier write error, and then finds
    nothing to purge.
    """
    try:
        await connection.api(api.stream_purge(stream), {"filter": unused})
    except TopologyMissing:
        return ""
    except BrokerError as error:
        if error.code != WRITE_FAILED:
            raise
        return str(error).partition(": ")[2].removesuffix(f" ({error.code})")
    return ""


async def consumers_of(connection: Connection, stream: str) -> list[dict[str, Any]]:
    """The server's description of every consumer of a stream."""
    found: list[dict[str, Any]] = []
    while True:
        answer = await connection.api(api.consumer_list(stream), {"offset": len(found)})
        page = answer.get("consumers") or []
        found += page
        if not page or len(found) >= int(answer.get("total", 0)):
            return found


async def list_queues(connection: Connection, names: Names) -> list[str]:
    """The queues of the namespace that exist on the server."""
    streams = await stream_names(connection, names.work_filter)
    return sorted(queue for stream in streams if (queue := names.queue_of(stream)) is not None)


async def list_namespaces(connection: Connection) -> list[str]:
    """The namespaces that have a queue on the server."""
    streams = await stream_names(connection, WORK_OF_ALL)
    return sorted({found for stream in streams if (found := namespace_of(stream)) is not None})


async def stream_names(connection: Connection, subject: str = "") -> list[str]:
    """The names of all streams, or of those with subjects that match `subject`."""
    found: list[str] = []
    while True:
        query = {"offset": len(found), **({"subject": subject} if subject else {})}
        answer = await connection.api(api.STREAM_NAMES, query)
        page = answer.get("streams") or []
        found += page
        if not page or len(found) >= int(answer.get("total", 0)):
            return found


async def stranded_sequences(connection: Connection, names: Names, queue: str, lane: str) -> list[int]:
    """Sequences of messages of a lane that its consumer will never deliver again, oldest first.

    Messages at or below the ack floor of a consumer were acked, or have reached `max_deliver`. Acked messages are
    removed, but perhaps not yet: only a message that two calls return is certainly stranded.
    """
    stream, subject = names.work_stream(queue), names.lane_filter(queue, lane)
    try:
        info = await connection.api(api.consumer_info(stream, lane))
    except TopologyMissing:
        return []  # it may be about to be created again
    last = int(info["ack_floor" if info["num_ack_pending"] else "delivered"]["stream_seq"])
    found: list[int] = []
    after = 1  # after the pin: from it the server would walk every subject. ADR 1
    while after < last and len(found) < MAX_STRANDED:
        message = await next_on(connection, stream, subject, after + 1)
        if message is None or message.sequence > last:
            break
        found.append(after := message.sequence)
    return found
