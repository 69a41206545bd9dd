"""Tasks: functions with a stable name, and typed requests to run them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from types import FunctionType
from typing import Any, Generic, NamedTuple, ParamSpec, Self, TypeVar, Unpack

from jetjobs.define.dependencies import check as check_dependency
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions, ScheduleOptions, TaskOptions, check_type, checked_options
from jetjobs.define.signature import Signature
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.masking import write_paths, write_result_paths
from jetjobs.model.public import public
from jetjobs.model.retry import RetryPolicy, check_attempts
from jetjobs.model.views.task_info import MAX_DESCRIPTION, TaskDefinition
from jetjobs.model.wire.headers import SECRET
from jetjobs.model.wire.subjects import check_priority
from jetjobs.model.wire.validation import check_token

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_RESULT_TTL = timedelta(hours=1)
MIN_MEMORY = 16 * 2**20
"""In bytes. A task could hardly start with less."""


@public("jetjobs")
class JobRequest(NamedTuple, Generic[R]):
    """A call with checked arguments, ready to be stored. Made by `task.bind(...)`."""

    task: Task[Any, R]
    body: bytes
    options: EnqueueOptions

    def __repr__(self) -> str:
        return f"<JobRequest {self.task.name}>"  # the body may contain secrets


Send = Callable[[JobRequest[Any]], Awaitable[JobHandle[Any]]]
SendSync = Callable[[JobRequest[Any]], JobHandle[Any]]
Declare = Callable[["Task[Any, Any]", Mapping[str, Any]], None]


@public("jetjobs")
class Task(Generic[P, R]):
    """A registered function. Calling it calls the function; `enqueue` stores a job."""

    def __init__(
        self,
        function: Callable[..., Any],
        send: Send,
        send_sync: SendSync,
        options: TaskOptions,
        declare: Declare | None = None,
    ) -> None:
        self.function = function
        self.name = check_token("task", options.get("name", getattr(function, "__name__", "")))
        self.aliases = _check_aliases(self.name, options.get("aliases", ()))
        """Former names: jobs that were enqueued under them run with this task."""
        self.queue = check_token("queue", options.get("queue", "default"))
        of = f"task {self.name!r}: "
        self.priority = check_priority(options.get("priority", "normal"), of)
        self.retry = _retry_policy(of, options)
        timeout = options.get("timeout")
        self.timeout = None if timeout is None else to_duration("timeout", timeout, of=of, positive=True)
        self.result_ttl = to_duration("result_ttl", options.get("result_ttl", DEFAULT_RESULT_TTL), of=of)
        self.store_result = options.get("store_result", True)
        self.isolation = options.get("isolation", "none")
        self.memory_limit = options.get("memory_limit")
        self._check_options(of)
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise DefinitionError(f"task {self.name!r} is a generator; a task returns one value")
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(self.name, function)
        for dependency in self.signature.dependencies.values():
            check_dependency(dependency)
        if self.isolated and self.signature.dependencies:
            raise DefinitionError(
                f"task {self.name!r}: dependencies cannot be passed to a child process",
                hint="create the object inside the function, or remove isolation",
            )
        self.direct = self.is_async and not self.signature.injected and not self.isolated
        """Whether the worker can await the function directly: nothing to inject, no thread, no child process."""
        self.own_headers = {SECRET: write_paths(self.signature.secrets)} if self.signature.secrets else {}
        """Headers of every job of the task: they name the secret arguments."""
        self.secret_in_result = write_result_paths(self.signature.result.secrets)
        """The secret parts of the result, in the form of the done record; empty if there are none."""
        self.send = send
        """Stores a request of this task: the method of the app or router that declared it."""
        self.send_sync = send_sync
        self._declare = declare
        self._scheduled = False
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def _check_options(self, of: str) -> None:
        check_type(of + "store_result", self.store_result, bool)
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
                f"{of}memory_limit needs isolation='process': threads share the memory of the worker"
            )
        if not isinstance(limit, int) or isinstance(limit, bool) or not MIN_MEMORY <= limit < 2**62:
            raise DefinitionError(f"{of}memory_limit must be a whole number of bytes, at least {MIN_MEMORY:,}")

    @property
    def names(self) -> tuple[str, ...]:
        """The name and the aliases."""
        return (self.name, *self.aliases)

    @cached_property
    def definition(self) -> TaskDefinition:
        """The task as workers publish it and `jetjobs tasks` shows it."""
        definition = TaskDefinition(
            name=self.name,
            queue=self.queue,
            priority=self.priority,
            aliases=self.aliases,
            signature=self.signature.text(),
            description=(inspect.getdoc(self.function) or "")[:MAX_DESCRIPTION],
            retry=self.retry.as_dict(),
            timeout=self.timeout,
            result_ttl=self.result_ttl,
            store_result=self.store_result,
            isolation=self.isolation,
            memory_limit=self.memory_limit,
            secret=tuple(sorted(".".join(path) for path in self.signature.secrets)),
            schema=self.signature.schema(),
        )
        return definition.with_fingerprint(self.signature.fingerprint)

    @property
    def isolated(self) -> bool:
        """Whether the task runs in a child process."""
        return self.isolation == "process"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        self._check_call(args, kwargs)
        return self.function(*args, **kwargs)

    def options(self, **options: Unpack[EnqueueOptions]) -> TaskCall[P, R]:
        """The same task with options for one job, kept apart from its arguments."""
        return TaskCall(self, options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """A request for `app.enqueue_many`. InvalidArguments if the arguments do not fit the signature."""
        return self.request({}, args, kwargs)

    def request(self, options: EnqueueOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobRequest[R]:
        """A request with options, untyped. `bind` and `options(...).bind` are the typed forms."""
        signature = self.signature
        if signature.injected and (injected := signature.injected & kwargs.keys()):
            names = sorted(injected)
            raise InvalidArguments(
                f"task {self.name!r}: {', '.join(names)} is injected by the worker and cannot be passed",
                task=self.name,
                problems=[(name, "injected") for name in names],
            )
        return JobRequest(self, signature.encode(signature.bind(args, kwargs)), options)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Check the arguments and store a job. Returns once the server has confirmed it."""
        return await self.send(self.bind(*args, **kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for code without an event loop: web frameworks, scripts and plain tasks. See `app.sync`."""
        return self.send_sync(self.bind(*args, **kwargs))

    async def enqueue_in(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that runs after `delay`: `remind.enqueue_in("2h", user=7)`."""
        return await self.send(self.request(checked_options({"delay": delay}), args, kwargs))

    async def enqueue_at(self, run_at: datetime, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Store a job that runs at `run_at`, an aware datetime."""
        return await self.send(self.request(checked_options({"run_at": run_at}), args, kwargs))

    def cron(self, expression: str, **options: Unpack[ScheduleOptions]) -> Self:
        """Run the task on a cron schedule: `report.cron("0 9 * * 1-5", tz="Europe/Berlin")`.

        The name of the schedule defaults to the name of the task. DefinitionError for an invalid rule or invalid
        arguments.
        """
        return self._recurring({"cron": expression}, options)

    def every(self, interval: Duration, **options: Unpack[ScheduleOptions]) -> Self:
        """Run the task at a fixed interval of at least one second: `ping.every("5m")`."""
        return self._recurring({"every": interval}, options)

    def _recurring(self, rule: Mapping[str, Any], options: ScheduleOptions) -> Self:
        if self._declare is None:
            raise DefinitionError(f"task {self.name!r} belongs to no app or router")
        self._declare(self, {**rule, **options})
        self._scheduled = True
        return self

    def _check_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """InvalidArguments if an injected argument is missing: the function would get its marker."""
        self._check_decorated(args, kwargs)
        if not self.signature.markers:
            return
        given = inspect.signature(self.function).bind_partial(*args, **kwargs).arguments
        if missing := sorted(self.signature.markers - given.keys()):
            raise InvalidArguments(
                f"task {self.name!r}: {', '.join(missing)} is injected by the worker; a direct call must pass it",
                task=self.name,
                problems=[(name, "missing") for name in missing],
            )

    def _check_decorated(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """DefinitionError if `@other.cron(...)` was used as a decorator: that calls the task with a function.

        A function is accepted where the first argument is a dependency, which a test may pass itself.
        """
        if not self._scheduled or kwargs or len(args) != 1 or not isinstance(args[0], FunctionType | Task):
            return
        if next(iter(self.signature.parameters), "") in self.signature.injected:
            return
        other = getattr(args[0], "__name__", "other")
        raise DefinitionError(
            f"task {self.name!r} was called with function {other!r}: cron and every of a task are not decorators",
            hint=f"to schedule {other}, write @app.cron(...) or @app.every(...) above its @app.task",
        )

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.queue}>"


@public("jetjobs")
class AsyncTask(Task[P, R]):
    """A task over `async def`. It runs on the event loop of the worker or of a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        self._check_call(args, kwargs)
        call: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return call


@public("jetjobs")
class SyncTask(Task[P, R]):
    """A task over `def`. It runs in a thread of the worker or in a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self._check_call(args, kwargs)
        value: R = self.function(*args, **kwargs)
        return value


@public("jetjobs")
class TaskCall(Generic[P, R]):
    """A task with options for one job."""

    __slots__ = ("options", "task")

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self.task = task
        self.options = checked_options(options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        return self.task.request(self.options, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`Task.enqueue` with these options."""
        return await self.task.send(self.bind(*args, **kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`Task.enqueue_sync` with these options."""
        return self.task.send_sync(self.bind(*args, **kwargs))


def _retry_policy(of: str, options: TaskOptions) -> RetryPolicy:
    """The policy of a task, from `retry` or `max_attempts`."""
    if "max_attempts" in options:
        if "retry" in options:
            raise DefinitionError(
                f"{of}give retry or max_attempts, not both",
                hint="with other retry settings: retry=RetryPolicy(max_attempts=...)",
            )
        return RetryPolicy(check_attempts(options["max_attempts"], of))
    retry = options.get("retry", RetryPolicy())
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool):
        return RetryPolicy(check_attempts(retry, f"{of}retry: "))
    raise DefinitionError(f"{of}retry must be a RetryPolicy or a number of attempts, not {retry!r:.80}")


def _check_aliases(name: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """The aliases of task `name`. DefinitionError if they are not a list of other names."""
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        shown = f"[{aliases!r}]" if isinstance(aliases, str) else '["old_name"]'
        raise DefinitionError(f"task {name!r}: aliases must be a list of names", hint=f"aliases={shown}")
    for alias in aliases:
        check_token("alias", alias)
        if alias == name:
            raise DefinitionError(f"task {name!r}: alias {alias!r} is its own name")
    if len(set(aliases)) < len(aliases):
        raise DefinitionError(f"task {name!r}: an alias is named twice")
    return tuple(aliases)
