"""Cron expressions: parse them and compute scheduled times in a time zone.

croniter, used only here, steps through wall-clock times without a zone, and zoneinfo converts each of them to UTC.
Expressions that croniter would interpret differently from their author are rejected (ADR 26).
"""

from __future__ import annotations

import copy
import difflib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from zoneinfo import ZoneInfo

from jetjobs.model.errors import DefinitionError

if TYPE_CHECKING:
    from croniter import croniter

_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Cron:
    """A valid cron expression. Two are equal if their texts are equal."""

    expression: str

    @classmethod
    def parse(cls, text: str) -> Cron:
        """DefinitionError, with the reason, for an invalid or ambiguous expression.

        >>> Cron.parse("0  9 * * MON-fri").expression
        '0 9 * * MON-fri'
        """
        if not isinstance(text, str):
            raise DefinitionError(f"a cron expression must be text, not {type(text).__name__}", hint=_SHAPE)
        if len(text) > 200 or not text.isascii():
            raise DefinitionError("a cron expression has at most 200 characters, all of them ASCII", hint=_SHAPE)
        expression = " ".join(text.split())
        _walker(expression)
        return cls(expression)

    def after(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The first scheduled time after `moment`, in UTC. None when there is none within 50 years.

        >>> nightly = Cron.parse("30 2 * * *")
        >>> nightly.after(datetime(2026, 3, 29, tzinfo=UTC), zone_of("Europe/Berlin")).isoformat()
        '2026-03-29T01:30:00+00:00'
        """
        return _after(self.expression, _whole(moment), zone)

    def before(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The last scheduled time at or before `moment`, in UTC. None when there is none within 50 years."""
        return _before(self.expression, _whole(moment), zone)


# Cached: a step takes about 50 µs, and schedules with the same expression need the same times.
@lru_cache(maxsize=4096)
def _after(expression: str, moment: datetime, zone: ZoneInfo) -> datetime | None:
    best = None
    for wall in _walls(expression, _shown(moment, zone)[0], backwards=False):
        for instant in _instants(expression, wall, zone):
            if instant > moment and (best is None or instant < best):
                best = instant
        if best is not None and wall >= _shown(best, zone)[1]:
            break
    return best


@lru_cache(maxsize=4096)
def _before(expression: str, moment: datetime, zone: ZoneInfo) -> datetime | None:
    best = None
    for wall in _walls(expression, _shown(moment, zone)[1] + _SECOND, backwards=True):
        for instant in _instants(expression, wall, zone):
            if instant <= moment and (best is None or instant > best):
                best = instant
        if best is not None and wall <= _shown(best, zone)[0]:
            break
    return best


def _walls(expression: str, start: datetime, *, backwards: bool) -> Iterator[datetime]:
    """Wall-clock times after `start`, or before it, without a zone."""
    walker = copy.copy(_walker(expression))
    walker.set_current(start, force=True)
    step = walker.get_prev if backwards else walker.get_next
    try:
        while True:
            yield step(datetime)
    except (ValueError, OverflowError):  # no such date within 50 years, or beyond the range of datetime
        return


def _instants(expression: str, wall: datetime, zone: ZoneInfo) -> list[datetime]:
    """When a wall-clock time is run.

    At a clock change, a skipped time is run by the clock before the change, and a repeated time is run once, the
    first time: both are fold=0. An expression for every hour is run both times, to leave no gap of an hour.
    """
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    return [first, second] if second > first and _walker(expression).expanded[1] == ["*"] else [first]


def _shown(moment: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The wall-clock time as two bounds: all times before the first have been run, and none after the second.

    They differ only at a clock change: while times are repeated, and while skipped times are caught up on.
    """
    offsets = _offsets(moment.astimezone(zone))
    earlier = (moment - _DAY).astimezone(zone).utcoffset() or timedelta(0)
    naive = moment.replace(tzinfo=None)
    first, second = _offsets((naive + earlier).replace(tzinfo=zone))
    if first < second:
        offsets = (*offsets, earlier)
    return naive + min(offsets), naive + max(offsets)


def _offsets(wall: datetime) -> tuple[timedelta, ...]:
    """The offsets before and after the clock change that skips or repeats this time; otherwise twice the same."""
    return tuple(wall.replace(fold=fold).utcoffset() or timedelta(0) for fold in (0, 1))


def _whole(moment: datetime) -> datetime:
    if moment.tzinfo is None or not 1900 < moment.year < 9000:
        raise ValueError("the time must have a time zone and a year from 1901 to 8999")
    return moment.astimezone(UTC).replace(microsecond=0)


# Which expressions are accepted


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()
    special: str = "(?!)"


_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31, special="l"),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 6, _DAYS, special=r"(\d|[a-z]{3})#[1-5]|l[0-7]"),
)
_ITEM = re.compile(r"(?!\w+/)(?:\*|(\d\d?|[a-z]{3})(?:-(\d\d?|[a-z]{3}))?)(?:/(\d{1,3}))?")
_ALIASES = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@yearly", "@annually")
_SHAPE = "write five fields: minute, hour, day of month, month, day of week"
_SHAPES = (
    (r"@reboot.*", "enqueue the job in a lifespan of the worker"),
    (r"@every.*", "use every() with a timedelta"),
    (r"@.*", f"write one of {', '.join(_ALIASES)}, alone"),
    (r"\S+=.*", "give the time zone as tz="),
    (r"(\S+ ){5}\S+", f"{_SHAPE}; for seconds use every()"),
    (r"(\S+ ){6}\S+", f"{_SHAPE}; instead of a year give the schedule a start and an end"),
)
"""Expressions without five fields, and what to write instead."""
_FOREIGN = (
    (r"[hr](\(.*|/.*)?|.*~.*", "random values are not supported: write the value, or give the schedule a jitter"),
    (r"\?", "write * instead"),
    (r"\d*l?w\d*", "W, the nearest weekday, is not supported: name the day of month"),
    (r"l|l\D.*|\d+-l|\w+l", "write L as day of month for its last day, L5 as day of week for the last Friday"),
    (rf"({'|'.join((*_DAYS, *_MONTHS))})[a-z]+", "write names with three letters"),
    (r"\w+/\d+", "a step needs a range: write 5-59/15, or */15"),
)
"""Items that other programs accept, or that croniter interprets differently, and what to write instead."""


def _refuse(expression: str, reason: str, hint: str) -> NoReturn:
    raise DefinitionError(f"cron expression {expression!r}: {reason}", hint=hint)


def _check(expression: str, text: str) -> None:
    fields = text.split()
    if len(fields) != len(_FIELDS):
        hint = next((hint for shape, hint in _SHAPES if re.fullmatch(shape, text)), _SHAPE)
        _refuse(expression, f"it has {len(fields)} field{'s' * (len(fields) != 1)}, not five", hint)
    for field, written in zip(_FIELDS, fields, strict=True):
        for item in written.split(","):
            _check_item(expression, field, written, item)
    if fields[2] != "*" and fields[4] != "*":
        _refuse(
            expression,
            "with both a day of month and a day of week, programs differ in whether one or both must match",
            "make two schedules, or write mon#1 for the first Monday of the month",
        )


@lru_cache(maxsize=1024)
def _walker(expression: str) -> croniter:
    """Cached, because parsing takes longer than a step. Copy it before use."""
    from croniter import CroniterBadDateError, CroniterError, croniter  # slow to import and rarely needed

    text = expression.lower()
    if text not in _ALIASES:
        _check(expression, text)
    try:
        walker = croniter(text, 0.0)
        copy.copy(walker).get_next(datetime)
    except CroniterBadDateError:
        _refuse(expression, "this day never occurs", "write L for the last day of the month")
    except (CroniterError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise DefinitionError(f"invalid cron expression {expression!r}", hint=str(error)[:200]) from None
    return walker


def _check_item(expression: str, field: _Field, written: str, item: str) -> None:
    if re.fullmatch(field.special, item):
        return
    found = _ITEM.fullmatch(item)
    if found is None:
        hint = next((hint for shape, hint in _FOREIGN if re.fullmatch(shape, item)), _extent(field))
        _refuse(expression, f"invalid {field.name} {item!r}", hint)
    if item == "*" != written:
        _refuse(expression, f"{written!r} is the same as *", "write * alone, or only the other values")
    first, last, step = found.groups()
    low = field.low if first is None else _value(expression, field, first)
    high = field.high if first is None else low if last is None else _value(expression, field, last)
    start = 0 if low > field.high else low  # 7 is Sunday, like 0
    if last is not None and high in (low, start):
        _refuse(expression, f"{item!r} may mean one value or all values", f"write {first}, or * for all")
    if step is None:
        return
    if start > high:
        _refuse(expression, f"{item!r} has a step and wraps around", "write the values, separated by commas")
    if not 1 <= int(step) <= min(high - start, field.high - field.low):
        _refuse(
            expression,
            f"{item!r} only ever matches its first {field.name}, because steps restart each time",
            f"write one {field.name}, or use every() for an interval",
        )


def _value(expression: str, field: _Field, word: str) -> int:
    value = field.low + field.words.index(word) if word in field.words else int(word) if word.isdigit() else -1
    if not field.low <= value <= field.high + (field.high == 6):
        _refuse(expression, f"invalid {field.name} {word!r}", _extent(field))
    return value


def _extent(field: _Field) -> str:
    words = f", or {field.words[0]} to {field.words[-1]}" if field.words else ""
    return f"write {field.low} to {field.high}{words}"


# Time zones

_NO_ZONES = ("localtime", "posixrules", "Factory", "posix", "right")
"""Names that differ between machines, and copies of all zones, some of them with leap seconds."""
_ZONE_HINT = "use an IANA name, such as Europe/Berlin or UTC"


def zone_of(name: str) -> ZoneInfo:
    """The time zone of that IANA name. DefinitionError if there is none."""
    if not isinstance(name, str) or not name:
        raise DefinitionError("a time zone must be a name", hint=_ZONE_HINT)
    try:
        if name.partition("/")[0] not in _NO_ZONES:
            return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        pass  # a folder such as America raises an OSError, a damaged file a ValueError
    # Many users give only the city. This reads about 600 files, but only for an unknown name.
    zones = sorted(zoneinfo.available_timezones().difference(_NO_ZONES), key=len, reverse=True)
    known = {zone.rpartition("/")[2].lower(): zone for zone in zones} | {zone.lower(): zone for zone in zones}
    for wanted in (name[:60].lower().replace(" ", "_"), name[:60].lower().rpartition("/")[2]):
        if close := difflib.get_close_matches(wanted, known, 1, 0.87):
            break
    hint = f"did you mean {known[close[0]]}?" if close else _ZONE_HINT
    raise DefinitionError(f"unknown time zone {name[:60]!r}", hint=hint)
