"""A clock that a test controls."""

from __future__ import annotations


class FakeClock:
    """Stands still until `now` is changed."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.0 + self.now
