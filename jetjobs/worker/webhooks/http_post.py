"""Send one HTTP/1.1 request to an address that was checked before: no redirects, bounded in size and time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import h11

from jetjobs.model.webhooks.endpoint import Endpoint, is_public, matches_host

MAX_ANSWER = 64 * 1024
"""Bytes of an answer that are read."""
BODY_S = 1.0
"""How long the body of an answer may take to arrive."""


class NotAllowed(Exception):
    """The endpoint must not be called: one of its addresses is not public."""


class Answer(NamedTuple):
    """The answer of a server, its body cut to its limit."""

    status: int
    retry_after: str
    body: bytes


async def look_up(host: str, port: int) -> list[str]:
    """The addresses of a host. OSError if it has none."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError(f"invalid name: {error}") from None
    return list(dict.fromkeys(str(address[4][0]) for address in found))


async def allowed_addresses(endpoint: Endpoint, allow_hosts: Sequence[str]) -> list[str]:
    """The addresses to connect to. NotAllowed unless all of them are public, or the host is one of `allow_hosts`.

    The name is looked up only here: an answer that differs later has no effect.
    """
    addresses = await look_up(endpoint.host, endpoint.port)
    if not any(matches_host(entry, endpoint) for entry in allow_hosts):
        for address in addresses:
            if not is_public(address):
                named = "" if address == endpoint.host else f", to which {endpoint.host} resolves,"
                raise NotAllowed(f"{address}{named} is not a public address")
    return addresses


async def post(
    endpoint: Endpoint, addresses: Sequence[str], headers: dict[str, str], body: bytes, tls: ssl.SSLContext | None
) -> Answer:
    """Send the request to the first address that accepts a connection. OSError without a valid answer.

    A redirect is an answer like any other.
    """
    async with _connected(endpoint, addresses, tls) as (reader, writer):
        connection = h11.Connection(h11.CLIENT)
        fields = {"Host": endpoint.authority, "Content-Length": str(len(body)), "Connection": "close", **headers}
        request = h11.Request(method="POST", target=endpoint.target, headers=list(fields.items()))
        for event in (request, h11.Data(body), h11.EndOfMessage()):
            writer.write(connection.send(event) or b"")
        await writer.drain()
        try:
            return await _answer(connection, reader)
        except h11.RemoteProtocolError as error:
            raise OSError(f"invalid answer: {error}") from error


@contextlib.asynccontextmanager
async def _connected(
    endpoint: Endpoint, addresses: Sequence[str], tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    name = endpoint.host if tls is not None else None
    failed: OSError = OSError("it has no address")
    for address in addresses:
        try:
            reader, writer = await asyncio.open_connection(address, endpoint.port, ssl=tls, server_hostname=name)
            break
        except OSError as error:  # also an invalid certificate
            failed = error
    else:
        raise failed
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> Answer:
    while not isinstance(response := await _next_event(connection, reader), h11.Response):
        pass  # informational
    body = bytearray()
    # The status decides. Whether the rest arrives in time changes nothing.
    with contextlib.suppress(TimeoutError, OSError, h11.RemoteProtocolError):
        async with asyncio.timeout(BODY_S):
            while len(body) < MAX_ANSWER and isinstance(event := await _next_event(connection, reader), h11.Data):
                body += event.data
    retry_after = dict(response.headers).get(b"retry-after", b"").decode("latin-1")
    return Answer(response.status_code, retry_after, bytes(body[:MAX_ANSWER]))


async def _next_event(connection: h11.Connection, reader: asyncio.StreamReader) -> object:
    while (event := connection.next_event()) is h11.NEED_DATA:
        connection.receive_data(await reader.read(MAX_ANSWER))
    return event
