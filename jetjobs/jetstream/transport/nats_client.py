"""The nats-py client with faster reading and writing of messages. ADR 3 has the measurements.

Three steps of nats-py cost more than all of jetjobs: it checks every character of every header name it reads, it
validates every header it writes with a regular expression, and it queues every message for a task of the
subscription. Here headers are read and written in one pass, and a subscription can have a sink that is called as
soon as the message is parsed. Everything else is nats-py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from nats.aio.client import Client
from nats.errors import ConnectionClosedError, ConnectionReconnectingError, Error, FlushTimeoutError
from nats.protocol.parser import AWAITING_CONTROL_LINE, ERR_RE, PERMISSIONS_ERR, Parser

PING = b"PING\r\n"
Sink = Callable[[str, str, bytes, bytes | None], None]
"""Called with subject, reply, body and the raw header block, if any. Must not block or raise."""


class FastParser(Parser):
    """Passes complete messages directly to their sinks. The parser of nats-py handles the rest."""

    def __init__(self, client: Client, sinks: dict[int, Sink]) -> None:
        super().__init__(client)
        self._sinks = sinks

    async def parse(self, data: bytes = b"") -> None:
        """Parse the next bytes of the socket."""
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
            self.buf.extend(rest)  # an incomplete message: wait for the rest
        else:
            await super().parse(rest)

    def _deliver(self, data: bytes) -> int:
        """Deliver the complete messages at the start of `data`. Returns their number of bytes."""
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
        """Whether the message that begins here is for a subscription without a sink."""
        words = rest[: rest.find(b"\r\n")].split(b" ") if b"\r\n" in rest else []
        return len(words) > 2 and int(words[2]) not in self._sinks


class FastClient(Client):
    """Drop-in for `nats.aio.client.Client`."""

    def __init__(self) -> None:
        super().__init__()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.before_connect: Callable[[], None] = lambda: None
        """Called before each try to connect, when nothing can be sent."""
        self._sinks: dict[int, Sink] = {}
        self._ps = FastParser(self, self._sinks)

    async def listen(self, subject: str, sink: Sink) -> int:
        """Subscribe with a sink, until `unlisten` or the end of the connection. Survives reconnects."""
        subscription = await self.subscribe(subject)
        self._sinks[subscription._id] = sink
        return subscription._id

    async def unlisten(self, sid: int) -> None:
        """Unsubscribe. Messages that the server sent before are passed to the sink before this returns."""
        subscription = self._subs.get(sid)
        try:
            if subscription is not None and self.is_connected:
                await self._send_unsubscribe(sid)
                await self.flush()
        finally:
            self._subs.pop(sid, None)
            self._sinks.pop(sid, None)

    def write(self, command: bytes) -> None:
        """Add a frame to the buffer, to be flushed in this iteration of the loop. Raises while disconnected: the
        frame would be sent after the reconnect, and an ack could then delete another job. ADR 41."""
        if self._status != Client.CONNECTED:
            raise ConnectionClosedError if self.is_closed else ConnectionReconnectingError
        self._pending.append(command)
        self._pending_data_size += len(command)
        queue = self._flush_queue
        if queue is not None and queue.empty():
            queue.put_nowait(self._new_future())

    def _new_future(self) -> asyncio.Future[Any]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.create_future()

    async def wait_for_buffer(self) -> None:
        """Wait while the buffer is over its limit. For callers that write a lot."""
        while self._pending_data_size > self._max_pending_size and self.is_connected:
            await self._flush_pending(force_flush=True)

    async def flush(self, timeout: float = 10.0) -> None:
        """As in nats-py, but without `wait_for`: before Python 3.12 it loses a cancellation that arrives together
        with the answer, and the cancelled task never ends."""
        if self.is_closed:
            raise ConnectionClosedError
        future = self._new_future()
        await self._send_ping(future)
        try:
            async with asyncio.timeout(timeout):
                await future
        except TimeoutError:
            raise FlushTimeoutError from None

    # Called by nats-py for a flush, and at intervals to check the server. The original writes the PING before the
    # buffered data, so its answer would not confirm that data.
    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self.write(PING)
        self._pongs.append(self._new_future() if future is None else future)

    # Called by nats-py for each try to connect, before it sends anything. nats-py would send frames that were
    # written before the loss was noticed, and then report that it is connected. It subscribes again by itself.
    async def _process_connect_init(self) -> None:
        self._pending.clear()
        self._pending_data_size = 0
        self.before_connect()
        try:
            await super()._process_connect_init()
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]  # nats-py would leave the socket open and try the next one
            raise

    # Called by the parser of nats-py for every PONG. The original would set the result of a flush that has been
    # cancelled. That error ends the task that reads the socket, and no message arrives any more.
    async def _process_pong(self) -> None:
        waiting = self._pongs.pop(0) if self._pongs else None
        if waiting is not None and not waiting.done():
            waiting.set_result(True)
        self._pongs_received += 1
        self._pings_outstanding = 0

    # Called by the parser of nats-py with an error of the server in lower case. Subjects are case-sensitive, and
    # the parser still has the original line.
    async def _process_err(self, err_msg: str) -> None:
        line = ERR_RE.match(self._ps.buf) if PERMISSIONS_ERR in err_msg else None
        if line is None or not line[1]:
            await super()._process_err(err_msg)
            return
        self._err = Error(f"nats: {line[1].decode(errors='replace')}")
        await self._error_cb(self._err)

    # Called by the parser of nats-py for every message.
    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        sink = self._sinks.get(sid)
        if sink is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            # Any client can publish a subject that is not UTF-8. It must not end the connection.
            sink(subject.decode(errors="replace"), reply.decode(errors="replace"), data, headers)


def frame(subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | bytes | None = None) -> bytes:
    """One publish in its wire form. ValueError for a subject with white space, which could inject a command."""
    # The fastest check for white space anywhere: this runs for every message.
    if subject.split() != [subject] or (reply and reply.split() != [reply]):
        raise ValueError(f"invalid subject {subject[:60]!r} or reply {reply[:60]!r}")
    if not headers:
        return f"PUB {subject} {reply} {len(payload)}\r\n".encode() + payload + b"\r\n"
    block = headers if isinstance(headers, bytes) else write_headers(headers)
    size = len(block)
    return f"HPUB {subject} {reply} {size} {size + len(payload)}\r\n".encode() + block + payload + b"\r\n"


def write_headers(headers: dict[str, str]) -> bytes:
    """The header block."""
    return f"NATS/1.0\r\n{header_lines(headers)}\r\n".encode()


def header_lines(headers: dict[str, str]) -> str:
    """One line for each header. ValueError when a name or value contains a line break, which could inject one."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header contains a line break")
    return lines


def read_headers(block: bytes) -> dict[str, str]:
    """The headers of a block by name. The first line is skipped, and the first of a repeated name counts."""
    headers: dict[str, str] = {}
    lines = block.decode(errors="replace").split("\r\n")
    for line in lines[1:-2]:
        name, colon, value = line.partition(":")
        if colon and name not in headers:
            headers[name] = value.strip()
    # The server does not treat a single CR or LF as a line break, but it could not be written again.
    breaks = len(lines) - 1
    if block.count(b"\n") != breaks or block.count(b"\r") != breaks:
        return {_plain(name): _plain(value) for name, value in headers.items()}
    return headers


def _plain(text: str) -> str:
    return text.replace("\r", " ").replace("\n", " ")


def read_status(block: bytes) -> tuple[str, str]:
    """Code and description in the first line of a block; both are empty for an ordinary message.

    >>> read_status(b"NATS/1.0 408 Request Timeout\\r\\n\\r\\n")
    ('408', 'Request Timeout')
    """
    first = block[8 : block.index(b"\r\n")].decode(errors="replace").strip()
    code, _, description = first.partition(" ")
    return code, description
