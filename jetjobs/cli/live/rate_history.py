"""The rates of a queue over the last minute, and how they are drawn in one line."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

SECONDS = 60
_LEVELS = "▁▂▃▄▅▆▇█"


class RateHistory:
    """Jobs in and out for each of the last 60 seconds.

    A rate applies to all of the time between two readings, so that a queue which is read less often has a coarser
    line and not a broken one.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[float, float, float]] = {}
        """By second: the time that is known, and the jobs in and out during that time."""

    def add(self, since: datetime, until: datetime, came: float, went: float) -> None:
        """Jobs per second that came and went between two times."""
        end = until.timestamp()
        start = max(since.timestamp(), end - SECONDS)
        for second in range(int(start), int(end) + 1):
            known = min(end, second + 1) - max(start, second)
            if known > 0:
                before = self._seconds.get(second, (0.0, 0.0, 0.0))
                self._seconds[second] = (before[0] + known, before[1] + known * came, before[2] + known * went)
        for second in [second for second in self._seconds if second < int(end) - SECONDS]:
            del self._seconds[second]

    def series(self, at: datetime) -> tuple[list[float | None], list[float | None]]:
        """In and out for each second of the minute before `at`; None where nothing is known."""
        last = int(at.timestamp())
        found = [self._seconds.get(second) for second in range(last - SECONDS, last)]
        return [s and s[1] / s[0] for s in found], [s and s[2] / s[0] for s in found]


def spark(values: Sequence[float | None], width: int, top: float) -> str:
    """The values as bars of up to `top`, the newest at the right; a blank where nothing is known.

    >>> spark([None, 0, 1, 4, 8], 5, 8), spark([0, 0, 8, 8], 2, 8), spark([3], 0, 8)
    (' ▁▂▄█', '▁█', '')
    """
    shown = []
    for column in range(width):
        first, end = column * len(values) // width, (column + 1) * len(values) // width
        known = [value for value in values[first : max(end, first + 1)] if value is not None]
        shown.append(_level(sum(known) / len(known), top) if known else " ")
    return "".join(shown)


def _level(value: float, top: float) -> str:
    if value <= 0 or top <= 0:
        return _LEVELS[0]
    # Anything above zero differs from zero.
    return _LEVELS[max(1, min(7, int(value / top * 7.999)))]
