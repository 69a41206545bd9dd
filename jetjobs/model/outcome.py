"""Decide what follows an attempt. Pure: the runner reports, this module answers, settlement carries it out."""

from __future__ import annotations

import traceback as tb
from enum import StrEnum
from typing import NamedTuple

from jetjobs.model.errors import (
    DeliveryError,
    InvalidArguments,
    MalformedJob,
    ResultNotSerializable,
    ResultTooLarge,
    UnknownTask,
)
from jetjobs.model.job import Job
from jetjobs.model.retry import RetryPolicy, delay_s

MAX_TEXT = 1_000
MAX_TRACEBACK = 8_000


class DeadReason(StrEnum):
    """Why a job will not run again by itself. A closed set: also a metric label."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    MALFORMED = "malformed"
    UNKNOWN_TASK = "unknown_task"
    INVALID_ARGUMENTS = "invalid_arguments"
    EXPIRED = "expired"
    CRASHED = "crashed"


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


class Released(NamedTuple):
    """The worker gives the delivery back; the attempt was not spent."""

    name: str = "released"


class DeadLettered(NamedTuple):
    """The job will not run again by itself."""

    reason: DeadReason
    error: ErrorInfo
    name: str = "dead_lettered"


class LetGo(NamedTuple):
    """Nothing is published. `ack` when the job already stands in its next place; not when the lease is lost."""

    ack: bool
    name: str = "let_go"


Outcome = Succeeded | Retried | Released | DeadLettered | LetGo


def refuse(error: DeliveryError) -> DeadLettered:
    """What follows a delivery that cannot run at all: trying again would not change it."""
    return DeadLettered(_REASONS.get(type(error), DeadReason.MALFORMED), ErrorInfo(*describe(error)[:2]))


def decide(job: Job, error: BaseException, policy: RetryPolicy, now: float, draw: float) -> Retried | DeadLettered:
    """What follows a failed attempt. `draw` is a random number from 0 to 1 for the jitter."""
    info = describe(error)
    if isinstance(error, _PERMANENT):
        return DeadLettered(DeadReason.PERMANENT, info)
    limit = job.max_attempts or policy.max_attempts
    if job.attempt >= limit:
        return DeadLettered(DeadReason.EXHAUSTED, info)
    wait = delay_s(job.attempt, policy, draw)
    if job.deadline and now + wait >= job.deadline:
        return DeadLettered(DeadReason.EXPIRED, info)
    return Retried(wait, info)


_REASONS: dict[type[BaseException], DeadReason] = {
    MalformedJob: DeadReason.MALFORMED,
    UnknownTask: DeadReason.UNKNOWN_TASK,
    InvalidArguments: DeadReason.INVALID_ARGUMENTS,
}


# The task has run to its end: another run would do its work twice and return the same.
_PERMANENT = (ResultNotSerializable, ResultTooLarge)


def describe(error: BaseException) -> ErrorInfo:
    """The error as capped text."""
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
