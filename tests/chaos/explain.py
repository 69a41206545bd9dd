"""Find the fault that explains why a job was started again or ended twice. No I/O."""

from __future__ import annotations

import math

from tests.chaos.history import CONFIRMATIONS, OLDER_STORE, STALL, History, Span
from tests.chaos.journal import FINISH, START, Line
from tests.chaos.plan import CLUSTER_FAULTS, LEASE_S

AFTER_S = LEASE_S + 1.0
"""How long a fault has effects after its end: a lease that was not renewed has expired by then."""
_SERVER = ("kill_server", "restart_server", *CLUSTER_FAULTS, OLDER_STORE, STALL)
_LATE = ("delay", "slow_answers")
_OF_ONE = ("freeze_worker", "blackhole", "cut", "kill_worker", "term_worker")
_LIKELY = (*_OF_ONE[:3], *_SERVER, "delete_consumer", *_OF_ONE[3:], *_LATE)
"""When several faults would explain it, the first of these is reported."""
BLOCKED = "loop blocked by a task"
DIED = "death of the worker"
_READ_LATE = (*_OF_ONE, *_LATE, BLOCKED)


class Explainer:
    """Knows the faults that happened and, from the journal, which tasks blocked a worker's event loop."""

    def __init__(self, history: History, lines: list[Line], blocked: list[tuple[int, float, float]]) -> None:
        """`blocked`: process, start and end of each blocked event loop that the workers logged."""
        self._history = history
        self._blocked = list(blocked)
        self._ended: dict[tuple[int, tuple[str, str, int]], float] = {}
        """When a process last ended an attempt at a message."""
        started: dict[tuple[int, tuple[str, str, int]], float] = {}
        for line in lines:
            if line.event != START:
                self._ended[line.pid, line.message] = line.at
            if line.task == "block" and line.event == START:
                started[line.pid, line.message] = line.at
            elif line.task == "block" and line.event == FINISH:
                self._blocked.append((line.pid, started.get((line.pid, line.message), line.at), line.at))

    def again(self, before: Line, again: Line) -> str:
        """The fault between two starts of one message that made the server redeliver it; empty for none."""
        ended = self._ended.get((before.pid, before.message), math.inf)
        if self._came_back(before.at, max(ended, before.at), again.at):
            return OLDER_STORE
        if again.delivery < before.delivery:
            return self._late(again)
        died = self._history.died(before.pid)
        if died and before.at - 1.0 <= died <= again.at:
            return DIED
        worker = self._history.worker_of(before.pid, before.at)
        why = self._first(before.at, again.at, worker, again.place)
        # The delivery was read late, but in time: most of the lease had passed before the first heartbeat.
        return why or (BLOCKED if self._blocked_s(before) >= LEASE_S / 3 else "")

    def _came_back(self, started: float, ended: float, again: float) -> bool:
        """Whether a message that was under way or settled after a copy of the store came back with that copy."""
        return any(
            span.kind == OLDER_STORE and started <= span.stopped <= again and ended + AFTER_S >= span.start
            for span in self._history.spans
        )

    def _late(self, again: Line) -> str:
        """A worker read an old delivery late; by then the job had run elsewhere."""
        why = self._before(again)
        # A killed server or a recreated consumer has lost the delivery count: then nothing was read late.
        return f"{why}, an old delivery read late" if why in _READ_LATE else why

    def read_late(self, start: Line) -> bool:
        """Whether a fault of the worker or its link held back what the worker reads."""
        return self._before(start) in (*_READ_LATE, "hold_node")

    def _before(self, start: Line) -> str:
        """The fault of that worker, its link or the servers shortly before the start."""
        if self._blocked_s(start) >= LEASE_S - 0.5:
            return BLOCKED
        worker = self._history.worker_of(start.pid, start.at)
        return self._first(start.at - AFTER_S, start.at, worker, start.place)

    def _blocked_s(self, line: Line) -> float:
        """How long tasks blocked the event loop of that process shortly before."""
        return sum(
            end - start
            for pid, start, end in self._blocked
            if pid == line.pid and line.at - 3 * LEASE_S <= end <= line.at
        )

    def zombie(self, lines: list[Line]) -> str:
        """The fault that let a worker finish a job after it had lost the lease."""
        if lines and self._came_back(lines[0].at, lines[-1].at, lines[-1].at):
            return OLDER_STORE
        for line in lines:
            worker = self._history.worker_of(line.pid, line.at)
            if why := self._first(line.at - AFTER_S, line.at + 4 * LEASE_S, worker, line.place):
                return why
        return ""

    def storage_was_full(self, at: float) -> bool:
        return any(
            span.kind == "fill_storage" and span.start - 1.0 <= at <= span.end + 1.0
            for span in self._history.spans
        )

    def _first(self, start: float, end: float, worker: int | None, place: str) -> str:
        spans = self._history.spans
        kinds = {
            span.kind
            for span in spans
            if span.start <= end and span.over + AFTER_S >= start and _concerns(span, worker, place)
            # What came back with an older store is decided by `_came_back`.
            if not span.stopped or start > span.stopped
        }
        return next((kind for kind in _LIKELY if kind in kinds), "")


def _concerns(span: Span, worker: int | None, place: str) -> bool:
    if span.kind == "delete_consumer":
        # Released and quarantined jobs are delivered from another lane of the same queue.
        queue, lane = span.lane
        return place == f"{queue}/{lane}" or (lane == "returned" and place.startswith(f"{queue}/"))
    if span.note == CONFIRMATIONS:
        return False  # a move is repeated under its lease: that must not store the job twice
    if span.kind in _OF_ONE or span.kind in _LATE:
        return worker is not None and span.touches(worker)
    return span.kind in _SERVER
