"""Check when jobs started against their due times and deadlines, on the server's clock. No I/O."""

from __future__ import annotations

from collections import defaultdict

from tests.chaos.facts import Facts
from tests.chaos.history import STORED, History, Sent
from tests.chaos.journal import START, Line
from tests.chaos.plan import CLUSTER_FAULTS

EARLY_S = 2.0
"""A process knows the server's clock within half of a round trip, which `slow_answers` makes long."""
LATE_S = 60.0
"""Jobs wait for their turn behind those that faults have delayed."""
_STOPS = (*CLUSTER_FAULTS, "kill_server", "restart_server", "older_store", "fill_storage")
"""Faults during which the server may fire nothing."""
_STALLS = ("freeze_worker", "stall of the machine")

Wrong = tuple[str, str]
"""What is wrong, and the job."""


def wrong_times(history: History, lines: list[Line], facts: Facts) -> list[Wrong]:
    first: dict[tuple[str, str], Line] = {}
    starts: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line.event == START:
            first.setdefault((line.id, line.run), line)
            starts[line.id].append(line)
    moved = {ask.id for ask in history.asks if ask.action in ("run_now", "reschedule")}
    found: list[Wrong] = []
    for sent in history.sent:
        if sent.answer not in STORED or not sent.run:
            continue
        started = first.get((sent.id, sent.run))
        if sent.due_at and started is not None and sent.id not in moved:
            found += _due(history, sent, started.at)
        if sent.deadline:
            found += _deadline(history, sent, starts[sent.id], facts)
    return found


def _due(history: History, sent: Sent, at: float) -> list[Wrong]:
    if at < sent.due_at - EARLY_S:
        return [(f"{sent.kind} started {sent.due_at - at:.1f} s before it was due", sent.id)]
    due_at = sent.due_at + (sent.answered_at - sent.at)  # a delay counts from a moment in between
    stopped = sum(
        min(span.over, at) - max(span.start, due_at)
        for span in history.spans
        if span.kind in _STOPS and span.start < at and span.over > due_at
    )
    if at - due_at - stopped > LATE_S:
        return [(f"{sent.kind} started {at - due_at:.1f} s after it was due", sent.id)]
    return []


def _deadline(history: History, sent: Sent, starts: list[Line], facts: Facts) -> list[Wrong]:
    letter = facts.dead.get(sent.id)
    if letter is not None and letter.get("reason") == "expired" and letter.get("stored_at") is not None:
        early = sent.deadline - letter["stored_at"].timestamp()
        if early > EARLY_S:
            return [(f"expired {early:.1f} s before its deadline", sent.id)]
    for line in starts:
        worker = history.worker_of(line.pid, line.at)
        stalled = any(
            span.kind in _STALLS and span.start <= line.at and span.over >= sent.deadline
            for span in history.spans
            if worker is not None and span.touches(worker)
        )
        if line.run == sent.run and line.at > sent.deadline + EARLY_S and not stalled:
            return [(f"started {line.at - sent.deadline:.1f} s after its deadline", sent.id)]
    return []
