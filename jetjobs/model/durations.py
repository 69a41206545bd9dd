"""Parse and format durations such as `10s`, `5m`, `2h`, `1d`, `250ms`."""

from __future__ import annotations

import re
from datetime import timedelta

DurationLike = timedelta | float | str
"""What users may give: a timedelta, a number of seconds, or text."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """The duration; a bare number is in seconds. ValueError for an invalid one.

    >>> parse_duration("1h30m").total_seconds()
    5400.0
    """
    text = text.strip()
    whole = text + "s" if _NUMBER.fullmatch(text) else text
    parts = _PART.findall(whole)
    if not parts or "".join(n + unit for n, unit in parts) != whole:
        raise ValueError(f"invalid duration {text!r}: use 10s, 5m, 2h, 1d or 250ms")
    try:
        return timedelta(seconds=sum(float(n) * _UNITS[unit] for n, unit in parts))
    except OverflowError:
        raise ValueError(f"invalid duration {text!r}: too long") from None


def as_duration(name: str, value: DurationLike) -> timedelta:
    """The duration that a user gave for the parameter `name`. ValueError for an invalid or negative one.

    >>> [as_duration("timeout", value).total_seconds() for value in (1.5, "2m", timedelta(hours=1))]
    [1.5, 120.0, 3600.0]
    """
    try:
        if isinstance(value, str):
            return parse_duration(value)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = timedelta(seconds=value)
    except (ValueError, OverflowError):
        raise ValueError(f"{name}: invalid duration {value!r}: use seconds, a timedelta, or 10s, 5m, 2h") from None
    if not isinstance(value, timedelta):
        raise ValueError(f"{name}: invalid duration {value!r}: use seconds, a timedelta, or 10s, 5m, 2h")
    if value < timedelta(0):
        raise ValueError(f"{name}: a duration cannot be negative")
    return value


def show_duration(seconds: float) -> str:
    """A short text for people.

    >>> [show_duration(s) for s in (0.0031, 0.25, 2, 90, 3900, 90000)]
    ['3 ms', '250 ms', '2.0 s', '1m30s', '1h05m', '1d1h']
    """
    # The unit depends on the rounded value: 0.9996 is 1.0 s, not 1000 ms.
    if round(seconds * 1000) < 1000:
        return f"{seconds * 1000:.0f} ms"
    if round(seconds, 1) < 60:
        return f"{seconds:.1f} s"
    whole = max(60, int(seconds))
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600}h"
