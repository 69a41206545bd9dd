"""nats-py's client with a faster way in and out for what happens with every job. ADR 3 has the figures.

Three of its steps cost more than all of ours together: it checks every character of every header name it
reads, it validates each header by regular expression when it writes, and it queues every message for a
task of the subscription's own. Here headers are read and written in one pass, and a subscription may be
given a sink that is called as the message is parsed. Everything else is nats-py's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, ConnectionDrainingError, FlushTimeoutError, OutboundBufferLimitError
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

PING = b"PING\r\n"
Sink = Callable[[str, str, bytes, bytes | None], None]
"""Called with subject, reply, body and raw header block, if any. Must not block or raise."""


class FastParser(Parser):
    """Hands whole messages straight to their sinks; all else is nats-py's own parser's."""

    def __init__(self, client: Client, sinks: dict[int, Sink]) -> None:
        super().__init__(client)
        self._sinks = sinks

    async def parse(self, data: bytes = b"") -> None:
        """Called with whatever the socket gave, as often as it gives."""
        if self.state != AWAITING_CONTROL_LINE:
            await super().parse(data)
            return
        if self.buf:
            self.buf.extend(data)
            data = bytes(self.buf)
            self.buf.clear()
        done = self._deliver(data)
        rest = data[done:] if done else data
        if not rest:
            return
        if rest[:1] in b"MH" and (rest.startswith((b"MSG ", b"HMSG ")) and not self._is_foreign(rest)):
            self.buf.extend(rest)  # the beginning of a message: wait for the rest of it
        else:
            await super().parse(rest)

    def _deliver(self, data: bytes) -> int:
        """Deliver the whole messages at the front of `data`; how many bytes they were."""
        done = 0
        while True:
            with_headers = data.startswith(b"HMSG ", done)
            if not with_headers and not data.startswith(b"MSG ", done):
                return done
            end_of_line = data.find(b"\r\n", done)
            if end_of_line < 0:
                return done
            # MSG <subject> <sid> [reply] <size> / HMSG <subject> <sid> [reply] <header size> <size>
            words = data[done:end_of_line].decode(errors="replace").split(" ")
            sink = self._sinks.get(int(words[2]))
            body = end_of_line + 2
            end = body + int(words[-1])
            if sink is None or end + 2 > len(data):
                return done
            headers = None
            if with_headers:
                headers = data[body : body + int(words[-2])]
                body += len(headers)
            reply = words[3] if len(words) == (6 if with_headers else 5) else ""
            done = end + 2
            sink(words[1], reply, data[body:end], headers)

    def _is_foreign(self, rest: bytes) -> bool:
        """Whether the message that begins here is one for nats-py's own subscriptions."""
        words = rest[: rest.find(b"\r\n")].split(b" ") if b"\r\n" in rest else []
        return len(words) > 2 and int(words[2]) not in self._sinks


class FastClient(Client):
    """Drop-in for `nats.aio.client.Client`."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sinks: dict[int, Sink] = {}
        self._ps = FastParser(self, self._sinks)

    async def listen(self, subject: str, sink: Sink) -> int:
        """Subscribe with a sink. Lives until `unlisten` or the end of the connection, through reconnects."""
        subscription = await self.subscribe(subject)
        self._sinks[subscription._id] = sink
        return subscription._id

    async def unlisten(self, sid: int) -> None:
        """Unsubscribe. What the server sent before it heard of this has reached the sink when it returns."""
        subscription = self._subs.get(sid)
        try:
            if subscription is not None and self.is_connected:
                await self._send_unsubscribe(sid)
                await self.flush()
        finally:
            self._subs.pop(sid, None)
            self._sinks.pop(sid, None)

    def write(self, command: bytes) -> None:
        """Put a frame into the buffer; it is flushed in this turn of the loop. Raises what `publish` raises."""
        if self._status != Client.CONNECTED:
            self._check_writable(len(command))
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue = self._flush_queue
        if queue is not None and queue.empty() and self._status == Client.CONNECTED:
            queue.put_nowait(self._new_future())

    def _new_future(self) -> asyncio.Future[Any]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    async def wait_for_buffer(self) -> None:
        """Wait while more is buffered than may be: for those who write much."""
        while self._pending_data_size > self._max_pending_size and self.is_connected:
            await self._flush_pending(force_flush=True)

    def _check_writable(self, size: int) -> None:
        if self.is_closed:
            raise ConnectionClosedError
        if self.is_draining_pubs:
            raise ConnectionDrainingError
        if not self.is_connected and size + self._pending_data_size > self._max_pending_size:
            raise OutboundBufferLimitError

    async def flush(self, timeout: float = 10.0) -> None:
        """As nats-py's own, which waits by `wait_for`: before Python 3.12 that swallows a cancellation that comes
        together with the answer, and the task that was to end goes on for ever."""
        if self.is_closed:
            raise ConnectionClosedError
        future = self._new_future()
        await self._send_ping(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise FlushTimeoutError from None

    # Called by nats-py for a flush, and now and then to see if the server lives. Its own writes the PING past
    # what is buffered, so that its answer would say nothing of that.
    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self._pongs.append(self._new_future() if future is None else future)
        self.write(PING)

    # Called by nats-py's parser for every PONG. Its own would set the result of a flush that was cancelled
    # meanwhile; the error ends the reading of the socket, and the connection is deaf for good.
    async def _process_pong(self) -> None:
        waiting = self._pongs.pop(0) if self._pongs else None
        if waiting is not None and not waiting.done():
            waiting.set_result(True)
        self._pongs_received += 1
        self._pings_outstanding = 0

    # Called by nats-py's parser for every message.
    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        sink = self._sinks.get(sid)
        if sink is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            # Anybody may publish a subject that is no UTF-8; it must not end the connection.
            sink(subject.decode(errors="replace"), reply.decode(errors="replace"), data, headers)


def frame(subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | bytes | None = None) -> bytes:
    """One publish as it goes over the wire. ValueError for a subject that would end its line and forge another."""
    # The cheapest way to see white space anywhere in it: this runs for every message.
    if subject.split() != [subject] or (reply and reply.split() != [reply]):
        raise ValueError(f"{subject[:60]!r} or its reply {reply[:60]!r} is no subject")
    if not headers:
        return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
    block = headers if isinstance(headers, bytes) else write_headers(headers)
    size = len(block)
    return f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n".encode() + block + payload + b"\r\n"


def write_headers(headers: dict[str, str]) -> bytes:
    """The header block."""
    return f"NATS/1.0\r\n{header_lines(headers)}\r\n".encode()


def header_lines(headers: dict[str, str]) -> str:
    """A line for each. ValueError when a name or value would end its line, and so forge another."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header holds a line break")
    return lines


def read_headers(block: bytes) -> dict[str, str]:
    """Name and value of each line; the first line is skipped. The first of a repeated name wins."""
    headers: dict[str, str] = {}
    lines = block.decode(errors="replace").split("\r\n")
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if colon and name not in headers:
            headers[name] = value.strip()
    # A bare CR or LF within a line is no line break to the server, but could not be written again.
    breaks = len(lines) - 1
    if block.count(b"\n") != breaks or block.count(b"\r") != breaks:
        return {_plain(name): _plain(value) for name, value in headers.items()}
    return headers


def _plain(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def read_status(block: bytes) -> tuple[str, str]:
    """Code and description in a block's first line; both empty for an ordinary message.

    >>> read_status(b"NATS/1.0 408 Request Timeout\\r\\n\\r\\n")
    ('408', 'Request Timeout')
    """
    first = block[8 : block.index(b"\r\n")].decode(errors="replace").strip()
    code, _, description = first.partition(" ")
    return code, description
