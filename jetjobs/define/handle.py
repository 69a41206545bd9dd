"""Job handles: the id, status and result of a stored job. The app injects the access to the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from datetime import datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from jetjobs.define.flows.flow_handle import FlowLookup
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.job import JobStatus
from jetjobs.model.public import public
from jetjobs.model.views.job_changes import CancelAnswer, MoveAnswer

R = TypeVar("R")

_DEFAULT_TIMEOUT = timedelta(hours=1)


class JobLookup(Protocol):
    """What a handle needs from the server."""

    def result(
        self, handle: JobHandle[Any], decode: Callable[[bytes], Any], timeout_s: float
    ) -> Awaitable[Any]: ...

    def result_sync(self, handle: JobHandle[Any], decode: Callable[[bytes], Any], timeout_s: float) -> Any: ...

    def shown(self, handle: JobHandle[Any], timeout_s: float) -> Awaitable[Any]: ...

    def status(self, handle: JobHandle[Any]) -> Awaitable[JobStatus]: ...

    def follow(self, handle: JobHandle[Any]) -> AsyncIterator[JobStatus]: ...

    @property
    def jobs(self) -> JobChanges: ...

    @property
    def flows(self) -> FlowLookup: ...


class JobChanges(Protocol):
    """What a handle changes on the server: operations of `app.jobs`."""

    def cancel(
        self, job_id: str, /, *, queue: str, task: str, by: str, reason: str, timeout: Duration
    ) -> Awaitable[CancelAnswer]: ...

    def run_now(self, job_id: str, /, *, queue: str, task: str, by: str, reason: str) -> Awaitable[MoveAnswer]: ...

    def reschedule(
        self,
        job_id: str,
        run_at: datetime | None,
        /,
        *,
        delay: Duration | None,
        queue: str,
        task: str,
        by: str,
        reason: str,
    ) -> Awaitable[MoveAnswer]: ...


@public("jetjobs")
class JobHandle(Generic[R]):
    """A stored job. `duplicate` is True if the job existed already: this is then the handle of that live job.

    `await handle` waits for its result.
    """

    __slots__ = ("_decode", "_lookup", "duplicate", "id", "queue", "run", "stores_result", "task")

    def __init__(
        self,
        job_id: str,
        queue: str,
        task: str,
        *,
        run: str,
        stores_result: bool,
        duplicate: bool,
    ) -> None:
        self.id = job_id
        self.queue = queue
        self.task = task
        self.run = run
        """Distinguishes this job from others that had the same id; empty if unknown."""
        self.stores_result = stores_result
        self.duplicate = duplicate
        self._lookup: JobLookup | None = None
        self._decode: Callable[[bytes], Any] | None = None

    def attach(self, lookup: JobLookup, decode: Callable[[bytes], Any]) -> JobHandle[R]:
        """Connect the handle to the server. Called by the app."""
        self._lookup = lookup
        self._decode = decode
        return self

    def __await__(self) -> Generator[Any, Any, R]:
        return self.result().__await__()

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job has ended and return the result of the task. The worker pushes it to the caller; the
        server is asked once a second in case the push got lost.

        Raises JobFailed if the job is dead, JobCancelled if it was cancelled, ResultNotReady, which is also a
        TimeoutError, after `timeout` (default: one hour), and ResultExpired if the record has expired or the task
        stores no result.
        """
        seconds = _seconds(timeout)
        assert self._lookup is not None
        assert self._decode is not None
        return cast(R, await self._lookup.result(self, self._decode, seconds))

    def result_sync(self, timeout: Duration | None = None) -> R:
        """`result` for code without an event loop: `handle.result_sync(10)`. See `app.sync`."""
        assert self._lookup is not None
        assert self._decode is not None
        return cast(R, self._lookup.result_sync(self, self._decode, _seconds(timeout)))

    async def shown_result(self, timeout: Duration | None = None) -> Any:
        """The result as plain JSON with `***` in place of secrets. Waits and raises like `result`."""
        seconds = _seconds(timeout)
        assert self._lookup is not None
        return await self._lookup.shown(self, seconds)

    async def status(self) -> JobStatus:
        """The current status of the job."""
        assert self._lookup is not None
        return await self._lookup.status(self)

    def follow(self) -> AsyncIterator[JobStatus]:
        """The status now and after each change of state or progress, until the job has ended:
        `async for status in handle.follow()`. Changes are pushed; a lost push is noticed within two seconds.
        """
        assert self._lookup is not None
        return self._lookup.follow(self)

    async def cancel(self, *, reason: str = "", by: str = "", timeout: Duration = "10s") -> CancelAnswer:
        """Cancel the job and report the outcome, as `app.jobs.cancel` does."""
        assert self._lookup is not None
        where = {"queue": self.queue, "task": self.task}
        return await self._lookup.jobs.cancel(self.id, **where, by=by, reason=reason, timeout=timeout)

    async def run_now(self, *, by: str = "", reason: str = "") -> MoveAnswer:
        """Make the job due now if it is scheduled or retrying, as `app.jobs.run_now` does."""
        assert self._lookup is not None
        where = {"queue": self.queue, "task": self.task}
        return await self._lookup.jobs.run_now(self.id, **where, by=by, reason=reason)

    async def reschedule(
        self, *, delay: Duration | None = None, at: datetime | None = None, by: str = "", reason: str = ""
    ) -> MoveAnswer:
        """Change when the job runs if it is scheduled or retrying, as `app.jobs.reschedule` does."""
        assert self._lookup is not None
        where = {"queue": self.queue, "task": self.task}
        return await self._lookup.jobs.reschedule(self.id, at, delay=delay, **where, by=by, reason=reason)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.task}@{self.queue}{' duplicate' if self.duplicate else ''}>"


def _seconds(timeout: Duration | None) -> float:
    return to_duration("timeout", _DEFAULT_TIMEOUT if timeout is None else timeout).total_seconds()
