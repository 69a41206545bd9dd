"""A task: a function under a stable name, and the typed way to request a run of it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from types import FunctionType
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, Unpack

from jetjobs.define.dependencies import check as check_dependency
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions, ScheduleOptions, TaskOptions, check_options, check_type
from jetjobs.define.signature import Signature
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.masking import write_paths, write_result_paths
from jetjobs.model.public import public
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.wire.headers import SECRET
from jetjobs.model.wire.subjects import check_lane
from jetjobs.model.wire.validation import check_token

P = ParamSpec("P")
R = TypeVar("R")

MIN_MEMORY = 16 * 2**20
"""Less than this would hardly let a task begin."""


@public("jetjobs")
class JobRequest(NamedTuple, Generic[R]):
    """A checked call, ready to be stored: `task.bind(...)` makes one."""

    task: Task[Any, R]
    body: bytes
    options: EnqueueOptions

    def __repr__(self) -> str:
        return f"<JobRequest {self.task.name}>"  # the body may hold secrets


Send = Callable[[JobRequest[Any]], Awaitable[JobHandle[Any]]]
Declare = Callable[["Task[Any, Any]", Mapping[str, Any]], None]


@public("jetjobs")
class Task(Generic[P, R]):
    """A registered function. Calling it runs the plain function; `enqueue` stores a job."""

    def __init__(
        self, function: Callable[..., Any], send: Send, options: TaskOptions, declare: Declare | None = None
    ) -> None:
        self.function = function
        self.name = check_token("task", options.get("name", getattr(function, "__name__", "")))
        self.queue = check_token("queue", options.get("queue", "default"))
        self.priority = check_lane(options.get("priority", "normal"))
        self.retry = options.get("retry", RetryPolicy())
        self.timeout = options.get("timeout")
        self.result_ttl = options.get("result_ttl", timedelta(hours=1))
        self.store_result = options.get("store_result", True)
        self.isolation = options.get("isolation", "none")
        self.memory_limit = options.get("memory_limit")
        self._check_options()
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise DefinitionError(f"task {self.name!r} is a generator; a task returns one value")
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(self.name, function)
        for dependency in self.signature.dependencies.values():
            check_dependency(dependency)
        if self.isolated and self.signature.dependencies:
            raise DefinitionError(
                f"task {self.name!r}: a dependency is made in the worker and cannot cross to a child process",
                hint="make the object inside the function, or leave out isolation",
            )
        self.direct = self.is_async and not self.signature.dependencies and not self.isolated
        """Whether the worker may simply await it: nothing to inject, and no other place to run it."""
        self.own_headers = {SECRET: write_paths(self.signature.secrets)} if self.signature.secrets else {}
        """Headers that each job of the task carries: which of its arguments are secret."""
        self.secret_in_result = write_result_paths(self.signature.result_secrets)
        """Which parts of its result are secret, as its record says it; empty for none."""
        self.send = send
        """Stores a request of this task: the method of the app or router that declared it."""
        self._declare = declare
        self._scheduled = False
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def _check_options(self) -> None:
        of = f"task {self.name!r}: "
        check_type(of + "retry", self.retry, RetryPolicy)
        check_type(of + "result_ttl", self.result_ttl, timedelta)
        check_type(of + "store_result", self.store_result, bool)
        if self.timeout is not None:
            check_type(of + "timeout", self.timeout, timedelta)
            if self.timeout <= timedelta(0):
                raise DefinitionError(f"{of}timeout must be positive")
        if not timedelta(seconds=1) <= self.result_ttl <= timedelta(days=3650):
            raise DefinitionError(f"{of}result_ttl must be from one second to ten years")
        self._check_isolation(of)

    def _check_isolation(self, of: str) -> None:
        if self.isolation not in ("none", "process"):
            raise DefinitionError(f"{of}isolation must be 'none' or 'process', not {self.isolation!r}")
        limit = self.memory_limit
        if limit is None:
            return
        if not self.isolated:
            raise DefinitionError(
                f"{of}memory_limit goes with isolation='process': a thread has no memory of its own"
            )
        if not isinstance(limit, int) or isinstance(limit, bool) or not MIN_MEMORY <= limit < 2**62:
            raise DefinitionError(f"{of}memory_limit must be a whole number of bytes, at least {MIN_MEMORY:,}")

    @property
    def isolated(self) -> bool:
        """Whether it runs in a child process."""
        return self.isolation == "process"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        self._check_decorated(args, kwargs)
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[EnqueueOptions]) -> TaskCall[P, R]:
        """The same task with options for one job; they never mix with its arguments."""
        return TaskCall(self, options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """A checked call for `app.enqueue_many`. InvalidArguments when the arguments do not fit."""
        return self.request({}, args, kwargs)

    def request(self, options: EnqueueOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobRequest[R]:
        """A checked call with options; `bind` and `options(...).bind` are the typed ways to it."""
        signature = self.signature
        if signature.dependencies and (injected := signature.dependencies.keys() & kwargs.keys()):
            names = sorted(injected)
            raise InvalidArguments(
                f"task {self.name!r}: {', '.join(names)} is injected by the worker and cannot be sent",
                task=self.name,
                problems=[(name, "injected") for name in names],
            )
        return JobRequest(self, signature.encode(signature.bind(args, kwargs)), options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job. Returns once the stream has confirmed it; checks the arguments before anything is sent."""
        return await self.send(self.bind(*args, **kwargs))

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> Self:
        """Run it by the calendar: `report.cron("0 9 * * 1-5", tz="Europe/Berlin")`. DefinitionError for a rule or
        arguments that cannot work. The schedule has the task's name unless it is given one."""
        return self._recurring({"cron": expression}, options)

    def every(self, interval: timedelta, **options: Unpack[ScheduleOptions]) -> Self:
        """Run it every so often, from one second on: `ping.every(timedelta(minutes=5))`."""
        return self._recurring({"every": interval}, options)

    def _recurring(self, rule: Mapping[str, Any], options: ScheduleOptions) -> Self:
        if self._declare is None:
            raise DefinitionError(f"task {self.name!r} belongs to no app or router")
        self._declare(self, {**rule, **options})
        self._scheduled = True
        return self

    def _check_decorated(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """`@task.cron(...)` over another function calls the task with that function: a DefinitionError says so.
        Not where the first argument is a dependency, which a test may give by hand."""
        if not self._scheduled or kwargs or len(args) != 1 or not isinstance(args[0], FunctionType | Task):
            return
        if next(iter(inspect.signature(self.function).parameters), "") in self.signature.dependencies:
            return
        other = getattr(args[0], "__name__", "other")
        raise DefinitionError(
            f"task {self.name!r} was called with function {other!r}: cron and every are no decorators",
            hint=f"declare {other} with @app.task, and below it write {other}.cron(...)",
        )

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.queue}>"


@public("jetjobs")
class AsyncTask(Task[P, R]):
    """A task over `async def`; runs on the worker's event loop, or on that of a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        self._check_decorated(args, kwargs)
        call: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return call


@public("jetjobs")
class SyncTask(Task[P, R]):
    """A task over `def`; runs in a thread of the worker, or in a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_decorated(args, kwargs)
        value: R = self.function(*args, **kwargs)
        return value


@public("jetjobs")
class TaskCall(Generic[P, R]):
    """A task with options for one job."""

    __slots__ = ("options", "task")

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self.task = task
        self.options = options
        if options:
            check_options(options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        return self.task.request(self.options, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Like `Task.enqueue`, with these options."""
        return await self.task.send(self.bind(*args, **kwargs))
