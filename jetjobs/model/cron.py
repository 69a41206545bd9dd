"""Cron expressions: when a schedule is due, by the wall clock of a time zone. The only user of croniter.

croniter reads the fields. Walking the calendar is done here, on wall-clock times without a zone, and the
clock changes of the zone are applied afterwards (ADR 21).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from jetjobs.model.cron_grammar import FIELDS, WEEKDAY, Field, check
from jetjobs.model.errors import DefinitionError
from jetjobs.model.zones import FIRST_YEAR, LAST_YEAR, Span, spans, zone_of

__all__ = ["Cron", "zone_of"]

_LAST = "l"
_SECOND = timedelta(seconds=1)
_LONGEST = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

Values = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Calendar:
    """The wall-clock times of an expression. Values ascend."""

    months: Values
    days: Values
    """Of the month, and 0 for its last."""
    weekdays: Values
    """0 is Sunday."""
    nth: tuple[tuple[int, int], ...]
    """Weekday and which one of the month, 0 for the last; instead of `weekdays` if there are any."""
    hours: Values
    minutes: Values
    seconds: Values
    known: dict[tuple[int, int], Values] = field(default_factory=dict, compare=False)
    """Days of a month by its first weekday and its length: at most 28 entries."""

    def first(self, wall: datetime) -> datetime | None:
        """The first one at or after a whole second."""
        year, month, day = wall.year, wall.month, wall.day
        if month in self.months:
            days = self._days(year, month)
            at = bisect_left(days, day)
            if at < len(days) and days[at] == day:
                time = self._time_from(wall.hour, wall.minute, wall.second)
                if time is not None:
                    return datetime(year, month, day, *time)
                at += 1
            if at < len(days):
                return datetime(year, month, days[at], self.hours[0], self.minutes[0], self.seconds[0])
        while True:
            at = bisect_right(self.months, month)
            year, month = (year, self.months[at]) if at < len(self.months) else (year + 1, self.months[0])
            if year > LAST_YEAR:
                return None
            if days := self._days(year, month):
                return datetime(year, month, days[0], self.hours[0], self.minutes[0], self.seconds[0])

    def last(self, wall: datetime) -> datetime | None:
        """The last one at or before a whole second."""
        year, month, day = wall.year, wall.month, wall.day
        if month in self.months:
            days = self._days(year, month)
            at = bisect_right(days, day) - 1
            if at >= 0 and days[at] == day:
                time = self._time_to(wall.hour, wall.minute, wall.second)
                if time is not None:
                    return datetime(year, month, day, *time)
                at -= 1
            if at >= 0:
                return datetime(year, month, days[at], self.hours[-1], self.minutes[-1], self.seconds[-1])
        while True:
            at = bisect_left(self.months, month) - 1
            year, month = (year, self.months[at]) if at >= 0 else (year - 1, self.months[-1])
            if year < FIRST_YEAR:
                return None
            if days := self._days(year, month):
                return datetime(year, month, days[-1], self.hours[-1], self.minutes[-1], self.seconds[-1])

    def _time_from(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        hours, minutes, seconds = self.hours, self.minutes, self.seconds
        h = bisect_left(hours, hour)
        if h == len(hours):
            return None
        if hours[h] > hour:
            return hours[h], minutes[0], seconds[0]
        m = bisect_left(minutes, minute)
        if m < len(minutes) and minutes[m] == minute:
            s = bisect_left(seconds, second)
            if s < len(seconds):
                return hour, minute, seconds[s]
            m += 1
        if m < len(minutes):
            return hour, minutes[m], seconds[0]
        h += 1
        return (hours[h], minutes[0], seconds[0]) if h < len(hours) else None

    def _time_to(self, hour: int, minute: int, second: int) -> tuple[int, int, int] | None:
        hours, minutes, seconds = self.hours, self.minutes, self.seconds
        h = bisect_right(hours, hour) - 1
        if h < 0:
            return None
        if hours[h] < hour:
            return hours[h], minutes[-1], seconds[-1]
        m = bisect_right(minutes, minute) - 1
        if m >= 0 and minutes[m] == minute:
            s = bisect_right(seconds, second) - 1
            if s >= 0:
                return hour, minute, seconds[s]
            m -= 1
        if m >= 0:
            return hour, minutes[m], seconds[-1]
        h -= 1
        return (hours[h], minutes[-1], seconds[-1]) if h >= 0 else None

    def _days(self, year: int, month: int) -> Values:
        month_is = monthrange(year, month)
        days = self.known.get(month_is)
        if days is None:
            days = self.known[month_is] = tuple(
                day for day in range(1, month_is[1] + 1) if self._has(day, *month_is)
            )
        return days

    def _has(self, day: int, first: int, length: int) -> bool:
        """Whether it is on that day of a month whose first is that weekday, counted from Monday."""
        if day not in self.days and not (day == length and 0 in self.days):
            return False
        weekday = (first + day) % 7
        if self.nth:
            nth = (day + 6) // 7
            return (weekday, nth) in self.nth or (day + 7 > length and (weekday, 0) in self.nth)
        return weekday in self.weekdays


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression that has been checked. Two are equal when they are written alike."""

    expression: str
    _calendar: _Calendar = field(repr=False, compare=False)

    @classmethod
    def parse(cls, text: str) -> Cron:
        """DefinitionError, with the reason, for what cannot be read or would be misread.

        >>> Cron.parse("0  9 * * MON-fri").expression
        '0 9 * * MON-fri'
        """
        expression, fields = check(text)
        return cls(expression, _expand(expression, " ".join(fields)))

    def after(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The first slot after `moment`, in UTC. None when there is none up to the year 9000.

        >>> nightly = Cron.parse("30 2 * * *")
        >>> nightly.after(datetime(2026, 3, 29, tzinfo=UTC), zone_of("Europe/Berlin")).isoformat()
        '2026-03-29T01:30:00+00:00'
        """
        at = max(_whole(moment) + _SECOND, datetime(FIRST_YEAR, 1, 1))
        while at.year <= LAST_YEAR:
            for span in spans(zone, at.year):
                if at < span.end:
                    slot = self._first_in(span, at)
                    if slot is not None:
                        return slot.replace(tzinfo=UTC)
                    at = span.end
        return None

    def before(self, moment: datetime, zone: ZoneInfo) -> datetime | None:
        """The last slot at or before `moment`, in UTC. None when there is none from the year 2 on."""
        at = min(_whole(moment), datetime(LAST_YEAR, 12, 31, 23, 59, 59))
        while at.year >= FIRST_YEAR:
            for span in reversed(spans(zone, at.year)):
                if at >= span.start:
                    slot = self._last_in(span, at)
                    if slot is not None:
                        return slot.replace(tzinfo=UTC)
                    at = span.start - _SECOND
        return None

    def slots(self, after: datetime, zone: ZoneInfo) -> Iterator[datetime]:
        """All slots after a moment, one by one, in UTC."""
        slot = self.after(after, zone)
        while slot is not None:
            yield slot
            slot = self.after(slot, zone)

    def _from(self, span: Span) -> datetime:
        """From when on the clock of a span counts. A repeated hour does only where every hour is meant."""
        if span.offset < span.before and len(self._calendar.hours) < 24:
            return span.change + (span.before - span.offset)
        return span.start

    def _first_in(self, span: Span, at: datetime) -> datetime | None:
        wall = self._calendar.first(max(at, self._from(span)) + span.offset)
        slot = None if wall is None or wall >= span.end + span.offset else wall - span.offset
        if at < (end := min(span.end, span.change + (span.offset - span.before))):
            # What was skipped when the clock went forward runs by the clock as it was before.
            skipped = self._calendar.first(at + span.before)
            if skipped is not None and skipped < end + span.before:
                moved = skipped - span.before
                slot = moved if slot is None else min(slot, moved)
        return slot

    def _last_in(self, span: Span, at: datetime) -> datetime | None:
        start = max(span.start, self._from(span))
        wall = self._calendar.last(at + span.offset)
        slot = None if wall is None or wall < start + span.offset else wall - span.offset
        if span.start < (end := min(span.end, span.change + (span.offset - span.before))):
            skipped = self._calendar.last(min(at, end - _SECOND) + span.before)
            if skipped is not None and skipped >= span.start + span.before:
                moved = skipped - span.before
                slot = moved if slot is None else max(slot, moved)
        return slot


def _whole(moment: datetime) -> datetime:
    """Naive UTC, without parts of a second. Past the ends of the calendar, the second next to it."""
    if moment.tzinfo is None:
        raise ValueError("a moment must have a time zone")
    if moment.year > LAST_YEAR:
        return datetime(LAST_YEAR + 1, 1, 1)
    if moment.year < FIRST_YEAR:
        return datetime(FIRST_YEAR, 1, 1) - _SECOND
    return moment.astimezone(UTC).replace(tzinfo=None, microsecond=0)


@lru_cache(maxsize=1024)
def _expand(text: str, fields: str) -> _Calendar:
    # Kept, since many schedules are written alike and croniter takes most of the time of reading one.
    from croniter import CroniterError, croniter  # takes its time to load, and most processes have no schedule

    try:
        read, nth = croniter.expand(fields)
    except (CroniterError, ValueError, TypeError, LookupError, AssertionError) as error:
        raise DefinitionError(f"cron expression {text!r} cannot be read", hint=str(error)[:200]) from None
    minutes, hours, days, months, weekdays, seconds = map(_values, FIELDS, [*read, [0]][:6])
    if 0 not in days and min(days) > max(_LONGEST[month - 1] for month in months):
        raise DefinitionError(
            f"cron expression {text!r}: there is never such a day", hint="write L for the last day of the month"
        )
    return _Calendar(
        months=months,
        days=days,
        weekdays=weekdays,
        nth=tuple((day, 0 if which == _LAST else which) for day, several in nth.items() for which in several),
        hours=hours,
        minutes=minutes,
        seconds=seconds,
    )


def _values(of: Field, read: list[Any]) -> Values:
    if read == ["*"]:
        return tuple(range(of.low, 7 if of is WEEKDAY else of.high + 1))
    return tuple(sorted(0 if value == _LAST else int(value) for value in read))
