"""A TCP proxy in front of a real server that can drop, change, delay, hold or cut the traffic."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable

Edit = Callable[[bytes], bytes]


class Frames:
    """An edit for `to_server` that acts on the first `times` frames published to a subject.

    On loopback, one flush writes a complete frame, so frames are searched for within a chunk.
    """

    def __init__(self, subject: str, body: str, act: Callable[[], bool], times: int = 1) -> None:
        """`subject` and `body` are patterns. The frame is dropped when `act` returns True."""
        pattern = rf"H?PUB {subject}(?: [^\r]*)?\r\n{body}\r\n"
        self._pattern = re.compile(pattern.encode(), re.DOTALL)
        self._act = act
        self._left = times
        self.seen: list[bytes] = []

    def __call__(self, data: bytes) -> bytes:
        while self._left and (found := self._pattern.search(data)):
            self._left -= 1
            self.seen.append(found[0])
            if not self._act():
                return data
            data = data[: found.start()] + data[found.end() :]
        return data


class LostAnswers:
    """Loses the first answer to each publish on a subject, for up to `times` subjects.

    The publish itself is stored. To its sender this is the same as an answer that arrives too late.
    """

    def __init__(self, proxy: Proxy, subject: str, times: int = 1) -> None:
        """`subject` is a pattern."""
        self._published = re.compile(rf"PUB ({subject}) (\S+) \d+(?: \d+)?\r\n".encode())
        self._left = times
        self._awaited: dict[bytes, bytes] = {}
        self.subjects: set[bytes] = set()
        """Where an answer was lost."""
        proxy.to_server, proxy.to_client = self._to_server, self._to_client

    def _to_server(self, data: bytes) -> bytes:
        for subject, reply in self._published.findall(data):
            if self._left and subject not in self._awaited.values():
                self._left -= 1
                self._awaited[reply] = subject
        return data

    def _to_client(self, data: bytes) -> bytes:
        for reply, subject in self._awaited.items():
            answer = re.compile(rb"MSG " + re.escape(reply) + rb" \d+ \d+\r\n[^\r]*\r\n")
            data, lost = answer.subn(b"", data)
            if lost:
                self.subjects.add(subject)
        return data


class Unheard:
    """An edit for `to_client` that drops all messages on a subject. `subject` is a pattern."""

    def __init__(self, subject: str) -> None:
        self._delivered = re.compile(rf"H?MSG {subject} [^\r]*?(\d+)\r\n".encode())
        self.dropped = 0

    def __call__(self, data: bytes) -> bytes:
        while found := self._delivered.search(data):
            self.dropped += 1
            data = data[: found.start()] + data[found.end() + int(found[1]) + 2 :]
        return data


class Proxy:
    """`to_client` and `to_server` edit each chunk; an edit that returns b"" drops it.

    `delay` returns the latency of each chunk in seconds, `answer_delay` what is added to it on the way to the
    client; chunks stay in order.
    """

    def __init__(self, target: str) -> None:
        host, port = target.removeprefix("nats://").split(":")
        self._target = (host, int(port))
        self.to_client: Edit = lambda data: data
        self.to_server: Edit = lambda data: data
        self.delay: Callable[[], float] = lambda: 0.0
        self.bytes_per_s = 0.0
        """Unless 0, how fast either side is read. What is not read waits at the sender."""
        self.answer_delay: Callable[[], float] = lambda: 0.0
        self._open = asyncio.Event()
        self._open.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Proxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            self.cut()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection, as a failing network would."""
        for writer in list(self._writers):
            writer.transport.abort()

    def hold(self) -> None:
        """Hold all traffic, including the close of a side. New connections are accepted and receive nothing."""
        self._open.clear()

    def resume(self) -> None:
        """Deliver the held traffic late, as TCP does when packets get through again."""
        self._open.set()

    def swallow(self) -> None:
        """Drop all traffic without closing connections, as a broken network does."""
        self.to_client = self.to_server = lambda data: b""

    def pass_on(self) -> None:
        """Pass all traffic unchanged."""
        self.to_client = self.to_server = lambda data: data

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, upstream_writer}
        ways = (
            self._pump(reader, upstream_writer, lambda data: self.to_server(data), lambda: self.delay()),
            self._pump(upstream_reader, writer, lambda data: self.to_client(data), self._answer_latency),
        )
        for way in ways:
            task = asyncio.create_task(way)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _answer_latency(self) -> float:
        return self.delay() + self.answer_delay()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, edit: Edit, latency: Callable[[], float]
    ) -> None:
        """Read immediately and write when due: a delay must not reduce the throughput."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        writing = asyncio.create_task(self._write(under_way, writer, edit))
        loop = asyncio.get_running_loop()
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(65536):
                    under_way.put_nowait((loop.time() + latency(), data))
                    if self.bytes_per_s:
                        await asyncio.sleep(len(data) / self.bytes_per_s)
            under_way.put_nowait((0.0, b""))
            await writing
        finally:
            writing.cancel()
            self._writers.discard(writer)
            writer.transport.abort()

    async def _write(
        self, under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, edit: Edit
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, data = await under_way.get()
            if (wait := due - loop.time()) > 0:
                await asyncio.sleep(wait)
            await self._open.wait()
            if not data:
                return
            if passed := edit(data):
                try:
                    writer.write(passed)
                    await writer.drain()
                except OSError:
                    return
