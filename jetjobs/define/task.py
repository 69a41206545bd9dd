"""Tasks: functions with a stable name, and typed requests to run them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from types import FunctionType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Self, TypeVar, Unpack

from jetjobs.define.dependencies import check as check_dependency
from jetjobs.define.flows.arguments import StepArguments, encode_arguments
from jetjobs.define.flows.flow_handle import FlowHandle
from jetjobs.define.flows.placeholder import Placeholder
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import (
    EnqueueOptions,
    ScheduleOptions,
    TaskOptions,
    check_aliases,
    check_isolation,
    check_type,
    checked_options,
    retry_policy,
)
from jetjobs.define.signature import Signature
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.flow.failed import Failed
from jetjobs.model.masking import write_paths, write_result_paths
from jetjobs.model.public import public
from jetjobs.model.views.task_info import MAX_DESCRIPTION, TaskDefinition
from jetjobs.model.wire.headers import SECRET
from jetjobs.model.wire.subjects import check_priority
from jetjobs.model.wire.validation import check_token

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
S = TypeVar("S")

DEFAULT_RESULT_TTL = timedelta(hours=1)


@public("jetjobs")
class Step(Generic[P, R_co]):
    """What the steps of a flow are made of: a task, a task with options, or either of them settled."""

    def _step(self) -> StepCall:
        """What a flow needs of it."""
        raise NotImplementedError

    @property
    def settled(self) -> Step[P, R_co | Failed]:
        """For steps of flows: a failure counts as an end, and `Failed` is the result. The flow goes on."""
        return _Settled(self)


class StepCall(NamedTuple):
    """The task of a step, and how it is called."""

    task: Task[Any, Any]
    options: EnqueueOptions
    settled: bool = False


class _Settled(Step[P, R_co | Failed]):
    def __init__(self, of: Step[P, R_co]) -> None:
        self._of = of

    def _step(self) -> StepCall:
        return self._of._step()._replace(settled=True)


@public("jetjobs")
class JobRequest(NamedTuple, Generic[R]):
    """A call with checked arguments, ready to be stored. Made by `task.bind(...)`."""

    task: Task[Any, R]
    body: bytes
    options: EnqueueOptions

    def then(self, step: Step[Concatenate[R, P], S], /, *args: P.args, **kwargs: P.kwargs) -> Chain[S]:
        """Begin a chain: run `step` with the result of this job as its first argument."""
        first = StepCall(self.task, self.options), StepArguments(self.body, {})
        return Chain[R]((first,)).then(step, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<JobRequest {self.task.name}>"  # the body may contain secrets


@public("jetjobs")
class Chain(Generic[R]):
    """Jobs that run one after another, each with the result of the one before it as its first argument:
    `charge.bind(7).then(ship, carrier="dhl").then(notify)`.
    """

    def __init__(self, links: tuple[tuple[StepCall, StepArguments], ...]) -> None:
        self.links = links
        self.tasks = [call.task for call, _ in links]

    def then(self, step: Step[Concatenate[R, P], S], /, *args: P.args, **kwargs: P.kwargs) -> Chain[S]:
        """The chain with one more job. InvalidArguments if the other arguments do not fit its task."""
        call = step._step()
        arguments = encode_arguments(call.task.signature, (Placeholder(), *args), kwargs)
        return Chain((*self.links, (call, arguments)))

    async def enqueue(self) -> FlowHandle[R]:
        """Store the chain as a flow. For an id or a deadline, use `Flow.of(chain, id=...)`."""
        first = self.tasks[0]
        if first.send_chain is None:
            raise DefinitionError(f"task {first.name!r} belongs to no app or router")
        return await first.send_chain(self)

    def __repr__(self) -> str:
        return f"<Chain {' > '.join(task.name for task in self.tasks)}>"


Send = Callable[[JobRequest[Any]], Awaitable[JobHandle[Any]]]
SendSync = Callable[[JobRequest[Any]], JobHandle[Any]]
SendChain = Callable[[Chain[Any]], Awaitable[FlowHandle[Any]]]
Declare = Callable[["Task[Any, Any]", Mapping[str, Any]], None]


@public("jetjobs")
class Task(Step[P, R]):
    """A registered function. Calling it calls the function; `enqueue` stores a job."""

    def __init__(
        self,
        function: Callable[..., Any],
        send: Send,
        send_sync: SendSync,
        options: TaskOptions,
        declare: Declare | None = None,
        send_chain: SendChain | None = None,
    ) -> None:
        self.function = function
        self.name = check_token("task", options.get("name", getattr(function, "__name__", "")))
        self.aliases = check_aliases(self.name, options.get("aliases", ()))
        """Former names: jobs that were enqueued under them run with this task."""
        self.queue = check_token("queue", options.get("queue", "default"))
        of = f"task {self.name!r}: "
        self.priority = check_priority(options.get("priority", "normal"), of)
        self.retry = retry_policy(of, options)
        timeout = options.get("timeout")
        self.timeout = None if timeout is None else to_duration("timeout", timeout, of=of, positive=True)
        self.result_ttl = to_duration("result_ttl", options.get("result_ttl", DEFAULT_RESULT_TTL), of=of)
        self.store_result = options.get("store_result", True)
        self.isolation = options.get("isolation", "none")
        self.memory_limit = options.get("memory_limit")
        check_type(of + "store_result", self.store_result, bool)
        if not timedelta(seconds=1) <= self.result_ttl <= timedelta(days=3650):
            raise DefinitionError(f"{of}result_ttl must be from one second to ten years")
        check_isolation(of, self.isolation, self.memory_limit)
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise DefinitionError(f"task {self.name!r} is a generator; a task returns one value")
        self.is_async = inspect.iscoroutinefunction(function)
        self.signature = Signature(self.name, function)
        if self.signature.result.flows and not self.store_result:
            raise DefinitionError(
                f"{of}a task that returns a flow needs store_result=True: its record has the flow"
            )
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
        self.send_chain = send_chain
        self._declare = declare
        self._scheduled = False
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

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

    def _step(self) -> StepCall:
        return StepCall(self, {})

    def options(self, **options: Unpack[EnqueueOptions]) -> TaskCall[P, R]:
        """The same task with options for one job, kept apart from its arguments."""
        return TaskCall(self, options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        """A request for `app.enqueue_many`. InvalidArguments if the arguments do not fit the signature."""
        return self.request({}, args, kwargs)

    def request(self, options: EnqueueOptions, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> JobRequest[R]:
        """A request with options, untyped. `bind` and `options(...).bind` are the typed forms."""
        return JobRequest(self, self.signature.encode(self.signature.bind(args, kwargs)), options)

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
class TaskCall(Step[P, R]):
    """A task with options for one job."""

    __slots__ = ("options", "task")

    def __init__(self, task: Task[P, R], options: EnqueueOptions) -> None:
        self.task = task
        self.options = checked_options(options)

    def _step(self) -> StepCall:
        return StepCall(self.task, self.options)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> JobRequest[R]:
        return self.task.request(self.options, args, kwargs)

    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`Task.enqueue` with these options."""
        return await self.task.send(self.bind(*args, **kwargs))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`Task.enqueue_sync` with these options."""
        return self.task.send_sync(self.bind(*args, **kwargs))
