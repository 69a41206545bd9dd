"""The client that checks a server before it logs in. ADR 45.

nats-py starts TLS only if the greeting of the server asks for it, and anyone on the way can change that greeting.
Here a server without TLS is refused if the settings require TLS, at every reconnect too.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from typing import Any
from urllib.parse import ParseResult

from nats.aio.client import DEFAULT_BUFFER_SIZE, Srv
from nats.aio.transport import TcpTransport
from nats.errors import UnexpectedEOF

from jetjobs.jetstream.transport.credentials import key_login, tls_context
from jetjobs.jetstream.transport.nats_client import FastClient
from jetjobs.jetstream.transport.refusals import PLAIN_DATA, ConnectionRefused, no_client_certificate, no_tls
from jetjobs.model.errors import ConfigError
from jetjobs.model.settings import NatsSettings, requires_tls, show_url

CLOSE_S = 1.0
"""A network that drops everything does not confirm the end of TLS. Without a limit, a reconnect waits 30 s."""


class _Transport(TcpTransport):
    """One socket. It knows whether it is encrypted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.encrypted = False
        self.peer_host = ""

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        await super().connect(uri, buffer_size, connect_timeout)
        assert self._io_writer is not None
        name = self._io_writer.get_extra_info("peername")
        self.peer_host = str(name[0]) if isinstance(name, tuple) else ""

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        reader, plain = self._io_reader, self._io_writer
        assert plain is not None
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
            if getattr(reader, "_buffer", b""):
                raise ssl.SSLError(1, PLAIN_DATA)  # with `tls_first`: the greeting, which does not come again
        except BaseException:
            # asyncio never reports to the plain writer that it is closed: waiting for that would not end.
            for writer in (self._io_writer or plain, plain):
                writer.transport.abort()
            self._io_reader = self._io_writer = None
            raise
        self.encrypted = True
        # Without it, asyncio logs a warning when the server closes the connection.
        self._io_writer._protocol._over_ssl = True  # type: ignore[union-attr]

    async def wait_closed(self) -> None:
        writer = self._io_writer
        try:
            async with asyncio.timeout(CLOSE_S):
                await super().wait_closed()  # type: ignore[no-untyped-call]
        except TimeoutError:
            if writer is not None:
                writer.transport.abort()


class SecureClient(FastClient):
    """Drop-in for `nats.aio.client.Client`, for one group of settings."""

    def __init__(self, settings: NatsSettings) -> None:
        super().__init__()
        self._settings = settings
        self._requires_tls = requires_tls(settings)
        self.greeting: dict[str, Any] = {}
        """What the server sent at the start of the current connection or try."""

    @property
    def where(self) -> str:
        """The URL of the current server, without login."""
        server = self._current_server
        return show_url(self._settings.url if server is None else server.uri.geturl())

    @property
    def encrypted(self) -> bool:
        """Whether the current socket uses TLS. `_using_tls` is that of a WebSocket."""
        transport = self._transport
        return (
            transport.encrypted if isinstance(transport, _Transport) else bool(getattr(transport, "_using_tls", 0))
        )

    @property
    def peer_host(self) -> str:
        """The address of the server; empty if it is unknown."""
        return self._transport.peer_host if isinstance(self._transport, _Transport) else ""

    @property
    def tried_all(self) -> bool:
        """Whether a try failed with every server but the current one."""
        return all(server.reconnects for server in self._server_pool if server is not self._current_server)

    # Called by nats-py

    @property
    def ssl_context(self) -> ssl.SSLContext:
        try:
            return tls_context(self._settings)
        except ConfigError as error:
            raise ConnectionRefused(error) from error

    async def _connect_to_server(self, s: Srv) -> None:
        self.greeting = {}
        if s.uri.scheme in ("ws", "wss"):
            await super()._connect_to_server(s)
            return
        if self._transport is not None:
            self._transport.close()  # type: ignore[no-untyped-call]
        s.last_attempt = time.monotonic()
        self._transport = _Transport()
        await self._transport.connect(s.uri, DEFAULT_BUFFER_SIZE, self.options["connect_timeout"])

    # With the greeting of each new connection, and when the cluster changes.
    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        if initial_connection:
            self.greeting = info
            self._check_greeting(info)
        await super()._process_info(info, initial_connection)
        # nats-py lets servers that are known by their address have the certificate of the server that named them.
        # That is right for a host name. The address of another server is in none of their certificates.
        assert self._current_server is not None
        for server in self._server_pool:
            if self._host_is_ip(server.tls_name):
                server.tls_name = self._current_server.tls_name

    def _check_greeting(self, info: dict[str, Any]) -> None:
        if self._requires_tls and info.get("tls_available"):
            info["tls_required"] = True  # nats-py does not start TLS if the server only offers it
        # A server that also allows clients without TLS wants a certificate only from the others.
        if info.get("tls_verify") and info.get("tls_required") and not self._settings.tls_cert:
            self._refuse(no_client_certificate(self.where))

    def _refuse(self, error: ConnectionRefused) -> None:
        assert self._transport is not None
        self._transport.close()  # type: ignore[no-untyped-call] # nats-py leaves it open at a reconnect
        raise error

    # Immediately before it is written. Nothing has been sent in clear before.
    def _connect_command(self) -> bytes:
        if self._requires_tls and not self.encrypted:
            self._refuse(no_tls(self.where))
        try:
            login = key_login(self._settings)
        except ConfigError as error:
            self._refuse(ConnectionRefused(error))
            raise
        if login is not None:
            self._signature_cb, self._public_nkey = login.sign, login.public_key
            self._user_jwt_cb = None if login.jwt is None else login.jwt.encode
        return super()._connect_command()

    async def _process_connect_init(self) -> None:
        await super()._process_connect_init()
        if not self.is_connected:
            # The server closed the connection instead of answering, and nats-py does not notice that.
            for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
                if task is not None:
                    task.cancel()
            raise UnexpectedEOF

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if self._requires_tls and not self.encrypted:
            # nats-py writes what is buffered to the socket, which may not be encrypted yet.
            self._pending, self._pending_data_size = [], 0
        await super()._close(status, do_cbs)
