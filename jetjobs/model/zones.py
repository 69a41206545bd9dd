"""Time zones by name, and the spans of time between two changes of a zone's clock."""

from __future__ import annotations

import difflib
import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from jetjobs.model.errors import DefinitionError

FIRST_YEAR, LAST_YEAR = 2, 9000
"""Years in which calendar questions are answered: far enough from the ends of `datetime` for any offset."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9][A-Za-z0-9_+-]*){0,2}")
_NO_ZONES = frozenset({"localtime", "posixrules", "Factory"})
_OTHER_TREES = frozenset({"posix", "right"})
"""Copies of all zones on some machines; those in `right` count leap seconds."""

_HINT = "name a zone of the IANA list, such as Europe/Berlin or UTC"
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_STRIDE = timedelta(days=5)
"""No clock was ever changed twice within six days."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time, within one year of UTC, in which a zone's clock is not changed. All moments are naive UTC."""

    start: datetime
    end: datetime
    """The first moment that no longer belongs to it."""
    change: datetime
    """When the clock was last changed: `start`, or up to two days earlier if the year began in between."""
    before: timedelta
    """The offset from UTC before that change, and the present one where there was none."""
    offset: timedelta


def zone_of(name: str) -> ZoneInfo:
    """The zone of that IANA name. DefinitionError when there is none."""
    if not isinstance(name, str) or not name:
        raise DefinitionError("a time zone must be a name", hint=_HINT)
    shown = repr(name[:60])
    if name in _NO_ZONES:
        raise DefinitionError(f"{shown} is no time zone of its own: machines differ in it", hint=_HINT)
    if len(name) > 60 or not _NAME.fullmatch(name) or name.split("/")[0] in _OTHER_TREES:
        raise DefinitionError(f"{shown} is no name of a time zone", hint=_near(name))
    try:
        return ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        # A folder such as America is an OSError, and a damaged file a ValueError.
        raise DefinitionError(f"there is no time zone {shown}", hint=_near(name)) from None


def _near(name: str) -> str:
    known = {zone.lower(): zone for zone in _all_names()}
    wanted = name[:60].lower().replace(" ", "_")
    if wanted in known:
        return f"write {known[wanted]}"
    if any(zone.startswith(f"{wanted}/") for zone in known):
        return _HINT
    # Many remember only the city. Of several zones with it, the one with the shortest name.
    cities = {zone.rpartition("/")[2]: zone for zone in sorted(known, key=lambda zone: (-len(zone), zone))}
    city = wanted.rpartition("/")[2]
    close = [cities[city]] if city in cities else difflib.get_close_matches(wanted, known, 1, 0.75)
    close = close or [cities[one] for one in difflib.get_close_matches(city, cities, 1, 0.75)]
    return f"did you mean {known[close[0]]}?" if close else _HINT


@lru_cache(maxsize=1)
def _all_names() -> frozenset[str]:
    # Reads the head of some 600 files: only when a name was wrong.
    return frozenset(zoneinfo.available_timezones()) - _NO_ZONES


@lru_cache(maxsize=4096)
def spans(zone: ZoneInfo, year: int) -> tuple[Span, ...]:
    """The spans of one year of UTC, in order and without a hole."""
    first, last = datetime(year, 1, 1), datetime(year + 1, 1, 1)
    # No change was ever larger than a day, so one more than two days ago moves nothing any more.
    changes = [*_changes(zone, first - 2 * _DAY, last)]
    if not changes or changes[0][0] > first:
        offset = changes[0][1] if changes else _offset(zone, first)
        changes.insert(0, (first - 2 * _DAY, offset, offset))
    ends = [*(at for at, _, _ in changes[1:]), last]
    return tuple(
        Span(max(first, at), end, at, before, offset)
        for (at, before, offset), end in zip(changes, ends, strict=True)
        if end > first
    )


def _changes(zone: ZoneInfo, first: datetime, last: datetime) -> Iterator[tuple[datetime, timedelta, timedelta]]:
    """Each change of the offset after `first` and before `last`: when, from what, to what."""
    low, before = first, _offset(zone, first)
    while low < last - _SECOND:
        high = min(low + _STRIDE, last - _SECOND)
        offset = _offset(zone, high)
        if offset != before:
            high = _when(zone, low, high, before)
            offset = _offset(zone, high)
            yield high, before, offset
        low, before = high, offset


def _when(zone: ZoneInfo, low: datetime, high: datetime, before: timedelta) -> datetime:
    """The first second in (low, high] with another offset than before."""
    while high - low > _SECOND:
        middle = low + (high - low) // (2 * _SECOND) * _SECOND
        if _offset(zone, middle) == before:
            low = middle
        else:
            high = middle
    return high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return zone.fromutc(moment.replace(tzinfo=zone)).replace(tzinfo=None) - moment
