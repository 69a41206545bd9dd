"""Read what others wrote, and may have written wrong: JSON, numbers, times and names out of it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from jetjobs.model.wire.validation import is_token

LAST_MOMENT = 253_402_214_400.0
"""A day before the year 10000: beyond it a time has no date in some time zones."""


def read_json(text: str | bytes) -> Any:
    """The value; ValueError also for brackets nested so deeply that reading them would end in a RecursionError.

    >>> read_json("[" * 100_000)
    Traceback (most recent call last):
        ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def as_time(value: Any) -> datetime | None:
    """An aware UTC time; None for 0, and for what is no time."""
    moment = as_seconds(value)
    return datetime.fromtimestamp(moment, UTC) if moment else None


def as_float(value: Any, default: float = 0.0) -> float:
    """The number, or the default for what is none, not finite, or a truth value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return default
    try:
        found = float(value)
    except OverflowError:
        return default
    return found if math.isfinite(found) else default


def as_int(value: Any) -> int:
    """The number without its fraction; 0 for what is none, or is too large to mean anything."""
    found = as_float(value)
    return int(found) if abs(found) < 2**63 else 0


def as_seconds(value: Any) -> float:
    """A time or a span that can be shown; 0 for what is none."""
    found = as_float(value)
    return found if 0.0 <= found < LAST_MOMENT else 0.0


def read_record(data: str | bytes) -> dict[str, Any]:
    """A JSON object as a dict; empty for anything else."""
    try:
        record = read_json(data)
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def text_or_none(value: Any) -> str | None:
    return None if value is None else str(value)


def read_running(record: Mapping[str, Any]) -> dict[str, Any]:
    """The running record of a job with every field of its type. Empty when queue or task is no name: these become
    part of subjects, and whoever may write such a record must not be able to write others through its reader."""
    if not is_token(record.get("queue")) or not is_token(record.get("task")):
        return {}
    fraction = as_float(record.get("progress"), -1.0)
    return {
        "run": str(record.get("run", "")),
        "queue": record["queue"],
        "task": record["task"],
        "attempt": as_int(record.get("attempt")),
        "worker": text_or_none(record.get("worker")),
        "started_at": as_seconds(record.get("started_at")),
        "progress": fraction if 0.0 <= fraction <= 1.0 else None,
        "message": text_or_none(record.get("message")),
    }


def write_json(value: Any, *, ensure_ascii: bool = True, default: Callable[[Any], Any] | None = None) -> str:
    """As JSON; what has no form in it is text, as in the arguments of jobs.

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
