"""Measure how long it took until work resumed after each fault. No I/O."""

from __future__ import annotations

import bisect
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.history import CONFIRMED, STALL, History, Span
from tests.chaos.journal import FINISH, START, Line
from tests.chaos.plan import LEAP


class Times(NamedTuple):
    """Quantiles of durations, in seconds."""

    number: int
    p50: float
    p99: float
    longest: float

    def __str__(self) -> str:
        if not self.number:
            return "none"
        return f"p50 {self.p50:.2f} s, p99 {self.p99:.2f} s, longest {self.longest:.2f} s, of {self.number}"


def quantiles(values: list[float]) -> Times:
    """Quantiles by the nearest rank.

    >>> str(quantiles([3.0, 1.0, 2.0]))
    'p50 2.00 s, p99 3.00 s, longest 3.00 s, of 3'
    """
    if not values:
        return Times(0, 0.0, 0.0, 0.0)
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, max(0, -(-len(ordered) * int(share * 100) // 100) - 1))]

    return Times(len(ordered), rank(0.5), rank(0.99), ordered[-1])


class Recovery(NamedTuple):
    """How work went on after the faults of one kind."""

    kind: str
    until_started: Times
    """From the end of a fault to the next job that started on any worker."""
    until_confirmed: Times
    """From the end of a fault to the next enqueue that was confirmed."""
    pause: Times
    """The longest time without a start from the beginning of a fault until work went on after its end."""


def recoveries(history: History, lines: list[Line]) -> list[Recovery]:
    """One entry for each kind of fault that occurred."""
    starts = [line.at for line in lines if line.event == START]
    confirmed = sorted(one.answered_at for one in history.sent if one.answer == CONFIRMED)
    found = []
    for kind in sorted({span.kind for span in history.spans} - {STALL}):
        spans = [span for span in history.spans if span.kind == kind and not _has_company(history, span)]
        found.append(
            Recovery(
                kind,
                quantiles([wait for span in spans for wait in _after(history, span, starts)]),
                quantiles([wait for span in spans for wait in _after(history, span, confirmed)]),
                quantiles([_longest_pause(starts, span.stopped or span.start, span.end) for span in spans]),
            )
        )
    return found


def _has_company(history: History, span: Span) -> bool:
    """Whether a leap, which has no plan in common with the other faults, coincided with one of them."""
    return span.kind == LEAP and any(
        other.kind not in (LEAP, STALL) and other.start < span.end and span.start < other.over
        for other in history.spans
    )


def _after(history: History, span: Span, ordered: list[float]) -> list[float]:
    """The time from the end of the fault to the next one; nothing if another fault began in between."""
    return [
        wait
        for wait in _until_next(ordered, span.end)
        if not any(span.end < other.start < span.end + wait for other in history.spans if other.kind != LEAP)
    ]


def _until_next(ordered: list[float], moment: float) -> list[float]:
    """The time from then to the next one; nothing if there is none."""
    following = bisect.bisect_left(ordered, moment)
    return [ordered[following] - moment] if following < len(ordered) else []


def _longest_pause(starts: list[float], begin: float, end: float) -> float:
    first, last = bisect.bisect_left(starts, begin), bisect.bisect_left(starts, end)
    moments = [begin, *starts[first : last + 1]]
    return max((after - before for before, after in pairwise(moments)), default=0.0)


def until_next_finish(history: History, lines: list[Line]) -> Times:
    """From the end of each fault to the next job that finished on any worker."""
    finishes = [line.at for line in lines if line.event == FINISH]
    return quantiles([wait for span in history.spans for wait in _until_next(finishes, span.end)])


def until_taken_over(history: History, lines: list[Line]) -> Times:
    """From each kill -9 of a worker to the next start of each job that it held."""
    waits = []
    for life in history.lives:
        if life.wanted != "kill":
            continue
        held = {line.message: line for line in lines if line.pid == life.pid and line.at <= life.died}
        for message, last in held.items():
            if last.event != START:
                continue
            after = [
                one.at for one in lines if one.message == message and one.pid != life.pid and one.event == START
            ]
            later = [at for at in after if at > last.at]
            if later:
                waits.append(max(0.0, min(later) - life.died))
    return quantiles(waits)
