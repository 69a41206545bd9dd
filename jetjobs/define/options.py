"""The options of tasks, jobs and schedules, and the checks of job options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypedDict

from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError
from jetjobs.model.public import public
from jetjobs.model.retry import RetryPolicy, check_attempts
from jetjobs.model.schedule.schedule import Misfire, Overlap
from jetjobs.model.webhooks.endpoint import check_callback
from jetjobs.model.wire.headers import check_header
from jetjobs.model.wire.ids import check_job_id
from jetjobs.model.wire.subjects import Priority, check_priority
from jetjobs.model.wire.validation import check_queue, check_token, has_wire_form

MAX_KEY_LENGTH = 1024
MIN_MEMORY = 16 * 2**20
"""In bytes. A task could hardly start with less."""
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
    priority: Priority
    retry: RetryPolicy | int
    """A number n is short for `RetryPolicy(max_attempts=n)`."""
    max_attempts: int
    """The same as `retry` with a number."""
    timeout: Duration
    """How long one attempt may take."""
    result_ttl: Duration
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
    priority: Priority
    delay: Duration
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
    callback: str
    """A URL that is called when the job has ended: a webhook."""
    step: str
    """The name of the step in a flow; the name of its task by default."""


@public("jetjobs")
class ScheduleOptions(TypedDict, total=False):
    """Options of a schedule besides its rule."""

    name: str
    args: Mapping[str, Any]
    """Arguments of the task. An argument `scheduled_time` of type datetime is filled in for each tick."""
    queue: str
    priority: Priority
    tz: str
    """IANA name of the time zone of a cron expression; UTC by default."""
    start: datetime
    end: datetime
    jitter: Duration
    """Each tick is due up to this long after its scheduled time."""
    misfire: Misfire
    """Missed scheduled times to catch up on: only the last (the default), the newest 100, or none (`skip`)."""
    overlap: Overlap
    """`skip` cancels a tick while an earlier one of the schedule is live."""
    paused: bool


_KNOWN = frozenset(EnqueueOptions.__annotations__)


def checked_options(options: EnqueueOptions) -> EnqueueOptions:
    """The options themselves. DefinitionError for invalid ones, before anything is sent."""
    if unknown := options.keys() - _KNOWN:
        raise DefinitionError(f"unknown option {sorted(unknown)[0]!r}", hint=f"known: {', '.join(sorted(_KNOWN))}")
    if "queue" in options:
        check_queue(options["queue"])
    if "priority" in options:
        check_priority(options["priority"])
    if "job_id" in options:
        check_job_id(options["job_id"])
    if "step" in options:
        check_token("step", options["step"])
    if "key" in options:
        _check_key(options["key"])
    if "max_attempts" in options:
        check_attempts(options["max_attempts"])
    if "retry" in options:
        _check_retry(options["retry"])
    if "headers" in options:
        check_type("headers", options["headers"], Mapping)
        for name, value in options["headers"].items():
            check_header(name, value)
    if "callback" in options:
        check_callback(options["callback"])
    _check_times(options)
    return options


def _check_times(options: EnqueueOptions) -> None:
    if "delay" in options and "run_at" in options:
        raise DefinitionError("give delay or run_at, not both")
    if "delay" in options:
        check_delay(options["delay"])
    if "run_at" in options:
        check_moment("run_at", options["run_at"])
    if "deadline" in options:
        check_moment("deadline", options["deadline"])


def check_delay(delay: object) -> None:
    """DefinitionError for a delay that is invalid or ends after the last time the server can store."""
    try:
        within = (datetime.now(UTC) + to_duration("delay", delay)).year <= LAST_YEAR
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


def _check_retry(policy: object) -> None:
    if not isinstance(policy, RetryPolicy):
        hint = "to change only the number of attempts of this job, use max_attempts"
        raise DefinitionError(f"retry must be a RetryPolicy, not {type(policy).__name__}", hint=hint)
    policy.to_header()


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


def retry_policy(of: str, options: TaskOptions) -> RetryPolicy:
    """The policy of a task, from `retry` or `max_attempts`."""
    if "max_attempts" in options:
        if "retry" in options:
            raise DefinitionError(
                f"{of}give retry or max_attempts, not both",
                hint="with other retry settings: retry=RetryPolicy(max_attempts=...)",
            )
        return RetryPolicy(check_attempts(options["max_attempts"], of))
    retry = options.get("retry", RetryPolicy())
    if isinstance(retry, RetryPolicy):
        return retry
    if isinstance(retry, int) and not isinstance(retry, bool):
        return RetryPolicy(check_attempts(retry, f"{of}retry: "))
    raise DefinitionError(f"{of}retry must be a RetryPolicy or a number of attempts, not {retry!r:.80}")


def check_aliases(name: str, aliases: Sequence[str]) -> tuple[str, ...]:
    """The aliases of task `name`. DefinitionError if they are not a list of other names."""
    if isinstance(aliases, str) or not isinstance(aliases, Sequence):
        shown = f"[{aliases!r}]" if isinstance(aliases, str) else '["old_name"]'
        raise DefinitionError(f"task {name!r}: aliases must be a list of names", hint=f"aliases={shown}")
    for alias in aliases:
        check_token("alias", alias)
        if alias == name:
            raise DefinitionError(f"task {name!r}: alias {alias!r} is its own name")
    if len(set(aliases)) < len(aliases):
        raise DefinitionError(f"task {name!r}: an alias is named twice")
    return tuple(aliases)


def check_isolation(of: str, isolation: object, memory_limit: object) -> None:
    """DefinitionError for an unknown isolation, or a memory limit that it cannot enforce."""
    if isolation not in ("none", "process"):
        raise DefinitionError(f"{of}isolation must be 'none' or 'process', not {isolation!r}")
    if memory_limit is None:
        return
    if isolation != "process":
        raise DefinitionError(
            f"{of}memory_limit needs isolation='process': threads share the memory of the worker"
        )
    if (
        not isinstance(memory_limit, int)
        or isinstance(memory_limit, bool)
        or not MIN_MEMORY <= memory_limit < 2**62
    ):
        raise DefinitionError(f"{of}memory_limit must be a whole number of bytes, at least {MIN_MEMORY:,}")
