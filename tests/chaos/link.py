"""The network link of one process: a TCP proxy in front of each server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator, Callable

from tests.support.proxy import Proxy

_CONFIRMATION = re.compile(rb'MSG \S+ \d+ \d+\r\n\{"stream":"jobs-work-[^\r]*\}\r\n')


class Link:
    """All connections of one process. A part of it, the way to one node, can fail alone."""

    def __init__(self, targets: list[str]) -> None:
        self.ways = [Proxy(target) for target in targets]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Link]:
        async with contextlib.AsyncExitStack() as stack:
            for way in self.ways:
                await stack.enter_async_context(way.running())
            yield self

    @property
    def url(self) -> str:
        return ",".join(way.url for way in self.ways)

    def delay(self, both_ways: Callable[[], float], answers: Callable[[], float] = lambda: 0.0) -> None:
        """Set the latency of each way, and what is added to it for what the server sends."""
        for way in self.ways:
            way.delay, way.answer_delay = both_ways, answers

    def lose_confirmations(self) -> None:
        """Drop the answers to publishes into work streams. To the sender that is an answer that comes too late,
        while all other answers, those to heartbeats among them, arrive."""
        for way in self.ways:
            way.to_client = _without_confirmations

    def cut(self) -> None:
        for way in self.ways:
            way.cut()

    def hold(self) -> None:
        for way in self.ways:
            way.hold()

    def resume(self) -> None:
        for way in self.ways:
            way.resume()

    def heal(self) -> None:
        self.delay(lambda: 0.0)
        self.resume()
        for way in self.ways:
            way.pass_on()


def _without_confirmations(data: bytes) -> bytes:
    return _CONFIRMATION.sub(b"", data)
