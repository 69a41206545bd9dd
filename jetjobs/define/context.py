"""The running attempt, as the task sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import Job, at

_log = logging.getLogger("jetjobs.task")


class _JobLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the job's facts to those of each line. The plain adapter would put them in the place of the line's."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class Context:
    """The job that runs here. Obtained by `current_job()`; valid until the task returns."""

    __slots__ = ("_deadline", "delivery", "fence", "job", "worker")

    def __init__(self, job: Job, worker: str, fence: int, delivery: int, deadline: float) -> None:
        self.job = job
        self.worker = worker
        self.fence = fence
        """Rises with every delivery of the lane: a store can refuse a write that carries an older one."""
        self.delivery = delivery
        """How often the server has handed out this message; above 1 after a crash."""
        self._deadline = deadline

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
        return at(self.job.enqueued_at)

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
        return _JobLogger(
            _log, {"job_id": self.id, "task": self.task, "queue": self.queue, "attempt": self.attempt}
        )


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


def running_job() -> Context | None:
    """Like `current_job`, but None outside of a job: for log filters."""
    return _current.get()
