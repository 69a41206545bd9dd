"""Read and delete single messages through the leader of a stream, because callers act on the answer."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import MESSAGE_DELETE_FAILED, MESSAGE_NOT_FOUND, SEQUENCE_NOT_FOUND
from jetjobs.jetstream.transport.nats_client import read_headers
from jetjobs.model.errors import BrokerError

SECOND_LOOK_S = 1.0
T = TypeVar("T")


class StoredMessage(NamedTuple):
    """A message of a stream."""

    subject: str
    sequence: int
    headers: dict[str, str]
    data: bytes
    stored_at: float
    following: int = 0
    """How many more messages match the same filter after it, if a scan has reported it."""

    @property
    def header_bytes(self) -> int:
        """About as many as on the wire."""
        return sum(len(name) + len(value) + 4 for name, value in self.headers.items())


async def last_on(connection: Connection, stream: str, subject: str) -> StoredMessage | None:
    """The newest message on `subject`, which may contain wildcards; None if there is none."""
    return await _get(connection, stream, {"last_by_subj": subject})


async def at_sequence(connection: Connection, stream: str, sequence: int) -> StoredMessage | None:
    return await _get(connection, stream, {"seq": sequence})


async def next_on(connection: Connection, stream: str, subject: str, start: int) -> StoredMessage | None:
    """The first message on `subject` at or after sequence `start`."""
    return await _get(connection, stream, {"seq": start, "next_by_subj": subject})


async def _get(connection: Connection, stream: str, query: dict[str, object]) -> StoredMessage | None:
    try:
        answer = await connection.api(api.message_get(stream), query)
    except BrokerError as error:
        if error.code == MESSAGE_NOT_FOUND:
            return None
        raise
    message = answer["message"]
    return StoredMessage(
        message["subject"],
        int(message["seq"]),
        read_headers(base64.b64decode(message.get("hdrs", ""))),
        base64.b64decode(message.get("data", "")),
        api.parse_time(message["time"]),
    )


async def delete_message(
    connection: Connection, stream: str, sequence: int, *, erase: bool = True, reconnects: int | None = None
) -> bool:
    """Delete this message. False when it no longer exists. `erase` overwrites its bytes on disk.

    A server that comes back with an older store may give the sequence to another message. So BrokerUnavailable
    when the connection was lost since `reconnects` were counted, by default now.
    """
    since = connection.reconnects if reconnects is None else reconnects
    body = {"seq": sequence, "no_erase": not erase}
    try:
        await connection.api(api.message_delete(stream), body, reconnects=since)
    except BrokerError as error:
        if error.code not in (MESSAGE_NOT_FOUND, SEQUENCE_NOT_FOUND, MESSAGE_DELETE_FAILED):
            raise
        # The server reports the last of these both for a missing message and for one that it failed to delete.
        if error.code == MESSAGE_DELETE_FAILED and await at_sequence(connection, stream, sequence) is not None:
            raise
        return False
    return True


async def look_twice(look: Callable[[], Awaitable[T]], found: Callable[[T], object] = bool) -> T:
    """What `look` finds, if need be a second later.

    A leader that was frozen answers with its old state when it wakes, until it learns that it was replaced. So
    only two looks show that something does not exist.
    """
    result = await look()
    if not found(result):
        await asyncio.sleep(SECOND_LOOK_S)
        result = await look()
    return result
