"""Write JSON that every reader takes: Python alone writes NaN and infinities bare, and reads them so too."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any


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
