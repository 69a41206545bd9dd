"""Decide what follows an attempt. Pure: the runner reports, this module answers, settlement carries it out."""

from __future__ import annotations

import math
import traceback as tb
from enum import StrEnum
from typing import NamedTuple

from jetjobs.model.error_classification import Verdict
from jetjobs.model.errors import (
    AttemptError,
    ChildRaised,
    DeliveryError,
    InvalidArguments,
    MalformedJob,
    Reject,
    Retry,
    Signal,
    Snooze,
    UnknownTask,
    UnstorableValue,
)
from jetjobs.model.job import Job
from jetjobs.model.public import public
from jetjobs.model.retry import RetryPolicy, delay_s

MAX_TEXT = 1_000
MAX_TRACEBACK = 8_000
MAX_WAIT_S = 10 * 365 * 86400.0


class DeadReason(StrEnum):
    """Why a job will not run again by itself. A closed set: also a metric label."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    MALFORMED = "malformed"
    UNKNOWN_TASK = "unknown_task"
    INVALID_ARGUMENTS = "invalid_arguments"
    EXPIRED = "expired"
    CRASHED = "crashed"


@public("jetjobs.events")
class ErrorInfo(NamedTuple):
    """An exception as text: it crosses processes, and is never rebuilt."""

    type: str
    text: str
    traceback: str = ""


class Succeeded(NamedTuple):
    """The task returned. `result` is JSON, or None where the task keeps no result."""

    result: bytes | None
    name: str = "succeeded"


class Retried(NamedTuple):
    """The attempt failed and another one follows after `delay_s`."""

    delay_s: float
    error: ErrorInfo
    name: str = "retried"


class Snoozed(NamedTuple):
    """The task asks to be called later; the attempt was not spent."""

    delay_s: float
    name: str = "snoozed"


class Released(NamedTuple):
    """The worker gives the delivery back; the attempt was not spent."""

    name: str = "released"


class Suspected(NamedTuple):
    """One crash short of the limit: it goes to lane `back` with its count, to run with nothing new beside it."""

    name: str = "suspected"


class Cancelled(NamedTuple):
    """Somebody has cancelled the job. It is kept as a record for a while, and does not run again."""

    by: str
    why: str
    how: str = ""
    """How it was ended while it ran, `stopped` or `killed`; empty for one that did not run."""
    name: str = "cancelled"


class DeadLettered(NamedTuple):
    """The job will not run again by itself."""

    reason: DeadReason
    error: ErrorInfo
    name: str = "dead_lettered"


class Abandoned(NamedTuple):
    """Nothing is published. `ack` when the job already stands in its next place; not when the lease is lost."""

    ack: bool
    name: str = "let_go"


Outcome = Succeeded | Retried | Snoozed | Released | Suspected | Cancelled | DeadLettered | Abandoned


def refuse(error: DeliveryError) -> DeadLettered:
    """What follows a delivery that cannot run at all: trying again would not change it."""
    return DeadLettered(_REASONS.get(type(error), DeadReason.MALFORMED), ErrorInfo(*describe(error)[:2]))


def decide(
    job: Job, error: BaseException, policy: RetryPolicy, verdict: Verdict, now: float, draw: float
) -> Retried | Snoozed | DeadLettered:
    """What follows a failed attempt. `draw` is a random number from 0 to 1 for the jitter."""
    if isinstance(error, Snooze):
        return _snooze(job, error, now)
    info = describe(error)
    if not is_retryable(error, policy, verdict):
        return DeadLettered(DeadReason.PERMANENT, info)
    if job.attempt >= (job.max_attempts or policy.max_attempts):
        return DeadLettered(DeadReason.EXHAUSTED, info)
    asked = (
        error.after.total_seconds() if isinstance(error, Retry) and error.after is not None else verdict.after_s
    )
    usable = asked is not None and math.isfinite(asked)
    wait = _bounded(asked or 0.0 if usable else delay_s(job.attempt, policy, draw))
    too_old = policy.max_age is not None and now + wait > job.enqueued_at + policy.max_age.total_seconds()
    if too_old or (job.deadline and now + wait >= job.deadline):
        return DeadLettered(DeadReason.EXPIRED, info)
    return Retried(wait, info)


def is_retryable(error: BaseException, policy: RetryPolicy, verdict: Verdict) -> bool:
    """The task's own lists go before the app's verdict; a task that asks for a retry gets it."""
    # A result that cannot be kept: another run would do the work twice and return the same.
    if isinstance(error, (Reject, UnstorableValue)):
        return False
    if isinstance(error, Retry):
        return True
    if isinstance(error, policy.dead_on):
        return False
    # What a child process raised was weighed there, lists and all: here its class is not to be had.
    if policy.retry_on and not isinstance(error, ChildRaised):
        return isinstance(error, policy.retry_on)
    return verdict.transient


def _bounded(wait: float) -> float:
    """No wait is negative, and none ends beyond what a date can say."""
    return min(max(0.0, wait), MAX_WAIT_S)


def _snooze(job: Job, signal: Snooze, now: float) -> Snoozed | DeadLettered:
    until = signal.until.timestamp() if signal.until is not None else now
    wait = _bounded(until - now if signal.after is None else signal.after.total_seconds())
    if job.deadline and now + wait >= job.deadline:
        return DeadLettered(DeadReason.EXPIRED, describe(signal))
    return Snoozed(wait)


_REASONS: dict[type[BaseException], DeadReason] = {
    MalformedJob: DeadReason.MALFORMED,
    UnknownTask: DeadReason.UNKNOWN_TASK,
    InvalidArguments: DeadReason.INVALID_ARGUMENTS,
}


def describe(error: BaseException) -> ErrorInfo:
    """The error as capped text."""
    if isinstance(error, AttemptError | Signal) and isinstance(error.child_error, ErrorInfo):
        return error.child_error
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    try:
        text = str(error)
    except Exception:  # a broken __str__ must not take the worker down
        text = "<unprintable>"
    trace = "".join(tb.format_exception(error))
    return ErrorInfo(name, text[:MAX_TEXT], trace[-MAX_TRACEBACK:])
