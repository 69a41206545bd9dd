"""Jobs over HTTP: an API for services without NATS credentials, as an ASGI application to mount."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetjobs.model.views.access import Access

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.requests import Request
    from starlette.types import ASGIApp

    from jetjobs.app import JetJobs

__all__ = ["Access", "api"]


def api(
    app: JetJobs,
    *,
    authorize: Callable[[Request], Access | Awaitable[Access | None] | None] | None = None,
) -> ASGIApp:
    """The HTTP API of an app, to be mounted: `Mount("/jobs", api(app, authorize=...))`.

    `authorize(request)` returns the Access of the caller, or None to refuse it; it may be `async def`. Without it,
    every call needs a token that `jetjobs http token new` has created. The program opens the app. Needs the extra
    `http`.
    """
    from jetjobs.http.access import TokenAccess  # these need the extra
    from jetjobs.http.application import Application

    return Application(app, authorize or TokenAccess(app))
