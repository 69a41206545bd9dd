"""Requests that wait for an answer: one reply inbox and one sweep for timeouts serve all of them.

The `request` of nats-py creates a timer for every call, and a denied request fails only when it times out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import NamedTuple

from jetjobs.jetstream.transport.nats_client import read_status
from jetjobs.model.errors import BrokerError, BrokerUnavailable

_SWEEP_S = 0.25


class _Waiting(NamedTuple):
    future: asyncio.Future[bytes]
    subject: str
    expires_at: float


class PendingRequests:
    """The requests of one connection. `inbox_error` returns why no reply can arrive, or None."""

    def __init__(self, inbox_error: Callable[[], BrokerError | None]) -> None:
        self._inbox_error = inbox_error
        self._loop: asyncio.AbstractEventLoop
        self._waiting: dict[str, _Waiting] = {}
        self._token = 0
        self._sweeper: asyncio.TimerHandle | None = None
        self.prefix = ""
        """Of the reply subjects. The name of a request follows it."""

    def open(self, inbox: str) -> None:
        self._loop = asyncio.get_running_loop()
        self.prefix = inbox + "."

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()

    def expect(self, future: asyncio.Future[bytes], subject: str, timeout_s: float) -> str:
        """Fail the future when a request to `subject` is denied, the connection is lost or time is up, until
        `forget` is called with the returned name."""
        self._token += 1
        name = str(self._token)
        self._waiting[name] = _Waiting(future, subject, time.monotonic() + timeout_s)
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        return name

    def forget(self, name: str) -> None:
        self._waiting.pop(name, None)

    def on_reply(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        """The sink of the reply inbox."""
        waiting = self._waiting.get(subject[len(self.prefix) :])
        if waiting is None or waiting.future.done():
            return
        if headers is not None and not data and read_status(headers)[0] == "503":
            waiting.future.set_exception(BrokerUnavailable(f"{waiting.subject}: no responders", code=503))
        else:
            waiting.future.set_result(data)

    def fail(self, subject: str, error: BrokerError) -> None:
        """Fail the requests to `subject`."""
        for waiting in list(self._waiting.values()):
            if waiting.subject == subject and not waiting.future.done():
                waiting.future.set_exception(error)

    def fail_all(self, error: BrokerError) -> None:
        for waiting in list(self._waiting.values()):
            if not waiting.future.done():
                waiting.future.set_exception(error)

    def _sweep(self) -> None:
        now = time.monotonic()
        for waiting in list(self._waiting.values()):
            if waiting.expires_at <= now and not waiting.future.done():
                lost = BrokerUnavailable(f"{waiting.subject}: no answer")
                waiting.future.set_exception(self._inbox_error() or lost)
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep) if self._waiting else None
