"""Dependencies of tasks: created by factories for one worker or one attempt, closed in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from jetjobs.define.context import Context, current_job, outside_jobs
from jetjobs.model.errors import DefinitionError

INJECTED: Any = object()
"""Default value of injected arguments, so that type checkers do not require them in `enqueue`."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """What `Depends` makes: the factory of an injected argument."""

    factory: Callable[..., Any]
    scope: Literal["job", "app"] = "job"


def Depends(factory: Callable[..., Any], scope: Literal["job", "app"] = "job") -> Any:
    """Inject the result of `factory`: `db: Db = Depends(connect)` or `db: Annotated[Db, Depends(connect)]`.

    The factory is a function, an async function, or a sync or async generator that yields once; the code after
    the yield runs when the scope ends. Scope `job` (the default) creates one object per attempt, scope `app` one
    per worker. A factory may have dependencies itself.
    """
    return Dependency(factory, scope)


def dependency_of(hint: Any, default: Any) -> Dependency | None:
    """The dependency that an annotation or a default value declares."""
    if isinstance(default, Dependency):
        return default
    extras = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    return next((extra for extra in extras if isinstance(extra, Dependency)), None)


def is_context(hint: Any) -> bool:
    """Whether the type of an argument is Context, or a union with it: it gets the context of the attempt."""
    origin = get_origin(hint)
    if origin is Annotated:
        return is_context(get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return any(map(is_context, get_args(hint)))
    return hint is Context


class Scope:
    """The live dependencies of one scope. The scope of a job takes those of scope `app` from its parent."""

    def __init__(self, parent: Scope | None = None) -> None:
        self._parent = parent
        self._made: dict[Callable[..., Any], Any] = {}
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()

    async def __aenter__(self) -> Scope:
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stack.__aexit__(*error)

    async def get(self, dependency: Dependency) -> Any:
        """The object of `dependency`, created on first use and shared within the scope."""
        if dependency.scope == "app" and self._parent is not None:
            return await self._parent.get(dependency)
        if dependency.factory in self._made:
            return self._made[dependency.factory]
        # Sub-dependencies are created before the lock is taken: it guards the creation of one object only.
        arguments = {name: await self.get(sub) for name, sub in needs(dependency).items()}
        async with self._lock:
            if dependency.factory not in self._made:
                own = contextlib.nullcontext() if self._parent is not None else outside_jobs()
                with own:
                    self._made[dependency.factory] = await self._make(dependency.factory, arguments)
        return self._made[dependency.factory]

    async def _make(self, factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        if inspect.isasyncgenfunction(factory):
            return await self._stack.enter_async_context(contextlib.asynccontextmanager(factory)(**arguments))
        if inspect.isgeneratorfunction(factory):
            return self._stack.enter_context(contextlib.contextmanager(factory)(**arguments))
        made = factory(**arguments)
        return await made if inspect.isawaitable(made) else made


def needs(dependency: Dependency) -> dict[str, Dependency]:
    """The dependencies of a factory. DefinitionError if it needs any other argument."""
    factory = dependency.factory
    try:
        hints = typing.get_type_hints(factory, include_extras=True)
        parameters = inspect.signature(factory).parameters
    except NameError as error:
        raise DefinitionError(f"dependency {_name(factory)}: an annotation cannot be resolved: {error}") from error
    except (TypeError, ValueError):
        return {}  # a class or builtin without a signature takes no arguments
    found: dict[str, Dependency] = {}
    for name, parameter in parameters.items():
        sub = dependency_of(hints.get(name), parameter.default)
        if sub is None and is_context(hints.get(name)):
            sub = Dependency(current_job)
        if sub is not None:
            if dependency.scope == "app" and sub.scope == "job":
                raise DefinitionError(f"dependency {_name(factory)} has scope app but needs one of scope job")
            found[name] = sub
        elif parameter.default is inspect.Parameter.empty and parameter.kind not in (
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise DefinitionError(
                f"dependency {_name(factory)}: argument {name!r} is not a dependency and has no default"
            )
    return found


def check(dependency: Dependency, seen: tuple[Callable[..., Any], ...] = ()) -> None:
    """DefinitionError for a factory that is not callable or depends on itself."""
    if not callable(dependency.factory):
        raise DefinitionError(f"Depends({dependency.factory!r}): not callable")
    if dependency.factory in seen:
        raise DefinitionError(f"dependency {_name(dependency.factory)} depends on itself")
    for sub in needs(dependency).values():
        check(sub, (*seen, dependency.factory))


def _name(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__qualname__", repr(factory))
