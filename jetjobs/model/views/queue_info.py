"""The state of a queue at one moment: counts, rates, workers, and when a new job would start."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jetjobs.model.public import public
from jetjobs.model.views.worker_info import iso

NO_END_S = 10 * 365 * 86400.0
"""A pause that is longer than this has no end."""


@public("jetjobs.admin")
class Pause(NamedTuple):
    """The pause of a queue: its end by the clock of the server (0 for none), reason, author and start."""

    until: float
    reason: str = ""
    by: str = ""
    at: float = 0.0


@public("jetjobs.admin")
class LaneState(NamedTuple):
    """The consumer of one lane at one moment, by the clock of the server."""

    lane: str
    at: float
    queued: int
    running: int
    delivered: int
    """Stream sequence of the last job that was delivered for the first time."""
    deliveries: int
    waiting_pulls: int
    paused_until: float
    """0 if the lane is not paused."""
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
class QueueState(NamedTuple):
    """One queue at one moment. The counts are read one after another, and jobs move in between."""

    queue: str
    at: float
    """The time, by the clock of the server."""
    pause: Pause | None
    lanes: tuple[LaneState, ...]
    scheduled: int
    """Jobs that wait for their due time and were never delivered."""
    retrying: int
    """Jobs that were delivered and wait again."""
    dead: int
    oldest_s: float | None
    """How long the oldest queued job has been due; None if there is none."""
    bytes: int
    """Size of the work stream."""
    workers: int
    busy: int
    slots: int
    in_per_s: float | None = None
    out_per_s: float | None = None

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
    def starts_in_s(self) -> float | None:
        """In how long a job enqueued now is expected to start; None if unknown."""
        if not self.workers:
            return None
        paused_s, free = 0.0, self.slots - self.busy
        if self.pause is not None:
            if not self.pause.until:
                return None
            # Assume that the jobs running now will have ended by then.
            paused_s, free = max(0.0, self.pause.until - self.at), self.slots
        if self.queued < free:
            return paused_s
        if self.out_per_s:
            return paused_s + max(1, self.queued) / self.out_per_s
        return None

    def summary(self) -> dict[str, Any]:
        """The fields for lists, as JSON."""
        return {
            "queue": self.queue,
            "state": "paused" if self.pause is not None else "running",
            "paused_until": iso(self.pause.until) if self.pause is not None else None,
            "queued": self.queued,
            "running": self.running,
            "scheduled": self.scheduled,
            "retrying": self.retrying,
            "dead": self.dead,
            "oldest_s": _rounded(self.oldest_s),
            "in_per_s": _rounded(self.in_per_s),
            "out_per_s": _rounded(self.out_per_s),
            "workers": self.workers,
            "slots": {"busy": self.busy, "total": self.slots},
        }

    def details(self) -> dict[str, Any]:
        """The summary with the lanes, the pause and the expected start of a new job."""
        pause = self.pause
        return {
            **self.summary(),
            "starts_in_s": _rounded(self.starts_in_s),
            "pause": None
            if pause is None
            else {"until": iso(pause.until), "reason": pause.reason, "by": pause.by, "since": iso(pause.at)},
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
    took_s = max(0.001, sum(second.at - first.at for first, second in pairs) / len(pairs))
    return max(0, entered) / took_s, max(0, left) / took_s


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
