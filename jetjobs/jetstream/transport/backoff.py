"""How long to pause before a failed request is repeated."""

from __future__ import annotations

import random

FIRST_S = 0.05


def backoff_s(failures: int, most_s: float = 1.0) -> float:
    """Doubles with each failure up to `most_s`. Random by up to half, so that clients do not retry in step."""
    return min(FIRST_S * 2.0 ** min(failures - 1, 10), most_s) * random.uniform(0.5, 1.0)
