"""The ASGI application: limits, access, dispatch by the table of calls, and errors as problems."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from sse_starlette.sse import SendTimeoutError
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import Receive, Scope, Send

from jetjobs.app import JetJobs
from jetjobs.http.access import Authorize, RateLimits, Refusals, authorized
from jetjobs.http.calls.call import Answer, Call, Services, missing_scope
from jetjobs.http.docs_page import POLICY, page
from jetjobs.http.openapi import document
from jetjobs.http.problems import MEDIA_TYPE, RETRY_AFTER_S, Problem, problem_of
from jetjobs.http.request_reader import read_body, read_bytes, read_query
from jetjobs.http.routes import ENQUEUE, JSON, TABLE, Row
from jetjobs.model.errors import JetJobsError
from jetjobs.model.settings import HttpSettings
from jetjobs.model.views.access import Access
from jetjobs.model.views.audit import acting_via
from jetjobs.model.wire.lenient_json import write_json

RECONNECT_S = 1.0
"""How long a request waits for a lost connection to the server before it is answered with 503."""
_POLL_S = 0.05
_SECURITY = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]
_SECURE = {name.decode(): value.decode() for name, value in _SECURITY}
_log = logging.getLogger("jetjobs.http")


class Application:
    """The HTTP API of one app."""

    def __init__(self, app: JetJobs, authorize: Authorize, *, extra: Sequence[BaseRoute] = ()) -> None:
        self.services = Services(app)
        self._app = app
        self._authorize = authorize
        self._limits: _Limits | None = None
        self._refusals = Refusals(app)
        by_path: dict[str, dict[str, Row]] = {}
        for row in TABLE:
            by_path.setdefault(row.path, {})[row.method] = row
        routes: list[BaseRoute] = [Route(path, _Endpoint(self, rows)) for path, rows in by_path.items()]
        routes += [Route("/openapi.json", _openapi), Route("/docs", _docs), *extra]
        self._router = Router(routes, redirect_slashes=False, default=_no_such_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        try:
            await self._router(scope, receive, send)
        except Problem as problem:
            await respond_problem(send, problem)
        except JetJobsError as error:
            found = problem_of(error)
            if found.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                _log_failed(scope)
            await respond_problem(send, found)
        except Exception:
            _log_failed(scope)
            text = "internal error (please report)"
            await respond_problem(send, Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal_error", text))

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Open the app for as long as the server runs, unless the program opens it. A mounted application gets no
        lifespan events."""
        opened = False
        try:
            await receive()
            if not self._app.is_open:
                await self._app.open()
                opened = True
            await send({"type": "lifespan.startup.complete"})
            await receive()
            self.services.stop()
        except JetJobsError as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        finally:
            if opened:
                await self._app.close()
        await send({"type": "lifespan.shutdown.complete"})

    # One call

    @property
    def limits(self) -> _Limits:
        if self._limits is None:
            self._limits = _Limits(self._app.settings.http)
        return self._limits

    async def access(self, request: Request, scope: str = "") -> Access:
        """The caller, if it has the scope and has not used up its requests."""
        access = await authorized(self._authorize, request)
        self.limits.rates.take(access)
        if scope and not access.may(scope):
            raise missing_scope(access, scope)
        return access

    async def call(self, row: Row, scope: Scope, receive: Receive, send: Send) -> None:
        with self.limits.request():
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            request = Request(scope, receive)
            access, root = await self.access(request), scope.get("root_path", "")
            renew = functools.partial(authorized, self._authorize, request)
            call = Call(self.services, access, scope["path_params"], headers, root, receive, renew)
            try:
                answer = await self._carry_out(row, call, scope["query_string"])
            except Problem as problem:
                if problem.status == HTTPStatus.FORBIDDEN:
                    await self._refusals.record(access, problem, f"{row.method} {row.path}")
                raise
        if isinstance(answer, Response):
            with contextlib.suppress(SendTimeoutError):  # the client takes nothing any more
                await answer(scope, receive, send)
        else:
            await respond(row, headers, send, answer)

    async def _carry_out(self, row: Row, call: Call, query_string: bytes) -> Answer | Response:
        if row.scope != ENQUEUE:
            call.require(row.scope)
        given: dict[str, Any] = {}
        query = read_query(row.query, query_string)
        if row.takes_query:
            given["query"] = query
        if row.body is not None:
            data = await read_bytes(call.receive, self.limits.max_body, self.limits.body_timeout_s)
            given["body"] = read_body(row.body, data, call.headers)
        await self._connected()
        with acting_via("http"):
            return await row.operation(call, **given)

    async def _connected(self) -> None:
        """Problem 503 without a connection to the server, after a short wait for it to come back."""
        connection = self._app.jetstream.connection
        if connection.connected:
            return
        give_up = asyncio.get_running_loop().time() + RECONNECT_S
        while asyncio.get_running_loop().time() < give_up and not connection.closed.is_set():
            await asyncio.sleep(_POLL_S)
            if connection.connected:
                return
        raise Problem(
            HTTPStatus.SERVICE_UNAVAILABLE,
            "broker_unavailable",
            "the connection to the NATS server is lost",
            hint="repeat the request; nothing was changed",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )


class _Endpoint:
    """The calls of one path."""

    def __init__(self, application: Application, rows: Mapping[str, Row]) -> None:
        self._application = application
        self._rows = dict(rows)
        if "GET" in rows and rows["GET"].media_type == JSON:  # the head of an endless answer is of no use
            self._rows["HEAD"] = rows["GET"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        row = self._rows.get(scope["method"])
        if row is None:
            allowed = ", ".join(sorted(self._rows))
            raise Problem(
                HTTPStatus.METHOD_NOT_ALLOWED,
                "method_not_allowed",
                f"this path takes {allowed}",
                headers={"Allow": allowed},
            )
        await self._application.call(row, scope, receive, send)


class _Limits:
    """The limits of the settings, and what is in use."""

    def __init__(self, settings: HttpSettings) -> None:
        self.max_body = settings.max_body
        self.body_timeout_s = settings.body_timeout.total_seconds()
        self._max_requests = settings.max_requests
        self.requests = 0
        self.rates = RateLimits(settings.rate, settings.burst)

    def request(self) -> _Limits:
        """A context for one request. Problem 503 if too many are in progress."""
        if self.requests >= self._max_requests:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_requests",
                f"{self.requests:,} requests are in progress",
                hint="repeat the request later",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
        return self

    def __enter__(self) -> None:
        self.requests += 1

    def __exit__(self, *_: object) -> None:
        self.requests -= 1


async def respond(row: Row, headers: Mapping[str, str], send: Send, answer: Answer) -> None:
    """Send the answer of a call."""
    body = write_json(answer.body).encode()
    more = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers.items()]
    status = int(answer.status)
    if row.has_etag:
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        more.append((b"etag", etag.encode()))
        if etag in [one.strip().removeprefix("W/") for one in headers.get("if-none-match", "").split(",")]:
            await _send(send, HTTPStatus.NOT_MODIFIED, b"", more)
            return
    await _send(send, status, body, [(b"content-type", b"application/json"), *more])


async def respond_problem(send: Send, problem: Problem) -> None:
    more = [(name.lower().encode(), value.encode("latin-1")) for name, value in problem.headers.items()]
    await _send(send, problem.status, problem.body(), [(b"content-type", MEDIA_TYPE.encode()), *more])


async def _send(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]]) -> None:
    length = [] if status == HTTPStatus.NOT_MODIFIED else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *length, *_SECURITY]})
    await send({"type": "http.response.body", "body": body})


async def _openapi(request: Request) -> Response:
    return JSONResponse(document(request.scope.get("root_path", "")), headers=_SECURE)


async def _docs(request: Request) -> Response:
    headers = {**_SECURE, "Content-Security-Policy": POLICY}
    return HTMLResponse(page(request.scope.get("root_path", "")), headers=headers)


async def _no_such_path(scope: Scope, receive: Receive, send: Send) -> None:
    raise Problem(HTTPStatus.NOT_FOUND, "no_such_path", "no such path", hint="GET /docs lists the calls")


def _log_failed(scope: Scope) -> None:
    extra = {"event": "http.error", "method": scope["method"], "path": scope["path"][:200]}
    _log.exception("a request failed", extra=extra)
