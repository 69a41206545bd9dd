"""Time, from one place, so that a test may put another in its stead."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """The wall clock answers questions of the calendar; the monotonic one measures leases and waits."""

    def wall(self) -> float: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """That of this machine."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)


SYSTEM = SystemClock()
