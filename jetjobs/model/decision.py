"""Decide what follows a failed attempt or a task that this worker does not know. Pure."""

from __future__ import annotations

from dataclasses import replace

from jetjobs.model.error_classification import Verdict
from jetjobs.model.errors import (
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
    Parked,
    Reject,
    Retried,
    Retry,
    Snooze,
    Snoozed,
    parked_text,
)
from jetjobs.model.retry import RetryPolicy, delay_s
from jetjobs.model.views.error_text import describe, message_of, type_name
from jetjobs.model.wire.validation import is_token

MAX_WAIT_S = 10 * 365 * 86400.0
PARK_S = 1.0
"""The first delay of a job whose task no worker knows. Then it waits as long again as it has been parked."""
PARK_KNOWN_S = 0.2
"""The first delay of a job whose task another worker knows: it may well meet that one next. Then it waits a
twentieth of the time it has been parked: enough tries for one new worker among ten, and fewer with time."""
MAX_PARK_S = 60.0


def refuse(error: DeliveryError) -> DeadLettered:
    """The outcome of a job that cannot run at all: a retry would not change that."""
    return DeadLettered(
        _REASONS.get(type(error), DeadReason.MALFORMED), ErrorInfo(type_name(error), message_of(error))
    )


def park(
    job: Job, error: UnknownTask, since: float, known: bool, grace_s: float, now: float, draw: float
) -> Parked | DeadLettered:
    """The outcome of a job whose task this worker does not know.

    `since` is when it was parked first, 0 if it never was. `known` says whether a running worker that takes the
    queue knows the task; if none does, the job is dead once `grace_s` have passed. A name that no task can have is
    dead at once. `draw` is as for `decide`.
    """
    since = min(since, now) if since > 0.0 else now
    parked_s = now - since
    info = ErrorInfo(type_name(error), parked_text(job.task, known))
    if known:
        longest = max(PARK_KNOWN_S, parked_s / 20)
    elif parked_s < grace_s and is_token(job.task):
        longest = max(PARK_S, parked_s)
    else:
        hint = f"; {error.hint}" if error.hint else ""
        return DeadLettered(DeadReason.UNKNOWN_TASK, replace(info, text=f"{error}{hint}"))
    wait = min(longest, MAX_PARK_S) * (0.5 + draw / 2)
    if not known:
        wait = min(wait, grace_s - parked_s)
    if job.deadline:
        # Delivered again at its deadline, the job expires there like any other.
        wait = min(wait, max(0.0, job.deadline - now))
    return Parked(wait, since, known, info)


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
