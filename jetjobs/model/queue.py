"""What is known of a queue at one look: counts, rates, who works on it, and when a new job would start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from jetjobs.model.presence import iso

FOR_EVER_S = 10 * 365 * 86400.0
"""A pause that ends later than this was given no end."""


class Pause(NamedTuple):
    """A queue is paused: until when by the server's clock (0 for no end), why, by whom and since when."""

    until: float
    reason: str = ""
    by: str = ""
    at: float = 0.0


class LaneState(NamedTuple):
    """One lane: what waits, what is with workers, and how many pull requests are open."""

    lane: str
    queued: int
    running: int
    waiting_pulls: int


class QueueState(NamedTuple):
    """One queue at one moment."""

    queue: str
    at: float
    """The moment, by the server's clock."""
    pause: Pause | None
    lanes: tuple[LaneState, ...]
    later: int
    """Jobs for later, scheduled and retrying together."""
    retrying: int
    retrying_exact: bool
    """False when there were too many jobs for later to look at all: then there are at least so many retrying."""
    dead: int
    oldest_s: float | None
    """How long the job that waits longest in front of its lane has been due; None when none waits."""
    in_per_s: float | None
    out_per_s: float | None
    workers: int
    busy: int
    slots: int

    @property
    def queued(self) -> int:
        return sum(lane.queued for lane in self.lanes)

    @property
    def running(self) -> int:
        return sum(lane.running for lane in self.lanes)

    @property
    def scheduled(self) -> int:
        return max(0, self.later - self.retrying)

    @property
    def starts_in_s(self) -> float | None:
        """In how long a job enqueued now may start; None when nothing tells."""
        if not self.workers:
            return None
        paused_s, free = 0.0, self.slots - self.busy
        if self.pause is not None:
            if not self.pause.until:
                return None
            # What runs now will have ended by then, as far as anybody can tell.
            paused_s, free = max(0.0, self.pause.until - self.at), self.slots
        if self.queued < free:
            return paused_s
        if self.out_per_s:
            return paused_s + max(1, self.queued) / self.out_per_s
        return None

    def summary(self) -> dict[str, Any]:
        """For lists, as JSON."""
        return {
            "queue": self.queue,
            "state": "paused" if self.pause is not None else "running",
            "paused_until": iso(self.pause.until) if self.pause is not None else None,
            "queued": self.queued,
            "running": self.running,
            "scheduled": self.scheduled,
            "retrying": self.retrying,
            "retrying_exact": self.retrying_exact,
            "dead": self.dead,
            "oldest_s": _rounded(self.oldest_s),
            "in_per_s": _rounded(self.in_per_s),
            "out_per_s": _rounded(self.out_per_s),
            "workers": self.workers,
            "slots": {"busy": self.busy, "total": self.slots},
        }

    def details(self) -> dict[str, Any]:
        """The summary with lanes, the pause, and the estimated start of a new job."""
        pause = self.pause
        return {
            **self.summary(),
            "starts_in_s": _rounded(self.starts_in_s),
            "pause": None
            if pause is None
            else {"until": iso(pause.until), "reason": pause.reason, "by": pause.by, "since": iso(pause.at)},
            "lanes": [lane._asdict() for lane in self.lanes],
        }


class Spread(NamedTuple):
    """How long things took: the median, the time that 95 of 100 stayed below, the longest."""

    p50_s: float
    p95_s: float
    max_s: float


class TaskStats(NamedTuple):
    """How the jobs of one task ended within a time."""

    task: str
    succeeded: int
    dead: int
    wait: Spread | None
    run: Spread | None

    def to_json(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "succeeded": self.succeeded,
            "dead": self.dead,
            "wait": None if self.wait is None else self.wait._asdict(),
            "run": None if self.run is None else self.run._asdict(),
        }


class QueueStats(NamedTuple):
    """What the records and dead letters of a queue tell of a time."""

    queue: str
    since: float
    complete: bool
    """False when there were more records than are looked at: then only the newest count."""
    tasks: tuple[TaskStats, ...]


def spread(values: Sequence[float]) -> Spread | None:
    """None of nothing.

    >>> spread([0.1, 0.2, 0.4])
    Spread(p50_s=0.2, p95_s=0.4, max_s=0.4)
    """
    if not values:
        return None
    ordered = sorted(values)

    def share(part: float) -> float:
        return round(ordered[math.ceil(part * len(ordered)) - 1], 6)

    return Spread(share(0.5), share(0.95), round(ordered[-1], 6))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
