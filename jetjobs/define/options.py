"""What may be said of a task, of one job of it and of its schedules; with the checks for a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict

from jetjobs.model.errors import DefinitionError
from jetjobs.model.public import public
from jetjobs.model.retry import RetryPolicy
from jetjobs.model.schedule.schedule import Misfire, Overlap
from jetjobs.model.wire.headers import check_header
from jetjobs.model.wire.ids import check_job_id
from jetjobs.model.wire.subjects import check_lane
from jetjobs.model.wire.validation import check_token, has_wire_form

MAX_KEY_LENGTH = 1024
LAST_YEAR = 2261
"""The server counts nanoseconds since 1970 in 63 bits: a later schedule would be fired at once."""


@public("jetjobs")
class TaskOptions(TypedDict, total=False):
    """What may be said of a task where it is declared."""

    name: str
    """Stable name on the wire; the function's own by default."""
    queue: str
    priority: str
    retry: RetryPolicy
    timeout: timedelta
    """How long one attempt may take."""
    result_ttl: timedelta
    """How long the result is kept."""
    store_result: bool
    """False: keep no record of success; the fastest way where nobody asks."""
    isolation: Literal["none", "process"]
    """process: run in a child process, which can be stopped at any point and may die without harm."""
    memory_limit: int
    """Bytes of address space the child may take for the task, above what it has when idle."""


@public("jetjobs")
class EnqueueOptions(TypedDict, total=False):
    """What may be said of one job, apart from its arguments."""

    queue: str
    priority: str
    delay: timedelta
    run_at: datetime
    key: str
    """Idempotency key: while a job of this task and key is alive, no second one is stored."""
    job_id: str
    """An id of the caller's own: while it is alive, no second one is stored."""
    deadline: datetime
    """A job that has not ended by then is dead-lettered as expired."""
    max_attempts: int
    retry: RetryPolicy
    """A policy for this job instead of the task's; without functions and exception classes."""
    headers: Mapping[str, str]


@public("jetjobs")
class ScheduleOptions(TypedDict, total=False):
    """What may be said of a schedule, apart from its rule."""

    name: str
    args: Mapping[str, Any]
    """The task's arguments. An argument `scheduled_time` of type datetime is filled in for each tick."""
    queue: str
    priority: str
    tz: str
    """IANA name of the time zone that a cron expression speaks of; UTC by default."""
    start: datetime
    end: datetime
    jitter: timedelta
    """Each tick is due up to so much after its scheduled time."""
    misfire: Misfire
    """Of slots that nobody could plan in time: only the last (the default), all up to 100, or skip."""
    overlap: Overlap
    """skip: no tick runs while an earlier one of the schedule is alive."""
    paused: bool


_KNOWN = frozenset(EnqueueOptions.__annotations__)


def check_options(options: EnqueueOptions) -> None:
    """Refuse what cannot work before anything is sent."""
    if unknown := options.keys() - _KNOWN:
        raise DefinitionError(f"unknown option {sorted(unknown)[0]!r}", hint=f"known: {', '.join(sorted(_KNOWN))}")
    if "queue" in options:
        check_token("queue", options["queue"])
    if "priority" in options:
        check_lane(options["priority"])
    if "job_id" in options:
        check_job_id(options["job_id"])
    if "key" in options:
        _check_key(options["key"])
    if "max_attempts" in options:
        _check_attempts(options["max_attempts"])
    if "retry" in options:
        check_type("retry", options["retry"], RetryPolicy)
        options["retry"].to_header()
    if "headers" in options:
        check_type("headers", options["headers"], Mapping)
        for name, value in options["headers"].items():
            check_header(name, value)
    _check_times(options)


def _check_times(options: EnqueueOptions) -> None:
    if "delay" in options and "run_at" in options:
        raise DefinitionError("give delay or run_at, not both")
    if "delay" in options:
        check_delay(options["delay"])
    if "run_at" in options:
        check_moment("run_at", options["run_at"])
    if "deadline" in options:
        check_moment("deadline", options["deadline"])


def check_delay(delay: timedelta) -> None:
    """DefinitionError for one that is negative, or ends when the server can hold no time any more."""
    check_type("delay", delay, timedelta)
    if delay < timedelta(0):
        raise DefinitionError("delay must not be negative")
    try:
        within = (datetime.now(UTC) + delay).year <= LAST_YEAR
    except OverflowError:
        within = False
    if not within:
        raise DefinitionError(f"delay ends after the year {LAST_YEAR}")


def check_moment(name: str, moment: datetime) -> None:
    """DefinitionError for a time without a zone, and for one that the server would take for now."""
    check_type(name, moment, datetime)
    if moment.utcoffset() is None:
        raise DefinitionError(f"{name} has no time zone", hint="use an aware datetime, such as datetime.now(UTC)")
    try:
        within = 1970 <= moment.astimezone(UTC).year <= LAST_YEAR
    except OverflowError:
        within = False
    if not within:
        raise DefinitionError(f"{name} is not within the years 1970 to {LAST_YEAR} of UTC")


def _check_attempts(number: int) -> None:
    # True is an int to Python, and would be the text "True" on the wire.
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < 10**9:
        raise DefinitionError("max_attempts must be a whole number from 1 to 999,999,999")


def check_type(what: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise DefinitionError(f"{what} must be a {wanted.__name__}, not {type(value).__name__}")


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
        raise DefinitionError(f"key must be text of 1 to {MAX_KEY_LENGTH} characters")
    if any(c in key for c in "\r\n\0"):
        raise DefinitionError("key must not hold line breaks or NUL")
    if not has_wire_form(key):
        raise DefinitionError("key has no UTF-8 form")
