"""The caller's end of a job: its id, its state, its result. The waiting itself is injected by the app."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any, Generic, Protocol, TypeVar, cast

from jetjobs.model.job import JobStatus
from jetjobs.model.public import public

R = TypeVar("R")


class JobLookup(Protocol):
    """What a handle needs of the server."""

    def result(
        self, handle: JobHandle[Any], decode: Callable[[bytes], Any], timeout_s: float
    ) -> Awaitable[Any]: ...

    def shown(self, handle: JobHandle[Any], timeout_s: float) -> Awaitable[Any]: ...

    def status(self, handle: JobHandle[Any]) -> Awaitable[JobStatus]: ...

    def follow(self, handle: JobHandle[Any]) -> AsyncIterator[JobStatus]: ...


@public("jetjobs")
class JobHandle(Generic[R]):
    """A stored job. `duplicate` says that it was there before, and this is the live job's handle."""

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
        """Tells this life of the id from others; empty where it is not known."""
        self.stores_result = stores_result
        self.duplicate = duplicate
        self._lookup: JobLookup | None = None
        self._decode: Callable[[bytes], Any] | None = None

    def attach(self, lookup: JobLookup, decode: Callable[[bytes], Any]) -> JobHandle[R]:
        """Give the handle its connection. Called by the app."""
        self._lookup = lookup
        self._decode = decode
        return self

    async def result(self, timeout: timedelta | None = None) -> R:
        """What the task returned. Waits for the job to end: pushed, not polled.

        Raises JobFailed when the job is dead, ResultNotReady after `timeout` (default: one hour), and
        ResultExpired when the record is gone or the task keeps none.
        """
        assert self._lookup is not None
        assert self._decode is not None
        seconds = 3600.0 if timeout is None else timeout.total_seconds()
        return cast(R, await self._lookup.result(self, self._decode, seconds))

    async def shown_result(self, timeout: timedelta | None = None) -> Any:
        """What the task returned as it may be shown: plain JSON, and `***` for what is secret in it.

        Waits and raises as `result` does.
        """
        assert self._lookup is not None
        return await self._lookup.shown(self, 3600.0 if timeout is None else timeout.total_seconds())

    async def status(self) -> JobStatus:
        """Where the job stands now."""
        assert self._lookup is not None
        return await self._lookup.status(self)

    def follow(self) -> AsyncIterator[JobStatus]:
        """Where the job stands, now and after each change of state or progress, until it has ended:
        `async for status in handle.follow()`. Pushed; a push that got lost is made up for within a second or two.
        """
        assert self._lookup is not None
        return self._lookup.follow(self)

    def __repr__(self) -> str:
        return f"<JobHandle {self.id} {self.task}@{self.queue}{' duplicate' if self.duplicate else ''}>"
