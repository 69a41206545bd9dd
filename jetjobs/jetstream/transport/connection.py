"""One connection to NATS: connect, send requests, reconnect indefinitely, report each outage once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

import nats.errors

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connect_options import connect_options
from jetjobs.jetstream.transport.denials import Denials, read_violation
from jetjobs.jetstream.transport.errors import from_exception, from_response, is_transient
from jetjobs.jetstream.transport.nats_client import frame
from jetjobs.jetstream.transport.refusals import no_server, refusal
from jetjobs.jetstream.transport.requests import PendingRequests
from jetjobs.jetstream.transport.secure_client import SecureClient
from jetjobs.model.errors import AccessDenied, BrokerError, BrokerUnavailable, JetJobsError, UnsupportedServer
from jetjobs.model.events import ConnectionLost, ConnectionRestored, Observer
from jetjobs.model.settings import NatsSettings, show_url

HEADER_ROOM = 64 * 1024
"""Reserved below `max_payload` for the headers that later moves of a job add. ADR 2."""

MIN_VERSION = (2, 14)  # ADR 23
_NO_JETSTREAM_S = 1.5
"""A restart takes less than this. After it, an API that does not respond means that JetStream is off."""


class Connection:
    """A NATS client and its pending requests. A denied request fails at once."""

    def __init__(self, settings: NatsSettings, name: str, observe: Observer) -> None:
        self._settings = settings
        self._name = name
        self._observe = observe
        self.nc = SecureClient(settings)
        self.denials = Denials(self.nc, settings.inbox_prefix, observe, self._call_back)
        self.pending = PendingRequests(self.denials.inbox_error)
        self.closed = asyncio.Event()
        """Set when the connection will not come back: the server ended it, or we closed it."""
        self._loop: asyncio.AbstractEventLoop
        self._lost_at = 0.0
        self._on_disconnect: list[Callable[[], None]] = []
        self._on_reconnect: list[Callable[[], None]] = []
        self._last_error: BaseException | None = None
        self._refusal: JetJobsError | None = None
        self._refusal_reported = False
        self._refused: asyncio.Future[None] | None = None
        """Of a connection that is being opened: done when no server will accept it."""

    # Life

    async def open(self) -> None:
        """Connect and check the version. BrokerUnavailable, AccessDenied or UnsupportedServer within seconds, and
        ConfigError if a file that the settings name cannot be used."""
        limit = self._settings.connect_timeout.total_seconds()
        self._loop = asyncio.get_running_loop()
        self._refused = asyncio.get_running_loop().create_future()
        self.nc.before_connect = self._disconnected
        connecting = asyncio.ensure_future(self.nc.connect(**self._options(limit)))
        try:
            both: set[asyncio.Future[Any]] = {connecting, self._refused}
            await asyncio.wait(both, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                raise self._connect_error(limit)
            connecting.result()
        except (TimeoutError, nats.errors.Error, OSError, ValueError) as error:
            raise from_exception(error, f"cannot connect to {show_url(self._settings.url)}") from error
        finally:
            if not connecting.done():
                connecting.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await connecting
                await self.nc.close()
        await self._check_version()
        self._refused = self._refusal = None
        self.pending.open(self.nc.new_inbox())
        await self.nc.listen(self.pending.prefix + "*", self.pending.on_reply)
        try:
            await self.nc.flush(limit)  # the answer follows the refusal of the inbox, if there is one
        except nats.errors.Error as error:
            await self.close()
            raise from_exception(error, f"connect to {show_url(self._settings.url)}") from error
        if (denied := self.denials.inbox_error()) is not None:
            await self.close()
            raise denied

    async def close(self) -> None:
        """Flush the buffer and close. Pending requests fail."""
        self.denials.close()
        self.pending.close()
        with contextlib.suppress(nats.errors.Error, OSError, RuntimeError, asyncio.TimeoutError):
            if self.nc.is_connected:
                await self.nc.flush(2)
        # uvloop raises RuntimeError when a transport is closed with unsent data.
        with contextlib.suppress(nats.errors.Error, OSError, RuntimeError):
            await self.nc.close()
        self.closed.set()
        self.pending.fail_all(BrokerUnavailable("the connection is closed"))

    async def _check_version(self) -> None:
        problem = "has no readable version"
        with contextlib.suppress(ValueError):
            found = self.nc.connected_server_version
            if (found.major, found.minor) >= MIN_VERSION:
                return
            problem = "is too old"
        reported = self.nc._server_info.get("version", "")
        await self.nc.close()
        raise UnsupportedServer(
            f"nats-server {reported} {problem}: jetjobs needs {MIN_VERSION[0]}.{MIN_VERSION[1]} or newer",
            hint="use 2.14.5, 2.15.1 or a newer release",
        )

    def _options(self, limit: float) -> dict[str, Any]:
        return {
            **connect_options(self._settings, limit),
            "name": self._name,
            "error_cb": self._on_error,
            "disconnected_cb": self._on_disconnected,
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

    def _connect_error(self, limit: float) -> JetJobsError:
        reason = _plain(self._last_error) if self._last_error else ""
        return self._refusal or no_server(self._settings, limit, reason)

    # Requests

    @property
    def connected(self) -> bool:
        return self.nc.is_connected

    @property
    def reconnects(self) -> int:
        """How often the connection was made again. What was read before may not be true of the server since."""
        return int(self.nc.stats["reconnects"])

    @property
    def max_payload(self) -> int:
        return self.nc.max_payload

    @property
    def inline_limit(self) -> int:
        """The largest size of headers and body that a producer may send, so that later moves fit."""
        limit = self.nc.max_payload
        return max(limit - HEADER_ROOM, limit // 2)

    async def ask(
        self,
        subject: str,
        payload: bytes = b"",
        headers: dict[str, str] | bytes | None = None,
        timeout_s: float = 2.0,
    ) -> bytes:
        """Send a request and return its answer. AccessDenied or BrokerUnavailable, code 503 without responders."""
        # Not asyncio.get_running_loop(): before Python 3.12 each call makes a system call.
        future: asyncio.Future[bytes] = self._loop.create_future()
        name = self.pending.expect(future, subject, timeout_s)
        try:
            self.nc.write(frame(subject, payload, self.pending.prefix + name, headers))
            return await future
        except nats.errors.Error as error:
            raise from_exception(error, subject) from error
        except ValueError as error:  # the subject contains text that others wrote
            raise BrokerError(f"not sent: {error}") from error
        finally:
            self.pending.forget(name)

    def check_loop(self) -> None:
        """JetJobsError on another event loop than the one it was opened on, where a request would never return."""
        if asyncio.get_running_loop() is not self._loop:
            raise JetJobsError(
                "the app was opened on another event loop", hint="open it where it is used: `async with app:`"
            )

    async def send_frames(self, frames: list[bytes]) -> None:
        """Write prepared frames. BrokerUnavailable when that is not possible now."""
        try:
            self.nc.write(b"".join(frames))
            await self.nc.wait_for_buffer()
        except nats.errors.Error as error:
            raise from_exception(error, "publish") from error

    def post(self, subject: str, payload: bytes, reply: str = "", headers: dict[str, str] | None = None) -> bool:
        """Publish without waiting for an answer: the message may be lost. False when it was not written."""
        try:
            self.nc.write(frame(subject, payload, reply, headers))
        except (nats.errors.Error, ValueError):
            return False
        return True

    async def api(
        self,
        subject: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = 5.0,
        try_s: float | None = None,
        reconnects: int | None = None,
    ) -> dict[str, Any]:
        """Call the JetStream API; repeat the call until it is answered or time is up. All calls are idempotent.

        `try_s` is the time limit of one try: a cluster that elects a leader does not answer. A call that names a
        sequence is idempotent only on one store: with `reconnects`, the number of reconnects when the sequence
        was read, it is not sent on a later connection. BrokerError when the server refuses the call.
        """
        one_s = timeout_s if try_s is None else try_s
        payload = json.dumps(body).encode() if body else b""
        started = time.monotonic()
        while True:
            if reconnects is not None and reconnects != self.reconnects:
                raise BrokerUnavailable(
                    "the connection was lost: the outcome is unknown", hint="repeat the request"
                )
            try:
                answer: dict[str, Any] = json.loads(await self.ask(subject, payload, None, one_s))
                refusal = from_response(answer, subject.removeprefix(api.PREFIX))
                if refusal is None:
                    return answer
            except BrokerUnavailable as error:
                refusal = error
            waited = time.monotonic() - started
            if refusal.code == 503 and waited > _NO_JETSTREAM_S:
                raise UnsupportedServer(
                    "JetStream is not enabled on the server or for this account",
                    hint="start nats-server with -js, or enable JetStream for the account",
                ) from refusal
            if not is_transient(refusal) or waited > timeout_s or self.closed.is_set():
                raise refusal
            await asyncio.sleep(0.1)

    @property
    def clustered(self) -> bool:
        """Whether the server names a cluster. How many servers it has is not known: they may be down, or hidden by
        `no_advertise`."""
        return bool(self.nc._server_info.get("cluster"))

    @property
    def version(self) -> str:
        found = self.nc.connected_server_version
        return f"{found.major}.{found.minor}.{found.patch}"

    def on_disconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at each loss of the connection, before anything can be sent on the next one. It may be
        called several times. Call the returned function to stop that."""
        self._on_disconnect.append(callback)
        return lambda: self._on_disconnect.remove(callback)

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when messages may have been missed: after each reconnect, and when the server accepts a
        subscription that it had refused. Call the returned function to stop that."""
        self._on_reconnect.append(callback)
        return lambda: self._on_reconnect.remove(callback)

    # Called by nats-py

    async def _on_error(self, error: Exception) -> None:
        self._last_error = error
        text = str(error)
        if self._refused is not None or self._lost_at:
            self._note_refusal(error)
        violation = read_violation(text)
        if violation is None:
            return
        if violation.verb == "publish":
            self.pending.fail(violation.subject, violation.error())
        self.denials.add(violation)
        if (unreachable := self.denials.inbox_error()) is not None:
            self.pending.fail_all(unreachable)

    def _disconnected(self) -> None:
        for callback in list(self._on_disconnect):
            callback()

    def _note_refusal(self, error: Exception) -> None:
        """End `open`, or report once why the outage does not end by itself."""
        found, before = refusal(error, self._settings, self.nc.greeting, self.nc.where), self._refusal
        if self._refused is not None:
            self._refusal = found or before
            if found and not self._refused.done() and (isinstance(found, AccessDenied) or self.nc.tried_all):
                self._refused.set_result(None)
            return
        self._refusal = found
        if found and before and not self._refusal_reported:  # twice: a server that stops closes connections too
            self._refusal_reported = True
            self._observe(ConnectionLost(str(found)))

    async def _on_disconnected(self) -> None:
        self.denials.forget()
        self._disconnected()
        if not self._lost_at and not self.nc.is_closed:
            self._lost_at = time.monotonic()
            self._observe(ConnectionLost(_plain(self._last_error) if self._last_error else "connection closed"))

    async def _on_reconnected(self) -> None:
        outage, self._lost_at = time.monotonic() - self._lost_at, 0.0
        self._refusal, self._refusal_reported = None, False
        self._observe(ConnectionRestored(round(outage, 3), self.nc.where))
        # Data written to the old socket is lost. Callers repeat their request under the same message id.
        self.pending.fail_all(BrokerUnavailable("the connection was lost"))
        self._call_back()

    def _call_back(self) -> None:
        for callback in list(self._on_reconnect):
            callback()

    async def _on_closed(self) -> None:
        self.closed.set()
        self.pending.fail_all(BrokerUnavailable(f"the connection is closed: {_plain(self._last_error)}"))


def _plain(error: BaseException | None) -> str:
    return (str(error) or type(error).__name__).removeprefix("nats: ").strip("'") if error else "unknown"
