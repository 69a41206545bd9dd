"""A slow reference for cron expressions: walks every minute, independently of the code under test."""

from __future__ import annotations

from calendar import day_abbr, month_abbr, monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
MONTHS = {month_abbr[n].lower(): n for n in range(1, 13)}
DAYS = {day_abbr[n - 1].lower(): n % 7 for n in range(1, 8)}
YEARLY, DAILY = "0 0 1 1 *", "0 0 * * *"
ALIASES = {"@yearly": YEARLY, "@annually": YEARLY, "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0"}
ALIASES |= {"@daily": DAILY, "@midnight": DAILY, "@hourly": "0 * * * *"}


class Minute(NamedTuple):
    at: datetime
    """Aware, UTC."""
    wall: datetime
    """The wall clock at that time, naive."""


def values(written: str, low: int, high: int, names: dict[str, int]) -> set[int]:
    found: set[int] = set()
    for item in written.split(","):
        span, _, step = item.partition("/")
        first, _, last = (str(low), "", str(high)) if span == "*" else span.partition("-")
        begin = names[first] if first in names else int(first)
        end = begin if not last else names[last] if last in names else int(last)
        if end < begin:
            found |= {*range(begin, high + 1), *range(low, end + 1)}
        else:
            found |= {*range(begin, end + 1, int(step or 1))}
    return found


class Reference:
    """Parses an expression on its own. Seven is Sunday."""

    def __init__(self, expression: str) -> None:
        text = " ".join(expression.lower().split())
        minute, hour, self.day, month, self.weekday = ALIASES.get(text, text).split()
        self.minutes, self.hours = values(minute, 0, 59, {}), values(hour, 0, 23, {})
        self.months = values(month, 1, 12, MONTHS)
        self.every_hour = self.hours == set(range(24))
        self.is_on = lru_cache(maxsize=None)(self._is_on)

    def _is_on(self, day: date) -> bool:
        return day.month in self.months and self._day_of_month(day) and self._day_of_week(day)

    def _day_of_month(self, day: date) -> bool:
        length = monthrange(day.year, day.month)[1]
        return any(
            day.day == length if item == "l" else day.day in values(item, 1, 31, {})
            for item in self.day.split(",")
        )

    def _day_of_week(self, day: date) -> bool:
        today = day.isoweekday() % 7
        for item in self.weekday.split(","):
            if item.startswith("l"):
                if int(item[1:]) % 7 == today and (day + timedelta(days=7)).month != day.month:
                    return True
            elif "#" in item:
                name, _, which = item.partition("#")
                if {n % 7 for n in values(name, 0, 6, DAYS)} == {today} and (day.day - 1) // 7 + 1 == int(which):
                    return True
            elif today in {n % 7 for n in values(item, 0, 6, DAYS)}:
                return True
        return False

    def matches(self, wall: datetime) -> bool:
        return wall.minute in self.minutes and wall.hour in self.hours and self.is_on(wall.date())

    def scheduled_times(self, walked: list[Minute]) -> list[datetime]:
        """The scheduled times within these consecutive minutes, and those that a clock change skips."""
        found: set[datetime] = set()
        shown: set[datetime] = set()
        for now, following in zip(walked, [*walked[1:], None], strict=True):
            if self.matches(now.wall) and (self.every_hour or now.wall not in shown):
                found.add(now.at)
            shown.add(now.wall)
            skipped = now.wall + MINUTE
            while following is not None and skipped < following.wall:
                if self.matches(skipped):  # at the time without the clock change
                    found.add(now.at + (skipped - now.wall))
                skipped += MINUTE
        return sorted(found)


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> list[Minute]:
    """Every minute from start to end."""
    minutes = []
    while start < end:
        minutes.append(Minute(start, start.astimezone(zone).replace(tzinfo=None)))
        start += MINUTE
    return minutes


def changes(zone: ZoneInfo, first_year: int, last_year: int) -> Iterator[datetime]:
    """The first minute after each clock change of the zone."""
    now, end = datetime(first_year, 1, 1, tzinfo=UTC), datetime(last_year + 1, 1, 1, tzinfo=UTC)
    step = timedelta(hours=12)
    while now < end:
        if now.astimezone(zone).utcoffset() != (now + step).astimezone(zone).utcoffset():
            minute = now
            while minute.astimezone(zone).utcoffset() == now.astimezone(zone).utcoffset():
                minute += MINUTE
            yield minute
        now += step
