"""Decide what follows a failed attempt: another attempt, a snooze, or a dead letter. Pure."""

from __future__ import annotations

import traceback as tb
from dataclasses import replace

from jetjobs.model.error_classification import Verdict
from jetjobs.model.errors import (
    AttemptError,
    ChildRaised,
    DeliveryError,
    InvalidArguments,
    MalformedJob,
    UnknownTask,
    UnstorableValue,
)
from jetjobs.model.job import Job
from jetjobs.model.outcome import (
    DeadLettered,
    DeadReason,
    ErrorInfo,
    Reject,
    Retried,
    Retry,
    Signal,
    Snooze,
    Snoozed,
)
from jetjobs.model.retry import RetryPolicy, delay_s

MAX_TEXT = 1_000
MAX_TRACEBACK = 8_000
MAX_WAIT_S = 10 * 365 * 86400.0


def refuse(error: DeliveryError) -> DeadLettered:
    """The outcome of a job that cannot run at all: a retry would not change that."""
    return DeadLettered(_REASONS.get(type(error), DeadReason.MALFORMED), replace(describe(error), traceback=""))


def decide(
    job: Job, error: BaseException, policy: RetryPolicy, verdict: Verdict, now: float, draw: float
) -> Retried | Snoozed | DeadLettered:
    """The outcome of a failed attempt. `draw` is a random number from 0 to 1 for the jitter."""
    if isinstance(error, Snooze):
        return _snooze(job, error, now)
    info = describe(error)
    if not is_retryable(error, policy, verdict):
        return DeadLettered(DeadReason.PERMANENT, info)
    if job.attempt >= (job.max_attempts or policy.max_attempts):
        return DeadLettered(DeadReason.EXHAUSTED, info)
    asked = error.after if isinstance(error, Retry) and error.after is not None else verdict.after
    wait = _bounded(delay_s(job.attempt, policy, draw) if asked is None else asked.total_seconds())
    too_old = policy.max_age is not None and now + wait > job.enqueued_at + policy.max_age.total_seconds()
    if too_old or (job.deadline and now + wait >= job.deadline):
        return DeadLettered(DeadReason.EXPIRED, info)
    return Retried(wait, info)


def is_retryable(error: BaseException, policy: RetryPolicy, verdict: Verdict) -> bool:
    """The `retry_on` and `dead_on` of the task take precedence over the verdict; a Retry is always honoured."""
    # A retry would do the work twice and return the same unstorable result.
    if isinstance(error, (Reject, UnstorableValue)):
        return False
    if isinstance(error, Retry):
        return True
    if isinstance(error, policy.dead_on):
        return False
    # The child process has checked both lists already; the class of the error is not known here.
    if policy.retry_on and not isinstance(error, ChildRaised):
        return isinstance(error, policy.retry_on)
    return verdict.transient


def _bounded(wait: float) -> float:
    """The wait, neither negative nor beyond the range of dates."""
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
    """The error as text of limited length."""
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
