"""What happened, as values. An observer is told; it must not block and must not raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.public import public


@public("jetjobs.events")
class JobEnqueued(NamedTuple):
    """A job was stored, or found to be there already."""

    queue: str
    task: str
    job_id: str
    duplicate: bool
    took_s: float
    """How long the call took. Of jobs stored together, the first of each queue says it and the others say 0."""


@public("jetjobs.events")
class EnqueueFailed(NamedTuple):
    """A job could not be stored, or was not confirmed. `took_s` as with `JobEnqueued`."""

    queue: str
    task: str
    error_type: str
    error: str
    took_s: float


@public("jetjobs.events")
class JobStarted(NamedTuple):
    """An attempt begins. `wait_s` counts from the moment the job was due."""

    queue: str
    task: str
    job_id: str
    attempt: int
    delivery: int
    wait_s: float


@public("jetjobs.events")
class JobFinished(NamedTuple):
    """An attempt has ended and the job stands in its next place."""

    queue: str
    task: str
    job_id: str
    attempt: int
    outcome: str
    run_s: float
    wait_s: float
    reason: str = ""
    retry_in_s: float = 0.0
    error: ErrorInfo | None = None
    delivery: int = 1
    """0 for a job that the server had stopped delivering: the leader has dead-lettered it."""
    sequence: int = 0
    """Of the message in the work stream."""
    root_id: str = ""
    """The first job of the line it descends from; empty where no other job enqueued it."""
    max_attempts: int = 0
    """How many it may have; told of one that has failed."""


@public("jetjobs.events")
class Redelivered(NamedTuple):
    """A message came that was handed out before and never settled: a lease ran out, or a worker died. Jobs that
    are given back or retried come as new messages, so this is always unexpected."""

    queue: str
    lane: str
    sequence: int
    delivery: int


@public("jetjobs.events")
class LeaseLostEvent(NamedTuple):
    """A lease ran out under a job; nothing was touched on the server."""

    queue: str
    task: str
    job_id: str


@public("jetjobs.events")
class SettleFailed(NamedTuple):
    """What a job's end writes could not be stored."""

    queue: str
    task: str
    job_id: str
    error: str
    kind: Literal["outcome", "record"] = "outcome"
    """outcome: the delivery is not acked, and the job comes again. record: storage was full, so a job that has
    succeeded was acked without a record."""


@public("jetjobs.events")
class ConnectionLost(NamedTuple):
    """The connection is gone; we are reconnecting."""

    error: str


@public("jetjobs.events")
class ConnectionRestored(NamedTuple):
    """The connection is back."""

    outage_s: float
    server: str


@public("jetjobs.events")
class WorkerChanged(NamedTuple):
    """The worker went to another phase: started, ready, recycling, quiet, stopped."""

    phase: str
    detail: str = ""


@public("jetjobs.events")
class LaneTrouble(NamedTuple):
    """A lane cannot be pulled from right now, and why."""

    queue: str
    lane: str
    error: str


@public("jetjobs.events")
class ThreadStuck(NamedTuple):
    """A thread still runs a task that was given up, and cannot be stopped; `stuck` of them by now."""

    queue: str
    task: str
    job_id: str
    stuck: int


Event = (
    JobEnqueued
    | EnqueueFailed
    | JobStarted
    | JobFinished
    | Redelivered
    | LeaseLostEvent
    | SettleFailed
    | ConnectionLost
    | ConnectionRestored
    | WorkerChanged
    | LaneTrouble
    | ThreadStuck
)
Observer = Callable[[Event], None]
