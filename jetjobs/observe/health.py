"""/livez, /readyz and /metrics from a thread, so that a blocked event loop is seen and not hidden."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, make_wsgi_app

from jetjobs.model.errors import ConfigError

BLOCKED_AFTER_S = 30.0
LISTENING = "JETJOBS_CHILD_PORT"
"""Variable that tells one of several processes the descriptor of the socket it listens on."""

_log = logging.getLogger("jetjobs.health")


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone in the middle of its request is no news. By default it is a traceback."""
        _log.debug("a request failed", exc_info=True, extra={"event": "http.failed"})


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; they are not news."""


class Health:
    """The HTTP port of a worker, or of all its processes. All it says is asked of callables at each request."""

    def __init__(
        self, registry: CollectorRegistry, ready: Callable[[], bool], silent_s: Callable[[], float]
    ) -> None:
        """`silent_s` says how long the event loop has not turned."""
        self._metrics = make_wsgi_app(registry)
        self._ready = ready
        self._silent_s = silent_s
        self._server: WSGIServer | None = None

    def start(self, address: str) -> str:
        """Serve on HOST:PORT; the address in use is returned, for port 0."""
        host, _, port = address.rpartition(":")
        try:
            if int(port) > 65535:
                raise ValueError("a port is at most 65535")
            listening = socket.create_server((host or "127.0.0.1", int(port)))
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"cannot serve HTTP on {address!r}: {error}", hint="--http HOST:PORT, or off"
            ) from error
        self.start_on(listening)
        return "{}:{}".format(*listening.getsockname())

    def start_on(self, listening: socket.socket) -> None:
        """Serve on a socket that listens already: the one that a supervisor has left us."""
        listening.set_inheritable(False)  # not for processes that tasks start
        server = _Server(listening.getsockname(), _Quiet, bind_and_activate=False)
        server.socket.close()
        server.socket = listening
        server.server_name, server.server_port = listening.getsockname()
        server.setup_environ()
        server.set_app(self._answer)
        self._server = server
        threading.Thread(target=server.serve_forever, name="jetjobs-http", daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            page: Iterable[bytes] = self._metrics(environ, start_response)
            return page
        if path == "/livez":
            silent = self._silent_s()
            return _plain(start_response, silent < BLOCKED_AFTER_S, f"event loop ticked {silent:.1f} s ago")
        if path == "/readyz":
            ready = self._ready()
            return _plain(start_response, ready, "ready" if ready else "not ready")
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [b"there is /livez, /readyz and /metrics\n"]


def _plain(start_response: Any, good: bool, text: str) -> Iterable[bytes]:
    start_response("200 OK" if good else "503 Service Unavailable", [("Content-Type", "text/plain")])
    return [f"{text}\n".encode()]
