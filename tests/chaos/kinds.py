"""The kinds of jobs in a run: how frequent each is, and how it may end when no fault hits it.

The producer asks something about the jobs of the kinds `cancelled`, `hurried`, `postponed` and `awaited`.
"""

from __future__ import annotations

from typing import NamedTuple

DONE = "done"
"""The job has a done record of its run."""
QUIET = "finished"
"""The job keeps no record (`store_result=False`): only the journal shows that it finished."""
LATER = "scheduled"
"""The job is still in lane `later`, because it is due long after the run."""
CANCELLED = "cancelled"
"""The job has a record that says so."""


class Kind(NamedTuple):
    """`ends` are the expected endings: done, finished, scheduled, or the reason of a dead letter."""

    name: str
    weight: int
    ends: frozenset[str]
    journaled: bool = True


def _kind(name: str, weight: int, *ends: str, journaled: bool = True) -> Kind:
    return Kind(name, weight, frozenset(ends), journaled)


ALWAYS = (
    _kind("plain", 16, DONE),
    _kind("quiet", 12, QUIET),
    _kind("high", 5, DONE),
    _kind("low", 5, QUIET),
    _kind("delayed", 6, DONE),
    _kind("run_at", 6, QUIET),
    _kind("far", 1, LATER),
    _kind("keyed", 7, DONE),
    _kind("flaky", 8, DONE),
    _kind("patient", 6, DONE),
    _kind("doomed", 4, "exhausted"),
    _kind("reject", 3, "permanent"),
    _kind("snooze", 4, DONE),
    _kind("thread", 6, DONE),
    _kind("slow", 9, DONE),
    _kind("slow_quiet", 6, QUIET),
    _kind("slow_flaky", 5, DONE),
    _kind("slow_doomed", 2, "exhausted"),
    _kind("block", 2, DONE),
    _kind("batch", 3, DONE, QUIET),
    _kind("expiring", 3, DONE, "expired"),
    _kind("anonymous", 3, DONE),
    _kind("bad_body", 2, "malformed", journaled=False),
    _kind("bad_header", 2, "malformed", journaled=False),
    _kind("no_task", 2, "unknown_task", journaled=False),
    _kind("large", 1, DONE),
    _kind("cancelled", 6, DONE, CANCELLED),
    _kind("hurried", 3, DONE),
    _kind("postponed", 3, DONE),
    _kind("awaited", 6, DONE),
    _kind("isolated", 5, DONE),
    _kind("poison_in_child", 1, "exhausted"),
)

POISON = _kind("poison", 0, "crashed")
"""Sent by the nemesis, as a fault."""

NEWCOMER = _kind("newcomer", 0, DONE)
"""Sent by the nemesis around the restart of a server with an older store."""

KINDS = {kind.name: kind for kind in (*ALWAYS, POISON, NEWCOMER)}
