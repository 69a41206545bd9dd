"""The outcomes of an attempt, and the reasons for a dead letter. Values only: `decision` chooses among them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from jetjobs.model.public import public


class DeadReason(StrEnum):
    """Why a job is dead. A fixed set, because it is also a metric label."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    MALFORMED = "malformed"
    UNKNOWN_TASK = "unknown_task"
    INVALID_ARGUMENTS = "invalid_arguments"
    EXPIRED = "expired"
    CRASHED = "crashed"


@public("jetjobs.events")
class ErrorInfo(NamedTuple):
    """An exception as text. It is sent between processes and never turned back into an exception."""

    type: str
    text: str
    traceback: str = ""


class Succeeded(NamedTuple):
    """The task returned. `result` is JSON, or None if the task stores no result."""

    result: bytes | None
    name: str = "succeeded"


class Retried(NamedTuple):
    """The attempt failed; another one follows after `delay_s`."""

    delay_s: float
    error: ErrorInfo
    name: str = "retried"


class Snoozed(NamedTuple):
    """The task asked to run later. This does not use up an attempt."""

    delay_s: float
    name: str = "snoozed"


class Parked(NamedTuple):
    """The worker does not know the task. The job waits for one that does; no attempt and no crash is counted."""

    delay_s: float
    since: float
    """When the job was parked first, in seconds since the epoch by the server's clock."""
    known: bool
    """Whether a running worker that takes the queue knows the task."""
    error: ErrorInfo
    name: str = "parked"


class Released(NamedTuple):
    """The worker returned the job to its queue. This does not use up an attempt."""

    name: str = "released"


class Suspected(NamedTuple):
    """One crash short of the limit: the job goes to lane `returned` and runs while no other job starts."""

    name: str = "suspected"


class Cancelled(NamedTuple):
    """The job was cancelled. A record of it is stored, and it does not run again."""

    by: str
    why: str
    how: str = ""
    """How the running job was ended: `stopped` or `killed`; empty if it was not running."""
    name: str = "cancelled"


class DeadLettered(NamedTuple):
    """The job is dead; only a replay runs it again."""

    reason: DeadReason
    error: ErrorInfo
    name: str = "dead_lettered"


class Abandoned(NamedTuple):
    """Nothing is published. `ack` if the outcome is already stored, not if the lease is lost."""

    ack: bool
    name: str = "abandoned"


Outcome = Succeeded | Retried | Snoozed | Parked | Released | Suspected | Cancelled | DeadLettered | Abandoned


def parked_text(task: str, known: bool) -> str:
    """What a parked job waits for."""
    return f"waits for a worker that knows task {task!r}" if known else f"no worker knows task {task!r}"
