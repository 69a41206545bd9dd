"""Who calls: bearer tokens, access without a token on loopback, and a rate limit for each caller."""

from __future__ import annotations

import inspect
import math
import re
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import Request

from jetjobs.app import JetJobs
from jetjobs.http.problems import Problem
from jetjobs.model.views.access import ADMIN, LOCAL_NAME, Access

LOCAL = Access(LOCAL_NAME, frozenset({ADMIN}))
"""A caller on this machine without a token."""
Authorize = Callable[[Request], "Access | Awaitable[Access | None] | None"]
"""What a program that mounts the API passes: who may do what; None if the caller is not known."""
_FORWARDED = ("forwarded", "x-forwarded-", "x-real-ip", "via")
"""How the headers of a proxy begin."""
_SAFE = ("GET", "HEAD")
_HOST = re.compile(r"(?:\[(?P<address>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.-]+))(?::[0-9]+)?", re.ASCII)
MAX_CALLERS = 10_000
AGAIN_S = 60.0
"""After how long the same refusal is recorded again."""
MAX_REFUSALS = 1_000
"""Refusals that are recorded in that time."""


class TokenAccess:
    """Every request needs a token of the namespace."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app

    async def __call__(self, request: Request) -> Access | None:
        kind, _, text = request.headers.get("authorization", "").partition(" ")
        text = text.strip()
        if kind.lower() != "bearer" or not text or len(text) > 200 or not text.isascii():
            return None
        return await self._app.tokens.find(text)


class LoopbackAccess(TokenAccess):
    """A request without a token is that of a user of this machine, if it is addressed to a loopback name and comes
    neither through a proxy nor from a page of another origin. A token that is given must be valid."""

    async def __call__(self, request: Request) -> Access | None:
        headers = request.headers
        if "authorization" in headers:
            return await super().__call__(request)
        host = headers.get("host", "")
        if not is_loopback_host(host):
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                "not_loopback",
                "without a token only requests to a loopback name are answered",
                hint="use http://127.0.0.1 or a token",
            )
        if any(name.startswith(_FORWARDED) for name in headers):
            raise Problem(
                HTTPStatus.UNAUTHORIZED,
                "token_required",
                "a request that a proxy has forwarded needs a token",
                hint="create one with `jetjobs http token new`",
                headers={"WWW-Authenticate": "Bearer"},
            )
        origin = headers.get("origin")
        if origin is not None and request.method not in _SAFE and urlsplit(origin).netloc != host:
            text = "without a token a page of another origin may change nothing"
            raise Problem(HTTPStatus.FORBIDDEN, "other_origin", text)
        return LOCAL


def is_loopback_host(host: str) -> bool:
    """Whether a Host header names this machine. A name that only resolves to it does not.

    >>> [is_loopback_host(one) for one in ("localhost:8400", "[::1]:8400", "127.0.0.1", "evil.example:8400", "")]
    [True, True, True, False, False]
    """
    found = _HOST.fullmatch(host)
    name = "" if found is None else (found["address"] or found["name"]).lower()
    try:
        return name == "localhost" or ip_address(name).is_loopback
    except ValueError:
        return False


async def authorized(authorize: Authorize, request: Request) -> Access:
    """The caller. Problem 401 if it is not known."""
    found = authorize(request)
    access = await found if inspect.isawaitable(found) else found
    if access is None:
        given = "authorization" in request.headers
        raise Problem(
            HTTPStatus.UNAUTHORIZED,
            "invalid_token" if given else "token_required",
            "the token is wrong, expired or revoked" if given else "this call needs a token",
            hint="send `Authorization: Bearer TOKEN`; `jetjobs http token new` creates one",
            headers={"WWW-Authenticate": 'Bearer error="invalid_token"' if given else "Bearer"},
        )
    return access


class RateLimits:
    """A token bucket for each caller: `rate` requests per second, and `burst` at once."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._left: dict[str, tuple[float, float]] = {}

    def take(self, access: Access) -> None:
        """Problem 429 if the caller has used up its requests."""
        if not self._rate or access is LOCAL:
            return
        now = time.monotonic()
        left, at = self._left.get(access.name, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        if left < 1.0:
            self._left[access.name] = (left, now)
            wait_s = math.ceil((1.0 - left) / self._rate)
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "rate_limited",
                f"{access.name!r} has sent more than {self._rate:g} requests per second",
                hint="wait before the next request, or raise http.rate",
                headers={"Retry-After": str(wait_s)},
            )
        if len(self._left) >= MAX_CALLERS and access.name not in self._left:
            self._left.clear()
        self._left[access.name] = (left - 1.0, now)


class Refusals:
    """Records refused calls in the audit, at most one a minute for each caller and what it was refused."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app
        self._recorded: dict[tuple[str, str], float] = {}

    async def record(self, access: Access, problem: Problem, call: str) -> None:
        target = str(problem.members.get("scope") or f"queue:{problem.members.get('queue', '')}")
        now = time.monotonic()
        if now - self._recorded.get((access.name, target), -AGAIN_S) < AGAIN_S:
            return
        if len(self._recorded) >= MAX_REFUSALS:
            self._recorded = {key: at for key, at in self._recorded.items() if now - at < AGAIN_S}
        if len(self._recorded) < MAX_REFUSALS:
            self._recorded[access.name, target] = now
            await self._app.audit.record(
                "http.refused", target, by=access.name, outcome="refused", detail=call, via="http"
            )
