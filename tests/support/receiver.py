"""A receiver of webhooks on loopback that verifies every delivery with the package `standardwebhooks`."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from standardwebhooks.webhooks import Webhook, WebhookVerificationError


def new_key(letter: str = "k") -> str:
    """A valid key of one repeated letter."""
    return "whsec_" + base64.b64encode(letter.encode() * 32).decode()


class Delivery(NamedTuple):
    """One request, verified."""

    id: str
    timestamp: int
    path: str
    headers: dict[str, str]
    message: dict[str, Any]

    @property
    def type(self) -> str:
        return str(self.message["type"])

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = self.message["data"]
        return data


class Reply(NamedTuple):
    """What the receiver answers."""

    status: int = 204
    headers: Mapping[str, str] = {}
    body: bytes = b""


Answering = Callable[[Delivery], Reply]


class Receiver:
    """Records deliveries. Restarts on the same port, and `answer` may be replaced at any time."""

    def __init__(self, key: str, answer: Answering | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.webhook = Webhook(key)
        self.answer: Answering = answer or (lambda delivery: Reply())
        self.deliveries: list[Delivery] = []
        self.unverified: list[str] = []
        self.connections = 0
        self._accepted: dict[str, Delivery] = {}
        self._lock = threading.Lock()
        self._tls = tls
        self._server: ThreadingHTTPServer | None = None
        self._port = 0

    @property
    def port(self) -> int:
        return self._port

    def url(self, path: str = "/", host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self._port}{path}"

    def accepted(self) -> dict[str, Delivery]:
        """The first delivery of each id that was answered with success."""
        with self._lock:
            return dict(self._accepted)

    def start(self) -> Self:
        receiver = self

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def verify_request(self, request: Any, client_address: Any) -> bool:
                receiver.connections += 1
                return True

            def handle_error(self, request: Any, client_address: Any) -> None:
                return  # clients that time out break their connections

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                reply = receiver._receive(self.path, dict(self.headers), self._body())
                self.send_response(reply.status)
                for name, value in {**reply.headers, "Content-Length": str(len(reply.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(reply.body)

            def _body(self) -> bytes:
                return self.rfile.read(int(self.headers["Content-Length"]))

            def log_message(self, format: str, *args: Any) -> None:
                return

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        if self._tls is not None:
            self._server.socket = self._tls.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _receive(self, path: str, headers: dict[str, str], body: bytes) -> Reply:
        lowered = {name.lower(): value for name, value in headers.items()}
        try:
            self.webhook.verify(body, lowered)
        except WebhookVerificationError as error:
            self.unverified.append(str(error))
            return Reply(401)
        message = json.loads(body)
        delivery = Delivery(lowered["webhook-id"], int(lowered["webhook-timestamp"]), path, lowered, message)
        with self._lock:
            self.deliveries.append(delivery)
        reply = self.answer(delivery)
        if 200 <= reply.status < 300:
            with self._lock:
                self._accepted.setdefault(delivery.id, delivery)
        return reply

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
