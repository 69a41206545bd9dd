"""Which fault explains that a job was started again, or ended twice. Pure."""

from __future__ import annotations

from tests.chaos.history import History, Span
from tests.chaos.journal import Line
from tests.chaos.plan import LEASE_S

AFTER_S = LEASE_S + 1.0
"""How long after its end a fault still shows: a lease that was not renewed runs out by then."""
_SERVER = frozenset({"kill_server", "restart_server"})
_LINK = frozenset({"cut", "blackhole", "delay", "freeze_worker", "kill_worker", "term_worker"})


class Explainer:
    """Knows the faults as they happened."""

    def __init__(self, history: History) -> None:
        self._history = history

    def again(self, before: Line, again: Line) -> str:
        """The fault between two starts of one message that made the server hand it out again; empty for none."""
        died = self._history.died(before.pid)
        if before.at - 1.0 <= died <= again.at:
            return "death of the worker"
        worker = self._history.worker_of(before.pid, before.at)
        for span in self._between(before.at, again.at):
            if span.kind in _LINK and worker is not None and span.touches(worker):
                return span.kind
            if span.kind in _SERVER:
                return span.kind
            if span.kind == "delete_consumer" and "/".join(span.lane) == again.place:
                return span.kind
        return ""

    def zombie(self, lines: list[Line]) -> str:
        """The fault by which a worker could finish a job that was another's by then."""
        for line in lines:
            worker = self._history.worker_of(line.pid, line.at)
            for span in self._between(line.at - AFTER_S, line.at + 4 * LEASE_S):
                if span.kind in _SERVER or (worker is not None and span.touches(worker)):
                    return span.kind
        return ""

    def storage_was_full(self, at: float) -> bool:
        return any(
            span.kind == "fill_storage" and span.start - 1.0 <= at <= span.end + 1.0
            for span in self._history.spans
        )

    def _between(self, start: float, end: float) -> list[Span]:
        return [span for span in self._history.spans if span.start <= end and span.end + AFTER_S >= start]
