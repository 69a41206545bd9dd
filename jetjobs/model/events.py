"""The events that observers receive."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.public import Record, made_per_job, public


@public("jetjobs.events")
@made_per_job
@dataclass(frozen=True)
class JobEnqueued(Record):
    """A job was stored, or already existed."""

    queue: str
    task: str
    job_id: str
    duplicate: bool
    took_s: float
    """How long the call took. Of jobs stored together, only the first of each queue has it; the others have 0."""


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class EnqueueFailed(Record):
    """A job could not be stored, or was not confirmed. `took_s` is as in `JobEnqueued`."""

    queue: str
    task: str
    error_type: str
    error: str
    took_s: float


@public("jetjobs.events")
@made_per_job
@dataclass(frozen=True)
class JobStarted(Record):
    """An attempt starts. `wait_s` is the time since the job was due."""

    queue: str
    task: str
    job_id: str
    attempt: int
    delivery: int
    wait_s: float


@public("jetjobs.events")
@made_per_job
@dataclass(frozen=True)
class JobFinished(Record):
    """An attempt has ended, and its outcome is stored."""

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
    """0 for a job that the server no longer delivered and that the leader has dead-lettered."""
    sequence: int = 0
    """Sequence of the message in the work stream."""
    root_id: str = ""
    """The first job in the chain of parents; empty if no other job enqueued this one."""
    max_attempts: int = 0
    """How many attempts the job may have; set for a failed attempt."""
    schedule: str = ""
    """The schedule that enqueued the job, if one did."""


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class Redelivered(Record):
    """A message was delivered again because its lease expired or its worker died.

    Released and retried jobs come as new messages, so that a redelivery is always unexpected.
    """

    queue: str
    lane: str
    sequence: int
    delivery: int


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class LeaseLostEvent(Record):
    """The lease of a running job expired. Nothing was changed on the server."""

    queue: str
    task: str
    job_id: str


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class SettleFailed(Record):
    """The outcome of a job could not be stored."""

    queue: str
    task: str
    job_id: str
    error: str
    kind: Literal["outcome", "record", "webhook"] = "outcome"
    """outcome: the delivery is not acked, and the job is delivered again. record: storage was full, and a job that
    succeeded was acked without a record. webhook: this user may not store the job's webhook, and it is lost.
    """


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class ConnectionLost(Record):
    """The connection is lost; the client reconnects. Once more when a server refuses it or is refused."""

    error: str


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class ConnectionRestored(Record):
    """The connection is restored."""

    outage_s: float
    server: str


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class PermissionDenied(Record):
    """The server refused a message or a subscription of this process."""

    kind: Literal["publish", "subscribe"]
    subject: str
    """With `>` in place of what differs from message to message, in subjects of acks and replies."""
    repeated: bool
    """Whether this subject, or one that differs only in an id, was refused before on this connection."""


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class WorkerChanged(Record):
    """The worker entered another phase: started, ready, recycling, quiet, stopped."""

    phase: str
    detail: str = ""


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class LaneTrouble(Record):
    """Workers cannot pull from a lane at the moment."""

    queue: str
    lane: str
    error: str


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class ThreadStuck(Record):
    """A thread still runs a task that has timed out and cannot be stopped. `stuck` counts such threads."""

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
    | PermissionDenied
    | WorkerChanged
    | LaneTrouble
    | ThreadStuck
)
Observer = Callable[[Event], None]
