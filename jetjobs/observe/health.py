"""Serve the health checks /livez and /readyz, and /metrics, from a thread that a blocked loop cannot stop."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from jetjobs.model.errors import ConfigError

BLOCKED_AFTER_S = 30.0
LISTENING = "JETJOBS_CHILD_PORT"
"""Environment variable with the file descriptor of the socket that a child process listens on."""

_log = logging.getLogger("jetjobs.health")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a client that disconnects mid-request at debug level. The default prints a traceback."""
        _log.debug("an HTTP request failed", exc_info=True, extra={"event": "http.failed"})


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Do not log requests: probes come every few seconds."""


class Health:
    """The HTTP port of a worker or of several worker processes. Each request calls the given callables."""

    def __init__(
        self, registry: CollectorRegistry, problem: Callable[[], str], silent_s: Callable[[], float]
    ) -> None:
        """`problem` returns why the worker is not ready, or an empty text. `silent_s` returns for how many seconds
        the event loop has not run."""
        self._metrics = make_wsgi_app(registry)
        self._problem = problem
        self._silent_s = silent_s
        self._server: WSGIServer | None = None

    def start(self, address: str) -> str:
        """Serve on HOST:PORT. Returns the address in use, which differs for port 0."""
        host, _, port = address.rpartition(":")
        try:
            if int(port) > 65535:
                raise ValueError("the highest port is 65535")
            listening = socket.create_server((host or "127.0.0.1", int(port)))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot serve HTTP on {address!r}: {error}", hint="use --http HOST:PORT or --http off"
            ) from error
        self.start_on(listening)
        return "{}:{}".format(*listening.getsockname())

    def start_on(self, listening: socket.socket) -> None:
        """Serve on a listening socket that the supervisor passed on."""
        listening.set_inheritable(False)  # processes that tasks start must not inherit it
        server = _Server(listening.getsockname(), _SilentHandler, bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        server.server_name, server.server_port = listening.getsockname()
        server.setup_environ()
        server.set_app(self._respond)
        self._server = server
        threading.Thread(target=server.serve_forever, name="jetjobs-http", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _respond(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        if path == "/livez":
            silent = self._silent_s()
            return _plain_text(start_response, silent < BLOCKED_AFTER_S, f"event loop ticked {silent:.1f} s ago")
        if path == "/readyz":
            problem = self._problem()
            return _plain_text(start_response, not problem, f"not ready: {problem}" if problem else "ready")
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"not found; use /livez, /readyz or /metrics\n"]


def metrics_page(registry: CollectorRegistry) -> tuple[str, bytes]:
    """Media type and content of /metrics, for another server than this one."""
    return CONTENT_TYPE_LATEST, generate_latest(registry)


class JoinedPages:
    """The metrics of several processes on one page, each sample with the number of its process. ADR 33."""

    def __init__(self, pages: Callable[[], Iterable[tuple[int, str]]]) -> None:
        self._pages = pages
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterable[Metric]:
        joined: dict[str, Metric] = {}
        for process, text in self._pages():
            for family in text_string_to_metric_families(text):
                whole = joined.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    whole.add_sample(sample.name, {**sample.labels, "process": str(process)}, sample.value)
        return joined.values()


def _plain_text(start_response: Any, healthy: bool, text: str) -> Iterable[bytes]:
    start_response("200 OK" if healthy else "503 Service Unavailable", [("Content-Type", "text/plain")])
    return [f"{text}\n".encode()]
