"""The state of a queue at one moment: counts, rates, workers, and when a new job would start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from jetjobs.model.public import Record, public

Activity = Literal["paused", "no worker", "running", "idle"]
"""`no worker`: jobs wait and no worker takes them. `running`: jobs run or wait for a slot."""
NO_END = timedelta(days=3650)
"""A pause that is longer than this has no end."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class Pause(Record):
    """The pause of a queue: its end by the clock of the server (None for no end), reason, author and start."""

    until: datetime | None
    reason: str = ""
    by: str = ""
    at: datetime | None = None
    """None if the queue was paused without jetjobs."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the keys of the command line."""
        return {"until": _iso(self.until), "reason": self.reason, "by": self.by, "since": _iso(self.at)}


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class LaneState(Record):
    """The consumer of one lane at one moment, by the clock of the server."""

    lane: str
    at: datetime
    queued: int
    running: int
    delivered: int
    """Stream sequence of the last job that was delivered for the first time."""
    deliveries: int
    waiting_pulls: int
    paused_until: datetime | None
    """None if the lane is not paused."""
    full: bool = False
    """Whether the lane has reached `max_ack_pending`."""

    @property
    def entered(self) -> int:
        """A counter that rises with every job that enters the lane."""
        return self.queued + self.deliveries

    @property
    def left(self) -> int:
        """A counter that rises with every job that leaves the lane, and with every redelivery (rare)."""
        return self.deliveries - self.running


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class QueueState(Record):
    """One queue at one moment. The counts are read one after another, and jobs move in between."""

    queue: str
    at: datetime
    """The time, by the clock of the server."""
    pause: Pause | None
    lanes: tuple[LaneState, ...]
    scheduled: int
    """Jobs that wait for their due time and were never delivered."""
    retrying: int
    """Jobs that were delivered and wait again."""
    dead: int
    oldest: timedelta | None
    """How long the oldest queued job has been due; None if there is none."""
    bytes: int
    """Size of the work stream."""
    workers: int
    busy: int
    slots: int
    in_per_s: float | None = None
    out_per_s: float | None = None
    finishing: int = 0
    """Slots that workers which take no more jobs still use."""

    @property
    def queued(self) -> int:
        return sum(lane.queued for lane in self.lanes)

    @property
    def running(self) -> int:
        return sum(lane.running for lane in self.lanes)

    @property
    def demand(self) -> int:
        """Jobs that need workers: queued and running ones, without those of paused lanes."""
        return sum(lane.queued + lane.running for lane in self.lanes if not lane.paused_until)

    @property
    def activity(self) -> Activity:
        """The word for the queue on every screen."""
        if self.pause is not None:
            return "paused"
        # A delivered job that no worker can have waits for the end of its lease.
        if not self.workers and self.queued + max(0, self.running - self.finishing):
            return "no worker"
        return "running" if self.queued or self.running else "idle"

    @property
    def starts_in(self) -> timedelta | None:
        """In how long a job enqueued now is expected to start; None if unknown."""
        if not self.workers:
            return None
        paused, free = timedelta(0), self.slots - self.busy
        if self.pause is not None:
            if self.pause.until is None:
                return None
            # Assume that the jobs running now will have ended by then.
            paused, free = max(timedelta(0), self.pause.until - self.at), self.slots
        if self.queued < free:
            return paused
        if self.out_per_s:
            return paused + timedelta(seconds=max(1, self.queued) / self.out_per_s)
        return None

    def summary(self) -> dict[str, Any]:
        """The fields for lists, as JSON."""
        return {
            "queue": self.queue,
            "state": "paused" if self.pause is not None else "running",
            "activity": self.activity,
            "paused_until": _iso(self.pause.until) if self.pause is not None else None,
            "queued": self.queued,
            "running": self.running,
            "scheduled": self.scheduled,
            "retrying": self.retrying,
            "dead": self.dead,
            "oldest_s": _seconds(self.oldest),
            "in_per_s": _rounded(self.in_per_s),
            "out_per_s": _rounded(self.out_per_s),
            "workers": self.workers,
            "slots": {"busy": self.busy, "total": self.slots},
        }

    def as_dict(self) -> dict[str, Any]:
        """The summary with the lanes, the pause and the expected start of a new job."""
        return {
            **self.summary(),
            "starts_in_s": _seconds(self.starts_in),
            "pause": None if self.pause is None else self.pause.as_dict(),
            "lanes": [
                {"lane": x.lane, "queued": x.queued, "running": x.running, "waiting_pulls": x.waiting_pulls}
                for x in self.lanes
            ],
        }


def rates(before: Sequence[LaneState], after: Sequence[LaneState]) -> tuple[float | None, float | None]:
    """Jobs per second that entered and left the lanes; None if there is nothing to compare."""
    earlier = {lane.lane: lane for lane in before}
    pairs = [(earlier[lane.lane], lane) for lane in after if lane.lane in earlier]
    if not pairs:
        return None, None
    entered = sum(second.entered - first.entered for first, second in pairs)
    left = sum(second.left - first.left for first, second in pairs)
    took_s = max(0.001, sum((second.at - first.at).total_seconds() for first, second in pairs) / len(pairs))
    return max(0, entered) / took_s, max(0, left) / took_s


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()


def _seconds(length: timedelta | None) -> float | None:
    return None if length is None else round(length.total_seconds(), 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
