"""Lifespans: what is open while a worker runs. Both accepted forms become one, whose errors name the lifespan."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, TypeVar

from jetjobs.model.errors import DefinitionError, LifespanFailed

LifespanFunction = Callable[..., AsyncIterator[Any] | contextlib.AbstractAsyncContextManager[Any]]
L = TypeVar("L", bound=LifespanFunction)
Lifespan = Callable[[], contextlib.AbstractAsyncContextManager[Any]]

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_FORM = "write `@app.lifespan` above `async def life(app):` with one `yield`: what precedes it runs at the start"


def make_lifespan(function: LifespanFunction, app: object) -> Lifespan:
    """From an async generator function, or one under `@asynccontextmanager`, that takes `app` or no argument.

    DefinitionError for anything else.
    """
    name = getattr(function, "__qualname__", repr(function))
    manager: Any = function
    if inspect.isasyncgenfunction(function):
        manager = contextlib.asynccontextmanager(function)
    elif not _is_manager(function):
        raise DefinitionError(f"lifespan {name!r} {_what_it_is(function)}", hint=_FORM)
    required = [
        parameter
        for parameter in inspect.signature(function).parameters.values()
        if parameter.default is parameter.empty and parameter.kind not in _VARIABLE
    ]
    if len(required) > 1 or any(parameter.kind is parameter.KEYWORD_ONLY for parameter in required):
        named = ", ".join(parameter.name for parameter in required)
        raise DefinitionError(f"lifespan {name!r} takes {named}; it gets at most the app", hint=_FORM)
    arguments = (app,) if required else ()
    return lambda: _Named(name, lambda: manager(*arguments))


def _is_manager(function: Any) -> bool:
    if isinstance(function, type):
        return issubclass(function, contextlib.AbstractAsyncContextManager)
    return callable(function) and hasattr(function, "__wrapped__") and _makes_generator(function)


def _makes_generator(function: Any) -> bool:
    return inspect.isasyncgenfunction(inspect.unwrap(function)) and not inspect.iscoroutinefunction(function)


def _what_it_is(function: Any) -> str:
    if inspect.iscoroutinefunction(function):
        return "does not yield"
    if callable(function) and inspect.isgeneratorfunction(inspect.unwrap(function)):
        return "is a plain generator: it must be an `async def`"
    return "is not an async generator function"


_YIELDS = {"generator didn't yield": "did not yield", "generator didn't stop": "yielded more than once"}
"""The messages of `contextlib.asynccontextmanager`, and what they mean."""


class _Named(contextlib.AbstractAsyncContextManager[Any]):
    """A lifespan that raises LifespanFailed for its own errors. Those of the worker pass through it."""

    def __init__(self, name: str, make: Lifespan) -> None:
        self._name = name
        self._make = make
        self._manager: contextlib.AbstractAsyncContextManager[Any]

    async def __aenter__(self) -> Any:
        try:
            self._manager = self._make()
            return await self._manager.__aenter__()
        except (Exception, SystemExit) as error:
            raise self._failed("starting", error) from error

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return await self._manager.__aexit__(kind, error, trace)
        except (Exception, SystemExit) as raised:
            if raised is error:
                raise
            raise self._failed("stopping", raised) from raised

    def _failed(self, doing: str, error: BaseException) -> LifespanFailed:
        if isinstance(error, RuntimeError) and str(error) in _YIELDS:
            return LifespanFailed(
                f"lifespan {self._name!r} {_YIELDS[str(error)]}", hint="it must yield exactly once"
            )
        text = " ".join(f"{type(error).__qualname__}: {error}".split())
        return LifespanFailed(f"lifespan {self._name!r} failed while the worker was {doing}: {text}")
