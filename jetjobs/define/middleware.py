"""Middleware: functions around every attempt, the first one added outermost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jetjobs.define.context import Context

CallNext = Callable[[], Awaitable[Any]]
Middleware = Callable[[Context, CallNext], Awaitable[Any]]
"""`async def middleware(job, call_next)`: awaits `call_next()` once and returns its value, or raises."""


def compose(middlewares: Sequence[Middleware], context: Context, innermost: CallNext) -> CallNext:
    """A call that passes through every middleware to `innermost`."""
    call = innermost
    for middleware in reversed(middlewares):
        call = _layer(middleware, context, call)
    return call


def _layer(middleware: Middleware, context: Context, inner: CallNext) -> CallNext:
    async def layer() -> Any:
        return await middleware(context, inner)

    return layer
