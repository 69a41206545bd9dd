"""Which schedules may have changed and are to be looked at: those that were heard of, at once and later again."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Collection

_LOOKS_S = (0.1, 1.0, 5.0)
_ALL = ""
"""Stands for every schedule; none has this name."""


class Changes:
    """A name is taken once, however often it was added meanwhile."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        """Set when something was heard."""
        self._names: set[str] = set()
        self._looks: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._names)

    def hear(self, name: str) -> None:
        """We hear of a write when it is sent. It may be stored a little later, or never: look more than once."""
        self._names.add(name)
        for delay_s in _LOOKS_S:
            self.add_later(name, delay_s)
        self.woken.set()

    def missed_something(self) -> None:
        """What was changed while we were away was not heard of: all are to be looked at."""
        self._names.add(_ALL)
        self.woken.set()

    def add(self, names: Collection[str]) -> None:
        self._names.update(names)

    def add_later(self, name: str, delay_s: float) -> None:
        heapq.heappush(self._looks, (time.monotonic() + delay_s, name))

    def fall_due(self) -> bool:
        """Add those whose time for another look has come. True if all are to be looked at, which is told once."""
        while self._looks and self._looks[0][0] <= time.monotonic():
            self._names.add(heapq.heappop(self._looks)[1])
        everything = _ALL in self._names
        self._names.discard(_ALL)
        return everything

    def take(self) -> str:
        return self._names.pop()
