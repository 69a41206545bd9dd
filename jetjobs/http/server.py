"""`jetjobs http`: serve the API on one address, with health and metrics, until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any

import h11
import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from jetjobs.app import JetJobs
from jetjobs.http.access import LoopbackAccess, TokenAccess
from jetjobs.http.application import Application
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import HttpSettings
from jetjobs.model.views.access import READ
from jetjobs.observe.health import metrics_page

_log = logging.getLogger("jetjobs.http")
MAX_HEADERS = 64 * 1024
"""Bytes of the request line and headers."""
HEADERS_S = 30.0
"""How long a client may take to send them."""


class Server(uvicorn.Server):
    """Serves the API of an open app. `stop` ends it after the requests in progress."""

    def __init__(self, app: JetJobs, *, root_path: str = "") -> None:
        settings = app.settings.http
        self._socket = listen(settings)
        self._app = app
        host, port = self._socket.getsockname()[:2]
        self.url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._loopback = ip_address(host).is_loopback
        access = LoopbackAccess if self._loopback and not settings.require_token else TokenAccess
        registry = app.metrics().registry

        async def metrics(request: Request) -> Response:
            await self.application.access(request, READ)
            media_type, page = metrics_page(registry)
            return Response(page, headers={"Content-Type": media_type})

        extra = [Route("/livez", _live), Route("/readyz", self._ready), Route("/metrics", metrics)]
        self.application = Application(app, access(app), extra=extra)
        super().__init__(
            uvicorn.Config(
                self.application,
                http=_Protocol,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                root_path=root_path.rstrip("/"),
                h11_max_incomplete_event_size=MAX_HEADERS,
                timeout_graceful_shutdown=int(app.settings.worker.stop_timeout.total_seconds()),
            )
        )

    async def run_until_stopped(self) -> None:
        """Serve until `stop` is called, and then until the requests in progress are answered.

        ConfigError if other machines reach it and no token exists.
        """
        try:
            if not self._loopback and not await self._app.tokens.list():
                hint = "create one with `jetjobs http token new --name NAME --may SCOPES`, or listen on 127.0.0.1"
                raise ConfigError(f"requests to {self.url} need a token, and none exists", hint=hint)
            await self.serve([self._socket])
        finally:
            self._socket.close()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        _log.info(f"serving {self.url}", extra={"event": "http.ready", "url": self.url})

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The caller handles signals: uvicorn would end the process with the signal, not with exit code 0."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.application.services.stop()
        await super().shutdown(sockets)

    async def _ready(self, request: Request) -> Response:
        if self._app.jetstream.connection.connected:
            return PlainTextResponse("ready\n")
        text = "not ready: not connected to the NATS server\n"
        return PlainTextResponse(text, HTTPStatus.SERVICE_UNAVAILABLE)


async def _live(request: Request) -> Response:
    return PlainTextResponse("the event loop runs\n")


def listen(settings: HttpSettings) -> socket.socket:
    """A socket that listens on host and port. ConfigError if that is not possible."""
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = found[0]
        return socket.create_server(address, family=family, backlog=2048)
    except OSError as error:
        where = f"{settings.host}:{settings.port}"
        hint = "choose another address with --host and --port"
        raise ConfigError(f"cannot serve HTTP on {where}: {error.strerror or error}", hint=hint) from error


class _Protocol(H11Protocol):
    """Closes connections of clients that do not complete the headers of a request in time."""

    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._slow is None:
            self._slow = self.loop.call_later(HEADERS_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None
