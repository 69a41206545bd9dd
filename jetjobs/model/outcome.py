"""The signals by which a task chooses its outcome, all outcomes of an attempt, and the reasons for a dead letter.

Values only: `decision` chooses among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError
from jetjobs.model.public import Record, public


@public("jetjobs.errors")
class Signal(Exception):
    """Raised by a task to control what follows. It is not an error: `except JetJobsError` does not catch it."""

    child_error: object = None
    """The signal as the child process described it, if it was raised there."""


@public("jetjobs.errors")
class Retry(Signal):
    """This attempt failed; try again `after` this time. Without a time, the retry policy decides."""

    def __init__(self, after: Duration | None = None, reason: str = "retry requested") -> None:
        super().__init__(reason)
        self.after = None if after is None else to_duration("after", after, of="Retry: ")


@public("jetjobs.errors")
class Snooze(Signal):
    """Run the job again `after` this time, or at `until`. This never uses up an attempt."""

    def __init__(
        self, after: Duration | None = None, *, until: datetime | None = None, reason: str = "snoozed"
    ) -> None:
        super().__init__(reason)
        if (after is None) == (until is None):
            raise DefinitionError("Snooze takes either `after` or `until`")
        if until is not None and (not isinstance(until, datetime) or until.utcoffset() is None):
            raise DefinitionError(
                f"Snooze: invalid until {until!r:.80}: use an aware datetime, such as datetime.now(UTC)"
            )
        self.after = None if after is None else to_duration("after", after, of="Snooze: ")
        self.until = until


@public("jetjobs.errors")
class Reject(Signal):
    """Do not run the job again: it becomes a dead letter with reason `permanent` and this text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


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
@dataclass(frozen=True, slots=True)
class ErrorInfo(Record):
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
    """Nothing is published. `ack` if the job is in its next place or not needed, not if the lease is lost."""

    ack: bool
    ended: bool = False
    """Whether its end may be stored already: then what follows it is repeated."""
    name: str = "abandoned"


Outcome = Succeeded | Retried | Snoozed | Parked | Released | Suspected | Cancelled | DeadLettered | Abandoned


def parked_text(task: str, known: bool) -> str:
    """What a parked job waits for."""
    return f"waits for a worker that knows task {task!r}" if known else f"no worker knows task {task!r}"
