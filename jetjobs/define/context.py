"""The context of a running attempt, as the task sees it, and the middleware around the attempt."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar, overload

from pydantic import TypeAdapter

from jetjobs.define.checkpoint import check_progress, decode, encode
from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.public import Record, public
from jetjobs.model.wire.headers import OF_SCHEDULE, SCHEDULED_TIME
from jetjobs.model.wire.lenient_json import as_time, read_iso_time

T = TypeVar("T")

_log = logging.getLogger("jetjobs.task")


class AttemptServices(Protocol):
    """Progress and checkpoints of running jobs. The worker implements it, and so does each child process.

    `attempt` is the implementation's own object for the attempt. Values are JSON.
    """

    def report(self, attempt: Any, fraction: float, message: str | None) -> None: ...

    def save(self, attempt: Any, value: bytes) -> Awaitable[None]: ...

    def save_sync(self, attempt: Any, value: bytes) -> None: ...

    def load(self, attempt: Any) -> Awaitable[bytes | None]: ...

    def load_sync(self, attempt: Any) -> bytes | None: ...


@public("jetjobs")
@dataclass(frozen=True, slots=True)
class ScheduledRun(Record):
    """The schedule that a job is a tick of, and its scheduled time."""

    name: str
    scheduled_time: datetime


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the fields of the job to each log line. The standard adapter would replace the fields of the line."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


@public("jetjobs")
class Context:
    """The running job. `current_job()` returns it; it is valid until the task returns."""

    __slots__ = ("_attempt", "_deadline", "_services", "_unawaited", "delivery", "fence", "job", "worker")

    def __init__(
        self,
        job: Job,
        worker: str,
        fence: int,
        delivery: int,
        deadline: float,
        services: AttemptServices | None = None,
        attempt: Any = None,
    ) -> None:
        self.job = job
        self.worker = worker
        self.fence = fence
        """Fencing token: rises with every delivery of the lane, so that a store can reject older writes."""
        self.delivery = delivery
        """How often the server has delivered this message; above 1 after a crash."""
        self._deadline = deadline
        self._services = services
        self._attempt = attempt
        self._unawaited: Exception | None = None
        """Set when the task drops a coroutine that it has not awaited. The attempt fails with it."""

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def task(self) -> str:
        return self.job.task

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1. Only retries raise it."""
        return self.job.attempt

    @property
    def headers(self) -> dict[str, str]:
        """The headers that the caller set."""
        return self.job.carried

    @property
    def enqueued_at(self) -> datetime | None:
        return as_time(self.job.enqueued_at)

    @property
    def parent_id(self) -> str | None:
        """The id of the job whose task enqueued this one; None if no job did."""
        return lineage_of(self.job.headers)[0]

    @property
    def root_id(self) -> str:
        """The id of the first job in the chain of parents; its own id if it has no parent."""
        return lineage_of(self.job.headers)[1] or self.job.id

    @property
    def schedule(self) -> ScheduledRun | None:
        """The schedule and the scheduled time of this job; None if no schedule produced it."""
        name = self.job.headers.get(OF_SCHEDULE)
        scheduled_time = read_iso_time(self.job.headers.get(SCHEDULED_TIME))
        return ScheduledRun(name, scheduled_time) if name and scheduled_time else None

    @property
    def deadline(self) -> datetime:
        """When this attempt times out, in UTC."""
        return datetime.now(UTC) + self.remaining

    @property
    def remaining(self) -> timedelta:
        """How long until this attempt times out."""
        return timedelta(seconds=max(0.0, self._deadline - time.monotonic()))

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger that adds the id, task, queue and attempt of the job to each line."""
        return _JobLogger(_log, self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """Log fields that identify the job."""
        return {
            "job_id": self.id,
            "root_id": self.root_id,
            "task": self.task,
            "queue": self.queue,
            "attempt": self.attempt,
        }

    # Progress and checkpoints

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report progress from 0 to 1, with a message of up to 500 characters. ValueError for other values.

        It is cheap and may be called from any thread as often as needed: only the newest report is published, a
        few times per second.
        """
        fraction = check_progress(fraction, message)
        if self._services is not None:
            self._services.report(self._attempt, fraction, message)

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Store `value` for the next attempt of this job. It is stored once the call has been awaited.

        A checkpoint has up to 64 KiB of JSON and replaces the previous one. UnstorableValue if it cannot be
        stored, LeaseLost if another worker runs the job by now.
        """
        _expect_loop(True, "checkpoint", "checkpoint_sync")
        return self._required_services().save(self._attempt, encode(value))

    def checkpoint_sync(self, value: Any) -> None:
        """`checkpoint` for plain functions. It is stored when the call returns."""
        _expect_loop(False, "checkpoint", "checkpoint_sync")
        self._required_services().save_sync(self._attempt, encode(value))

    @overload
    def resume(self) -> Awaitable[Any]: ...
    @overload
    def resume(self, kind: type[T]) -> Awaitable[T | None]: ...
    @overload
    def resume(self, kind: TypeAdapter[T]) -> Awaitable[T | None]: ...
    def resume(self, kind: Any = Any) -> Awaitable[Any]:
        """The last checkpoint of this job, or None. `kind` is a pydantic model, another type or a TypeAdapter.

        CheckpointError if the checkpoint does not fit `kind`.
        """
        _expect_loop(True, "resume", "resume_sync")
        return self._resume(kind)

    @overload
    def resume_sync(self) -> Any: ...
    @overload
    def resume_sync(self, kind: type[T]) -> T | None: ...
    @overload
    def resume_sync(self, kind: TypeAdapter[T]) -> T | None: ...
    def resume_sync(self, kind: Any = Any) -> Any:
        """`resume` for plain functions."""
        _expect_loop(False, "resume", "resume_sync")
        data = self._required_services().load_sync(self._attempt)
        return None if data is None else decode(data, kind)

    async def _resume(self, kind: Any) -> Any:
        data = await self._required_services().load(self._attempt)
        return None if data is None else decode(data, kind)

    def _required_services(self) -> AttemptServices:
        if self._services is None:
            raise JetJobsError("checkpoints cannot be stored here", hint="use them in a job that a worker runs")
        return self._services


def _expect_loop(wanted: bool, awaited: str, plain: str) -> None:
    """Reject an awaitable in a plain function, which cannot await it, and a call that blocks the event loop."""
    try:
        asyncio.get_running_loop()
        there = True
    except RuntimeError:
        there = False
    if there is not wanted:
        hint = f"in `async def`: await {awaited}(...); in a plain function: {plain}(...)"
        raise JetJobsError(f"{awaited if wanted else plain}() does not work here", hint=hint)


_current: ContextVar[Context | None] = ContextVar("jetjobs_current_job", default=None)


def current_job() -> Context:
    """The context of the running job. JetJobsError outside of a job."""
    context = _current.get()
    if context is None:
        raise JetJobsError("no job is running here", hint="call current_job() in a task that a worker runs")
    return context


def enter_job(context: Context) -> None:
    """Make `context` the current one. Each job runs in its own contextvars context, so it is never reset."""
    _current.set(context)


@contextlib.contextmanager
def outside_jobs() -> Iterator[None]:
    """For objects that are created within a job and outlive it: what they start does not belong to the job."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def running_job() -> Context | None:
    """`current_job`, but None outside of a job: for log filters."""
    return _current.get()


# Middleware

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
