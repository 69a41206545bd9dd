"""Which schedules the planner knows, and which of them it is to look at next."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from jetjobs.jetstream.ticks import Marker
from jetjobs.model.schedule import Schedule


@dataclass(slots=True)
class Known:
    """A schedule as the planner holds it."""

    schedule: Schedule
    marker: Marker
    turn: int = 0
    """Which entry of the heap is its own; all others are out of date."""
    following: datetime | None = None
    """The first slot that is not settled."""
    complained: bool = False
    """Whether it was told that its ticks cannot be placed."""


class Agenda:
    """All that are known, in a heap by the time of the next look: the others cost nothing meanwhile."""

    def __init__(self) -> None:
        self.known: dict[str, Known] = {}
        self._heap: list[tuple[datetime, int, str]] = []
        self._turns = itertools.count(1)

    def add(self, schedule: Schedule, marker: Marker) -> None:
        """Known from now on, and to be looked at at once."""
        self.known[schedule.name] = Known(schedule, marker)
        self.look_at(schedule.name, schedule.since)

    def hold(self, schedule: Schedule, now: datetime) -> None:
        """Known for its lateness only: it cannot be planned now."""
        known = self.known.get(schedule.name)
        if known is None or known.schedule.generation:
            nowhere = schedule.model_copy(update={"generation": ""})
            self.known[schedule.name] = Known(nowhere, Marker(None, 0), following=schedule.after(now))

    def forget(self, name: str) -> None:
        self.known.pop(name, None)

    def has(self, schedule: Schedule) -> bool:
        """Whether it is known as it is."""
        known = self.known.get(schedule.name)
        return known is not None and known.schedule.generation == schedule.generation

    def look_at(self, name: str, moment: datetime) -> None:
        known = self.known[name]
        known.turn = next(self._turns)
        heapq.heappush(self._heap, (moment, known.turn, name))

    def due(self, now: datetime, most: int) -> Iterator[Known]:
        """Those to look at by now; each is given once."""
        for _ in range(most):
            if not self._heap or self._heap[0][0] > now:
                return
            _, turn, name = heapq.heappop(self._heap)
            known = self.known.get(name)
            if known is not None and known.turn == turn:
                yield known

    @property
    def next_look(self) -> datetime | None:
        return self._heap[0][0] if self._heap else None
