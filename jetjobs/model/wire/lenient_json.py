"""Read JSON, numbers and times that other programs wrote, without trusting them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from jetjobs.model.wire.validation import is_token

LAST_MOMENT = 253_402_214_400.0
"""One day before the year 10000: in some time zones a later time has no date."""


def read_json(text: str | bytes) -> Any:
    """The value. ValueError for invalid JSON, also for nesting so deep that Python raises a RecursionError.

    >>> read_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: JSON is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def as_time(value: Any) -> datetime | None:
    """Seconds since the epoch as an aware UTC time; None for 0 and for invalid values."""
    moment = as_seconds(value)
    return datetime.fromtimestamp(moment, UTC) if moment else None


def as_float(value: Any, default: float = 0.0) -> float:
    """The number; the default for a bool, an infinite number, and anything that is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        found = float(value)
    except OverflowError:
        return default
    return found if math.isfinite(found) else default


def as_int(value: Any) -> int:
    """The number without its fraction; 0 for an invalid value or one beyond 63 bits."""
    found = as_float(value)
    return int(found) if abs(found) < 2**63 else 0


def as_seconds(value: Any) -> float:
    """A time or duration in seconds; 0 for an invalid or negative value, or one beyond the year 9999."""
    found = as_float(value)
    return found if 0.0 <= found < LAST_MOMENT else 0.0


def read_record(data: str | bytes) -> dict[str, Any]:
    """A JSON object as a dict; empty for anything else."""
    try:
        record = read_json(data)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def as_fraction(value: Any) -> float | None:
    """A number from 0 to 1; None for anything else."""
    found = as_float(value, -1.0)
    return found if 0.0 <= found <= 1.0 else None


def read_iso_time(text: Any) -> datetime | None:
    """A time in ISO 8601 as an aware UTC time; None for anything else."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def read_running(record: Mapping[str, Any]) -> dict[str, Any]:
    """The running record of a job, each field with its type. Empty if queue or task is not a valid name: both
    become part of subjects, and a forged record must not make its reader write to other subjects.
    """
    if not is_token(record.get("queue")) or not is_token(record.get("task")):
        return {}
    return {
        "run": str(record.get("run", "")),
        "queue": record["queue"],
        "task": record["task"],
        "attempt": as_int(record.get("attempt")),
        "worker": text_or_none(record.get("worker")),
        "started_at": as_seconds(record.get("started_at")),
        "progress": as_fraction(record.get("progress")),
        "message": text_or_none(record.get("message")),
    }


def write_json(value: Any, *, ensure_ascii: bool = True, default: Callable[[Any], Any] | None = None) -> str:
    """JSON text. Numbers that are not finite become text, as in the arguments of jobs.

    >>> write_json({"rate": [float("nan"), float("-inf"), 0.5]})
    '{"rate": ["NaN", "-Infinity", 0.5]}'
    """
    try:
        return json.dumps(value, ensure_ascii=ensure_ascii, default=default, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=ensure_ascii, default=default)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {_finite(name): _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
