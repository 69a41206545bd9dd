"""Read many messages of a stream in order with batched direct gets, without a consumer or acks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import nats.errors

from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.jetstream.transport.nats_client import read_headers, read_status
from jetjobs.model.errors import BrokerError, BrokerUnavailable, TopologyMissing
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import Names

PAGE = 256
PAGE_BYTES = 8 * 1024 * 1024
"""About how many bytes of a page are in memory at once: messages may be large."""
_PAGE_S = 10.0


async def scan(
    connection: Connection, stream: str, subject: str, start: int = 1, limit: int | None = None
) -> AsyncIterator[StoredMessage]:
    """Messages on `subject` from `start` on, oldest first. A replica may answer: for lists, not decisions."""
    left = limit
    while left is None or left > 0:
        found = await page(connection, stream, subject, start, PAGE if left is None else min(PAGE, left))
        for message in found:
            yield message
        if not found:
            return
        start = found[-1].sequence + 1
        left = None if left is None else left - len(found)


async def scan_waiting(
    connection: Connection, names: Names, queue: str, limit: int | None = None
) -> AsyncIterator[StoredMessage]:
    """Jobs that wait for their due time, up to `limit` of each lane."""
    for lane in n.WAITING:
        async for message in scan(
            connection, names.work_stream(queue), names.lane_filter(queue, lane), limit=limit
        ):
            yield message


async def count_on(connection: Connection, stream: str, subject: str) -> int:
    """The number of messages on `subject`, which may contain wildcards."""
    found = await page(connection, stream, subject, 1, 1)
    return found[0].following + 1 if found else 0


async def page(
    connection: Connection, stream: str, subject: str, start: int, count: int, since: str = ""
) -> list[StoredMessage]:
    """Up to `count` messages on `subject` from `start` on, or stored since an RFC 3339 time.

    BrokerUnavailable when the answer is incomplete, AccessDenied without permission.
    """
    found: list[StoredMessage] = []
    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def on_message(_: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if headers is None or ended.done():
            return
        status = read_status(headers)[0]
        if status in ("204", "404"):  # end of the batch; no messages
            ended.set_result(b"")
        elif status == "503":
            ended.set_exception(TopologyMissing(f"stream {stream} does not exist", hint="jetjobs setup apply"))
        elif status:
            ended.set_exception(BrokerUnavailable(f"read {stream}: {' '.join(read_status(headers))}"))
        else:
            found.append(_stored(read_headers(headers), data))

    inbox = connection.nc.new_inbox()
    try:
        sid = await connection.nc.listen(inbox, on_message)
    except nats.errors.Error as error:
        raise from_exception(error, f"read {stream}") from error
    request = api.direct_get(stream)
    name = connection.pending.expect(ended, request, _PAGE_S)
    try:
        first = {"start_time": since} if since else {"seq": start}
        query = {**first, "next_by_subj": subject, "batch": count, "max_bytes": PAGE_BYTES}
        if not connection.post(request, json.dumps(query).encode(), inbox):
            raise BrokerUnavailable(f"read {stream}: not connected")
        await ended
    finally:
        connection.pending.forget(name)
        with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
            await connection.nc.unlisten(sid)
    return found


async def check_direct_get(connection: Connection, stream: str) -> None:
    """AccessDenied when this user may not read the stream in pages. A denied page itself only seems slow."""
    try:
        await connection.ask(api.direct_get(stream), b'{"seq":1}', None, 5.0)
    except BrokerError as error:
        if error.code != 503:  # no such stream: the read itself reports it
            raise


def _stored(headers: dict[str, str], data: bytes) -> StoredMessage:
    own = (
        "Nats-Stream",
        "Nats-Subject",
        "Nats-Sequence",
        "Nats-Time-Stamp",
        "Nats-Num-Pending",
        "Nats-Last-Sequence",
    )
    return StoredMessage(
        headers["Nats-Subject"],
        int(headers["Nats-Sequence"]),
        {k: v for k, v in headers.items() if k not in own},
        data,
        api.parse_time(headers["Nats-Time-Stamp"]),
        int(headers.get("Nats-Num-Pending", 0)),
    )
