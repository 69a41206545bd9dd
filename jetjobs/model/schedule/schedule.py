"""Schedules: their definition, validation and scheduled times."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Self
from zoneinfo import ZoneInfo

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from jetjobs.model.durations import to_duration
from jetjobs.model.errors import DefinitionError
from jetjobs.model.public import public
from jetjobs.model.schedule.cron import Cron, zone_of
from jetjobs.model.wire.ids import key_token
from jetjobs.model.wire.subjects import Priority
from jetjobs.model.wire.validation import check_queue, check_schedule_name, check_task

MAX_ARGUMENTS = 64 * 1024
MAX_JITTER = timedelta(hours=1)
MAX_EVERY = timedelta(days=3660)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = EPOCH
_LAST = datetime(2261, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)
_INSTANT = timedelta(microseconds=1)
_TIME_TOKEN = "%Y%m%dT%H%M%SZ"

Misfire = Literal["last", "all", "skip"]
Overlap = Literal["allow", "skip"]


def _duration(value: Any, info: ValidationInfo) -> Any:
    # pydantic writes durations in ISO 8601.
    if isinstance(value, str) and value.startswith(("P", "-P")):
        return value
    return to_duration(str(info.field_name), value, of=f"schedule {info.data.get('name', '')!r}: ")


def _moment(value: datetime) -> datetime:
    if value.utcoffset() is None:
        raise ValueError("has no time zone: use an aware datetime, such as datetime.now(UTC)")
    try:
        utc = value.astimezone(UTC)
    except OverflowError:
        raise ValueError("is out of range") from None
    if not _FIRST <= utc <= _LAST:
        raise ValueError("is not within the years 1970 to 2260")
    return utc


_Span = Annotated[timedelta, BeforeValidator(_duration)]
Moment = Annotated[datetime, AfterValidator(_moment)]


class Rule(Protocol):
    """Computes scheduled times: whole seconds in UTC, strictly increasing."""

    def after(self, moment: datetime) -> datetime | None:
        """The first scheduled time after `moment`."""

    def before(self, moment: datetime) -> datetime | None:
        """The last scheduled time at or before `moment`."""


class Calendar(NamedTuple):
    """A cron expression in a time zone."""

    cron: Cron
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime | None:
        return self.cron.after(moment, self.zone)

    def before(self, moment: datetime) -> datetime | None:
        return self.cron.before(moment, self.zone)


class Interval(NamedTuple):
    """A fixed interval, counted from 1970. Clock changes do not affect it."""

    every: timedelta

    def after(self, moment: datetime) -> datetime | None:
        return self._nth((moment - EPOCH) // self.every + 1)

    def before(self, moment: datetime) -> datetime | None:
        return self._nth((moment - EPOCH) // self.every)

    def _nth(self, number: int) -> datetime | None:
        try:
            return EPOCH + number * self.every
        except OverflowError:
            return None


@public("jetjobs")
class Schedule(BaseModel):
    """Enqueues a task by a rule. Made by `task.cron`, `task.every` or `app.schedules.put`."""

    # Unknown fields may come from a newer version. The validator is built on first use: most commands need none.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)

    name: Annotated[str, AfterValidator(check_schedule_name)]
    task: Annotated[str, AfterValidator(check_task)]
    queue: Annotated[str, AfterValidator(check_queue)] = "default"
    args: dict[str, Any] = Field(default={}, repr=False)
    """The arguments of the task, as JSON."""
    priority: Priority = "normal"
    cron: str | None = None
    every: _Span | None = None
    tz: str = "UTC"
    """IANA name of the time zone of `cron`."""
    start: Moment | None = None
    """Scheduled times start here."""
    end: Moment | None = None
    """Scheduled times end here."""
    jitter: _Span = timedelta(0)
    """Each tick is due up to this long after its scheduled time, always the same for one scheduled time."""
    misfire: Misfire = "last"
    """Missed scheduled times to catch up on: only the last, the newest 100 (`all`), or none (`skip`)."""
    overlap: Overlap = "allow"
    """`skip` cancels a tick while an earlier one of the schedule is live."""
    paused: bool = False

    # Maintained by jetjobs
    takes_scheduled_time: bool = False
    """Whether the argument `scheduled_time` of the task is filled in."""
    secret: Annotated[str, Field(max_length=2_000, pattern=r"^[ -~]*$")] = ""
    """The paths of secret arguments."""
    declared_by: str = ""
    """The app that declares it in code; empty if it was created at run time."""
    since: Moment = _FIRST
    """When it was created, last resumed, or got its rule. Earlier scheduled times are neither run nor missed."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        of = f"schedule {self.name!r}: "
        if (self.cron is None) == (self.every is None):
            raise DefinitionError(f"{of}set either cron or every")
        if self.cron is not None:
            _named(of, Cron.parse, self.cron)
        _named(of, zone_of, self.tz)
        if self.every is not None:
            _check_every(of, self.every)
            if self.tz != "UTC":
                raise DefinitionError(f"{of}tz needs cron; every does not use it")
        if not timedelta(0) <= self.jitter <= MAX_JITTER:
            raise DefinitionError(f"{of}jitter must be between zero and one hour")
        if self.start is not None and self.end is not None and self.end < self.start:
            raise DefinitionError(f"{of}end is before start")
        if self.start is not None and self.end is not None and self.after(self.start - _INSTANT) is None:
            raise DefinitionError(f"{of}it would never run: no scheduled time is between start and end")
        if len(json.dumps(self.args, ensure_ascii=False).encode(errors="surrogatepass")) > MAX_ARGUMENTS:
            raise DefinitionError(f"{of}the arguments exceed {MAX_ARGUMENTS:,} bytes")
        return self

    @cached_property
    def rule(self) -> Rule:
        if self.every is not None:
            return Interval(self.every)
        assert self.cron is not None
        return Calendar(Cron.parse(self.cron), zone_of(self.tz))

    @cached_property
    def key(self) -> str:
        return schedule_key(self.name)

    def after(self, moment: datetime) -> datetime | None:
        """The first scheduled time after `moment`, within start and end."""
        if self.start is not None and moment < self.start:
            moment = self.start - _INSTANT
        scheduled_time = self.rule.after(moment)
        return (
            scheduled_time
            if scheduled_time is not None and (self.end is None or scheduled_time <= self.end)
            else None
        )

    def before(self, moment: datetime) -> datetime | None:
        """The last scheduled time at or before `moment`, within start and end."""
        scheduled_time = self.rule.before(moment if self.end is None else min(moment, self.end))
        return (
            scheduled_time
            if scheduled_time is not None and (self.start is None or scheduled_time >= self.start)
            else None
        )

    def due(self, scheduled_time: datetime) -> datetime:
        """When the tick of a scheduled time is due."""
        if not self.jitter:
            return scheduled_time
        digest = hashlib.sha256(f"{self.name} {time_token(scheduled_time)}".encode()).digest()
        return scheduled_time + self.jitter * (int.from_bytes(digest[:4]) / 2**32)

    @property
    def rule_text(self) -> str:
        """The rule as a short text."""
        if self.every is not None:
            return f"every {_short(self.every)}"
        return f"{self.cron}" if self.tz == "UTC" else f"{self.cron} {self.tz}"

    def same_as(self, other: Schedule) -> bool:
        """Whether both definitions are equal, apart from fields that only the stored copy has."""
        return self._definition() == other._definition()

    def _definition(self) -> dict[str, Any]:
        return self.model_dump(exclude={"paused", "since"})

    def over(self, before: Schedule | None, now: datetime) -> Schedule:
        """This schedule as it replaces `before`: it keeps `since`, unless it is resumed or has a new rule."""
        continues = before is not None and before._rule() == self._rule() and (self.paused or not before.paused)
        return self.model_copy(update={"since": before.since if continues and before is not None else now})

    def _rule(self) -> tuple[object, ...]:
        return self.cron, self.every, self.tz, self.start, self.end


def make_schedule(values: dict[str, Any]) -> Schedule:
    """A schedule from plain values. DefinitionError names the invalid field."""
    try:
        return Schedule.model_validate(values)
    except ValidationError as error:
        problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(map(str, problem["loc"])) or "it"
        text = str(problem["msg"]).removeprefix("Value error, ")
        raise DefinitionError(f"schedule {values.get('name', '')!r}: {where}: {text}") from None


def read_schedule(data: bytes) -> Schedule | None:
    """A stored definition; None if it is invalid. Those written by jetjobs always have `since`."""
    try:
        schedule = Schedule.model_validate_json(data)
    except (ValidationError, DefinitionError, RecursionError):
        return None
    return schedule if "since" in schedule.model_fields_set else None


def schedule_key(name: str) -> str:
    """The key token of the ticks of a schedule. It differs from the keys of callers, which cannot contain NUL."""
    return key_token(f"schedule\0{name}")


def time_token(scheduled_time: datetime) -> str:
    """A scheduled time as the second part of a job id. The tokens sort by time.

    >>> time_token(datetime(2026, 3, 29, 1, 30, tzinfo=UTC))
    '20260329T013000Z'
    """
    return scheduled_time.strftime(_TIME_TOKEN)


def time_of_token(token: str) -> datetime | None:
    """The scheduled time of such a token; None for any other text."""
    try:
        return datetime.strptime(token, _TIME_TOKEN).replace(tzinfo=UTC)
    except ValueError:
        return None


def _named(of: str, check: Any, value: str) -> None:
    try:
        check(value)
    except DefinitionError as error:
        raise DefinitionError(f"{of}{error}", hint=error.hint) from None


def _check_every(of: str, every: timedelta) -> None:
    if every < _SECOND:
        raise DefinitionError(f"{of}every must be at least one second")
    if every % _SECOND:
        raise DefinitionError(f"{of}every must be whole seconds")
    if every > MAX_EVERY:
        raise DefinitionError(f"{of}every must be at most ten years")


def _short(every: timedelta) -> str:
    seconds = int(every.total_seconds())
    parts = [(seconds // 86400, "d"), (seconds // 3600 % 24, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s")]
    return "".join(f"{number}{unit}" for number, unit in parts if number)
