"""The running attempt, as the task sees it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Iterator, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar, overload

from pydantic import TypeAdapter

from jetjobs.define.checkpoint import check_progress, decode, encode
from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.public import public
from jetjobs.model.wire.headers import OF_SCHEDULE, SCHEDULED_TIME
from jetjobs.model.wire.lenient_json import as_time

T = TypeVar("T")

_log = logging.getLogger("jetjobs.task")


class AttemptServices(Protocol):
    """What a running job may tell its worker, and ask of it: the worker has one, and so have its child processes.

    `attempt` is the object by which the worker knows the attempt; values are JSON."""

    def report(self, attempt: Any, fraction: float, message: str | None) -> None: ...

    def save(self, attempt: Any, value: bytes) -> Awaitable[None]: ...

    def save_sync(self, attempt: Any, value: bytes) -> None: ...

    def load(self, attempt: Any) -> Awaitable[bytes | None]: ...

    def load_sync(self, attempt: Any) -> bytes | None: ...


@public("jetjobs")
class ScheduledRun(NamedTuple):
    """Which tick of which schedule a job is."""

    name: str
    scheduled_time: datetime


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's facts to those of each line. The plain adapter would put them in the place of the line's."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


@public("jetjobs")
class Context:
    """The job that runs here. Obtained by `current_job()`; valid until the task returns."""

    __slots__ = ("_attempt", "_deadline", "_services", "delivery", "fence", "job", "worker")

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
        """Rises with every delivery of the lane: a store can refuse a write that carries an older one."""
        self.delivery = delivery
        """How often the server has handed out this message; above 1 after a crash."""
        self._deadline = deadline
        self._services = services
        self._attempt = attempt

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
        """Counts from 1; rises with retries only."""
        return self.job.attempt

    @property
    def headers(self) -> dict[str, str]:
        """The caller's own headers."""
        return self.job.carried

    @property
    def enqueued_at(self) -> datetime | None:
        return as_time(self.job.enqueued_at)

    @property
    def parent_id(self) -> str | None:
        """The job that enqueued this one from within its task; None for any other."""
        return lineage_of(self.job.headers)[0]

    @property
    def root_id(self) -> str:
        """The first job of the line that this one descends from; its own id where nothing enqueued it."""
        return lineage_of(self.job.headers)[1] or self.job.id

    @property
    def schedule(self) -> ScheduledRun | None:
        """The schedule that this job is a tick of, and its scheduled time; None for any other job."""
        name, scheduled_time = self.job.headers.get(OF_SCHEDULE), self.job.headers.get(SCHEDULED_TIME)
        if not name or not scheduled_time:
            return None
        try:
            return ScheduledRun(name, datetime.fromisoformat(scheduled_time))
        except ValueError:
            return None  # written by hand

    @property
    def deadline(self) -> datetime:
        """When this attempt will be stopped, in UTC."""
        return datetime.fromtimestamp(time.time() + self.remaining_s, UTC)

    @property
    def remaining_s(self) -> float:
        """Seconds until this attempt will be stopped."""
        return max(0.0, self._deadline - time.monotonic())

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job's id, task, queue and attempt."""
        return _JobLogger(_log, self.log_fields)

    @property
    def log_fields(self) -> dict[str, Any]:
        """What tells a log line's job."""
        return {
            "job_id": self.id,
            "root_id": self.root_id,
            "task": self.task,
            "queue": self.queue,
            "attempt": self.attempt,
        }

    # What others see of the work, and what the next run is to know of it.

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Say how far the work is, from 0 to 1, with up to 500 characters for people. ValueError otherwise.

        It costs next to nothing and may be called from any thread, as often as you like: the newest is shown, a
        few times a second.
        """
        fraction = check_progress(fraction, message)
        if self._services is not None:
            self._services.report(self._attempt, fraction, message)

    def checkpoint(self, value: Any) -> Awaitable[None]:
        """Keep `value` for the next run of this job, if there is one. Await it: then it is stored.

        Up to 64 KiB as JSON; each takes the place of the one before. UnstorableValue for
        what cannot be kept, LeaseLost when the job is another worker's by now.
        """
        _expect_loop(True, "checkpoint", "checkpoint_sync")
        return self._required_services().save(self._attempt, encode(value))

    def checkpoint_sync(self, value: Any) -> None:
        """`checkpoint` for plain functions: stored when it returns."""
        _expect_loop(False, "checkpoint", "checkpoint_sync")
        self._required_services().save_sync(self._attempt, encode(value))

    @overload
    def resume(self) -> Awaitable[Any]: ...
    @overload
    def resume(self, kind: type[T]) -> Awaitable[T | None]: ...
    @overload
    def resume(self, kind: TypeAdapter[T]) -> Awaitable[T | None]: ...
    def resume(self, kind: Any = Any) -> Awaitable[Any]:
        """The last checkpoint of this job, as `kind`: a pydantic model, another type, or a TypeAdapter. None when
        there is none. CheckpointError when it does not fit."""
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
            raise JetJobsError("nothing keeps checkpoints here", hint="checkpoints work in a job run by a worker")
        return self._services


def _expect_loop(wanted: bool, awaited: str, plain: str) -> None:
    """One form would not be awaited in a plain function, the other would block the event loop: refuse both."""
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
    """The context of the job that runs here. JetJobsError outside of one."""
    context = _current.get()
    if context is None:
        raise JetJobsError("no job runs here", hint="current_job() works inside a task run by a worker")
    return context


def enter_job(context: Context) -> None:
    """Make `context` the current one. Each job runs in a context of its own, so nothing is put back."""
    _current.set(context)


@contextlib.contextmanager
def outside_jobs() -> Iterator[None]:
    """For what is made within a job and outlives it: whatever that starts is not the job's doing."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def running_job() -> Context | None:
    """Like `current_job`, but None outside of a job: for log filters."""
    return _current.get()
