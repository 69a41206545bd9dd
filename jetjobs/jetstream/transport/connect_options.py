"""How to connect: the options that nats-py gets, made from the settings."""

from __future__ import annotations

from typing import Any

from nats.aio.client import Server

from jetjobs.jetstream.transport.backoff import backoff_s
from jetjobs.jetstream.transport.credentials import key_login, tls_context
from jetjobs.model.settings import NatsSettings


def connect_options(settings: NatsSettings, limit_s: float) -> dict[str, Any]:
    """Everything but the callbacks and the name of the client. One try to connect takes at most `limit_s`.

    ConfigError if a file that the settings name cannot be used; `SecureClient` reads them for each connection.
    """
    key_login(settings)
    if settings.tls_ca or settings.tls_cert:
        tls_context(settings)
    return {
        "servers": [url.strip() for url in settings.url.split(",")],
        "max_reconnect_attempts": -1,
        "reconnect_to_server_handler": _next_server,
        # A dead peer is detected after at most three intervals, which is within 30 s.
        "ping_interval": 9,
        "max_outstanding_pings": 2,
        "connect_timeout": limit_s,
        "reconnect_time_wait": 0.2,
        "pending_size": 8 * 1024 * 1024,
        "inbox_prefix": settings.inbox_prefix,
        "user": settings.user,
        "password": settings.password.get_secret_value() if settings.password else None,
        "token": settings.token.get_secret_value() if settings.token else None,
        "tls_hostname": settings.tls_hostname,
        "tls_handshake_first": settings.tls_first,
    }


def _next_server(servers: list[Server], info: dict[str, Any]) -> tuple[Server | None, float]:
    """The server with the fewest tries, after a pause that grows with them."""
    server = min(servers, key=lambda s: s.reconnects)
    return server, backoff_s(server.reconnects + 1, most_s=2.0)
