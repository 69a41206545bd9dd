"""Read durations as users give them, and format them: `10s`, `5m`, `1h30m`, `250ms`."""

from __future__ import annotations

import re
from datetime import timedelta

from jetjobs.model.errors import DefinitionError

Duration = timedelta | float | str
"""How users give a duration: a timedelta, a number of seconds, or text such as "5m"."""

_ZERO = timedelta(0)
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


def to_duration(name: str, value: object, *, of: str = "", positive: bool = False) -> timedelta:
    """A duration that a user gave for the parameter `name`. DefinitionError names the parameter; `of` precedes it.

    >>> to_duration("timeout", 90) == to_duration("timeout", "1m30s") == timedelta(seconds=90)
    True
    """
    if isinstance(value, timedelta):
        found = value
    elif isinstance(value, str):
        try:
            found = parse_duration(value)
        except ValueError:
            raise _invalid(name, value, of, "use text such as 10s, 5m, 1h30m, 1d or 250ms") from None
    elif isinstance(value, int | float) and not isinstance(value, bool) and value == value:  # NaN is not itself
        try:
            found = timedelta(seconds=value)
        except OverflowError:
            raise _invalid(name, value, of, "too long") from None
    else:
        raise _invalid(name, value, of, 'use a timedelta, a number of seconds, or text such as "5m"')
    if found < _ZERO:
        raise _invalid(name, value, of, "a duration cannot be negative")
    if positive and not found:
        raise _invalid(name, value, of, "use more than zero")
    return found


def _invalid(name: str, value: object, of: str, problem: str) -> DefinitionError:
    try:
        shown = repr(value)
    except Exception:  # of an integer with thousands of digits, among others
        shown = f"of type {type(value).__name__}"
    return DefinitionError(f"{of}invalid {name} {shown:.80}: {problem}")


def show_duration(length: timedelta | float) -> str:
    """A short text for people; a number is in seconds.

    >>> [show_duration(s) for s in (0.0031, 0.25, 2, 90, 3900, 90000)]
    ['3 ms', '250 ms', '2.0 s', '1m30s', '1h05m', '1d1h']
    """
    seconds = length.total_seconds() if isinstance(length, timedelta) else length
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
