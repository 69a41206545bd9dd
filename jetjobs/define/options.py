"""The options of tasks, jobs and schedules, and the checks of job options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
"""The server counts nanoseconds since 1970 in 63 bits: it would fire a later schedule at once."""


@public("jetjobs")
class TaskOptions(TypedDict, total=False):
    """Options of `@app.task(...)`."""

    name: str
    """Stable name on the wire; defaults to the name of the function."""
    aliases: Sequence[str]
    """Former names of the task. Jobs that were enqueued under them run with this function."""
    queue: str
    priority: str
    retry: RetryPolicy
    timeout: timedelta
    """How long one attempt may take."""
    result_ttl: timedelta
    """How long the result is stored."""
    store_result: bool
    """False stores no record of success: the fastest choice if no caller needs results."""
    isolation: Literal["none", "process"]
    """`process` runs the task in a child process, which can be killed and may crash without harming others."""
    memory_limit: int
    """Bytes of address space that the task may use in the child, on top of what the idle child uses."""


@public("jetjobs")
class EnqueueOptions(TypedDict, total=False):
    """Options of one job: `task.options(...)`."""

    queue: str
    priority: str
    delay: timedelta
    run_at: datetime
    key: str
    """Idempotency key: no second job of this task and key is stored while one is live."""
    job_id: str
    """An id chosen by the caller: no second job with this id is stored while one is live."""
    deadline: datetime
    """A job that has not ended by this time is dead-lettered as expired."""
    max_attempts: int
    retry: RetryPolicy
    """Replaces the policy of the task for this job; without functions and exception classes."""
    headers: Mapping[str, str]


@public("jetjobs")
class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule besides its rule."""

    name: str
    args: Mapping[str, Any]
    """Arguments of the task. An argument `scheduled_time` of type datetime is filled in for each tick."""
    queue: str
    priority: str
    tz: str
    """IANA name of the time zone of a cron expression; UTC by default."""
    start: datetime
    end: datetime
    jitter: timedelta
    """Each tick is due up to this long after its scheduled time."""
    misfire: Misfire
    """Missed scheduled times to catch up on: only the last (the default), the newest 100, or none (`skip`)."""
    overlap: Overlap
    """`skip` cancels a tick while an earlier one of the schedule is live."""
    paused: bool


_KNOWN = frozenset(EnqueueOptions.__annotations__)


def check_options(options: EnqueueOptions) -> None:
    """DefinitionError for invalid options, before anything is sent."""
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
    """DefinitionError for a delay that is negative or ends after the last time the server can store."""
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
    """DefinitionError for a time without a time zone, or out of range: the server would take it for now."""
    check_type(name, moment, datetime)
    if moment.utcoffset() is None:
        raise DefinitionError(f"{name} has no time zone", hint="use an aware datetime, such as datetime.now(UTC)")
    try:
        within = 1970 <= moment.astimezone(UTC).year <= LAST_YEAR
    except OverflowError:
        within = False
    if not within:
        raise DefinitionError(f"{name} must be within the years 1970 to {LAST_YEAR} in UTC")


def _check_attempts(number: int) -> None:
    # True is an int in Python, and would become the text "True" on the wire.
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < 10**9:
        raise DefinitionError("max_attempts must be a whole number from 1 to 999,999,999")


def check_type(what: str, value: object, wanted: type) -> None:
    if not isinstance(value, wanted):
        raise DefinitionError(f"{what} must be a {wanted.__name__}, not {type(value).__name__}")


def _check_key(key: str) -> None:
    if not isinstance(key, str) or not key or len(key) > MAX_KEY_LENGTH:
        raise DefinitionError(f"key must be text of 1 to {MAX_KEY_LENGTH} characters")
    if any(c in key for c in "\r\n\0"):
        raise DefinitionError("key must not contain line breaks or NUL")
    if not has_wire_form(key):
        raise DefinitionError("key cannot be encoded as UTF-8")
