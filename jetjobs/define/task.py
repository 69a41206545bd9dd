"""A task: a function under a stable name, and the typed way to request a run of it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, Self, TypedDict, TypeVar, Unpack

from jetjobs.define.depends import check as check_dependency
from jetjobs.define.handle import JobHandle
from jetjobs.define.signature import Signature
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.ids import check_job_id
from jetjobs.model.names import SECRET, check_header, check_lane, check_token, has_wire_form
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.schedule import Misfire, Overlap, Schedule, make_schedule
from jetjobs.model.secrets import write_paths, write_result_paths

P = ParamSpec("P")
R = TypeVar("R")

MAX_KEY_LENGTH = 1024
LAST_YEAR = 2261
"""The server counts nanoseconds since 1970 in 63 bits: a later schedule would be fired at once."""
MIN_MEMORY = 16 * 2**20
"""Less than this would hardly let a task begin."""


class TaskOptions(TypedDict, total=False):
    """What may be said of a task where it is declared."""

    name: str
    """Stable name on the wire; the function's own by default."""
    queue: str
    priority: str
    retry: RetryPolicy
    timeout: timedelta
    """How long one attempt may take."""
    result_ttl: timedelta
    """How long the result is kept."""
    store_result: bool
    """False: keep no record of success; the fastest way where nobody asks."""
    isolation: Literal["none", "process"]
    """process: run in a child process, which can be stopped at any point and may die without harm."""
    memory_limit: int
    """Bytes of address space the child may take for the task, above what it has when idle."""


class EnqueueOptions(TypedDict, total=False):
    """What may be said of one job, apart from its arguments."""

    queue: str
    priority: str
    delay: timedelta
    run_at: datetime
    key: str
    """Idempotency key: while a job of this task and key is alive, no second one is stored."""
    job_id: str
    """An id of the caller's own: while it is alive, no second one is stored."""
    deadline: datetime
    """A job that has not ended by then is dead-lettered as expired."""
    max_attempts: int
    retry: RetryPolicy
    """A policy for this job instead of the task's; without functions and exception classes."""
    headers: Mapping[str, str]


class ScheduleOptions(TypedDict, total=False):
    """What may be said of a schedule, apart from its rule."""

    name: str
    args: Mapping[str, Any]
    """The task's arguments. One named `slot`, of type datetime, is filled in with the time of the tick."""
    queue: str
    priority: str
    tz: str
    """IANA name of the time zone that a cron expression speaks of; UTC by default."""
    anchor: datetime
    """From where an interval counts."""
    start: datetime
    end: datetime
    jitter: timedelta
    """Each tick is due up to so much after its slot."""
    misfire: Misfire
    """Of slots that nobody could plan in time: only the last (the default), all up to misfire_limit, or skip."""
    misfire_limit: int
    overlap: Overlap
    """skip: no tick runs while an earlier one of the schedule is alive."""
    paused: bool


class JobRequest(NamedTuple, Generic[R]):
    """A checked call, ready to be stored: `task.bind(...)` makes one."""

    task: Task[Any, R]
    body: bytes
    options: EnqueueOptions

    def __repr__(self) -> str:
        return f"<JobRequest {self.task.name}>"  # the body may hold secrets


Send = Callable[[JobRequest[Any]], Awaitable[JobHandle[Any]]]
Declare = Callable[[Schedule], None]


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
        self._send = send
        self._declare = declare
        self.__name__ = self.name
        self.__doc__ = function.__doc__
        self.__wrapped__ = function

    def _check_options(self) -> None:
        of = f"task {self.name!r}: "
        _check_type(of + "retry", self.retry, RetryPolicy)
        _check_type(of + "result_ttl", self.result_ttl, timedelta)
        _check_type(of + "store_result", self.store_result, bool)
        if self.timeout is not None:
            _check_type(of + "timeout", self.timeout, timedelta)
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
        return await self._send(self.bind(*args, **kwargs))

    async def send(self, request: JobRequest[R]) -> JobHandle[R]:
        return await self._send(request)

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
        self._declare(schedule_of(self, self.name, {**rule, **options}))
        return self

    def __repr__(self) -> str:
        return f"<Task {self.name} queue={self.queue}>"


class AsyncTask(Task[P, R]):
    """A task over `async def`; runs on the worker's event loop, or on that of a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        call: Coroutine[Any, Any, R] = self.function(*args, **kwargs)
        return call


class SyncTask(Task[P, R]):
    """A task over `def`; runs in a thread of the worker, or in a child process."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = self.function(*args, **kwargs)
        return value


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


def schedule_of(task: Task[Any, Any], name: str, options: Mapping[str, Any]) -> Schedule:
    """A schedule of the task, with its arguments checked. DefinitionError or InvalidArguments."""
    if unknown := options.keys() - _SCHEDULE_KNOWN:
        known = ", ".join(sorted(_SCHEDULE_KNOWN))
        raise DefinitionError(f"unknown schedule option {sorted(unknown)[0]!r}", hint=f"known: {known}")
    args = options.get("args", {})
    _check_type("args", args, Mapping)
    fills_in = task.signature.takes_slot and "slot" not in args
    body = task.request({}, (), {**args, "slot": datetime.now(UTC)} if fills_in else args).body
    values = {"name": name, "queue": task.queue, "priority": task.priority, **options}
    return make_schedule(
        {
            **values,
            "task": task.name,
            "args": {k: v for k, v in json.loads(body).items() if not (fills_in and k == "slot")},
            "takes_slot": fills_in,
            "headers": task.own_headers,
        }
    )


_KNOWN = frozenset(EnqueueOptions.__annotations__)
_SCHEDULE_KNOWN = frozenset(ScheduleOptions.__annotations__) | {"cron", "every"}


def check_options(options: EnqueueOptions) -> None:
    """Refuse what cannot work before anything is sent."""
    if unknown := options.keys() - _KNOWN:
        raise DefinitionError(f"unknown option {sorted(unknown)[0]!r}", hint=f"known: {', '.join(sorted(_KNOWN))}")
    if "queue" in options:
        check_token("queue", options["queue"])
    if "priority" in options:
        check_lane(options["priority"])
    if "job_id" in options:
        check_job_id(options["job_id"])
    if "key" in options:
        _check_key(options["key"])
    if "max_attempts" in options:
        _check_attempts(options["max_attempts"])
    if "retry" in options:
        _check_type("retry", options["retry"], RetryPolicy)
        options["retry"].to_header()
    if "headers" in options:
        _check_type("headers", options["headers"], Mapping)
        for name, value in options["headers"].items():
            check_header(name, value)
    _check_times(options)


def _check_times(options: EnqueueOptions) -> None:
    if "delay" in options and "run_at" in options:
        raise DefinitionError("give delay or run_at, not both")
    if "delay" in options:
        check_delay(options["delay"])
    if "run_at" in options:
        check_moment("run_at", options["run_at"])
    if "deadline" in options:
        check_moment("deadline", options["deadline"])


def check_delay(delay: timedelta) -> None:
    """DefinitionError for one that is negative, or ends when the server can hold no time any more."""
    _check_type("delay", delay, timedelta)
    if delay < timedelta(0):
        raise DefinitionError("delay must not be negative")
    try:
        within = (datetime.now(UTC) + delay).year <= LAST_YEAR
    except OverflowError:
        within = False
    if not within:
        raise DefinitionError(f"delay ends after the year {LAST_YEAR}")


def check_moment(name: str, moment: datetime) -> None:
    """DefinitionError for a time without a zone, and for one that the server would take for now."""
    _check_type(name, moment, datetime)
    if moment.utcoffset() is None:
        raise DefinitionError(f"{name} has no time zone", hint="use an aware datetime, such as datetime.now(UTC)")
    try:
        within = 1970 <= moment.astimezone(UTC).year <= LAST_YEAR
    except OverflowError:
        within = False
    if not within:
        raise DefinitionError(f"{name} is not within the years 1970 to {LAST_YEAR} of UTC")


def _check_attempts(number: int) -> None:
    # True is an int to Python, and would be the text "True" on the wire.
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < 10**9:
        raise DefinitionError("max_attempts must be a whole number from 1 to 999,999,999")


def _check_type(what: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise DefinitionError(f"{what} must be a {wanted.__name__}, not {type(value).__name__}")


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
        raise DefinitionError(f"key must be text of 1 to {MAX_KEY_LENGTH} characters")
    if any(c in key for c in "\r\n\0"):
        raise DefinitionError("key must not hold line breaks or NUL")
    if not has_wire_form(key):
        raise DefinitionError("key has no UTF-8 form")
