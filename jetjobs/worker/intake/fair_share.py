"""Share free slots among lanes by weight, so that no lane starves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jetjobs.jetstream.pull.puller import PULL_BYTES

WEIGHTS: Mapping[str, int] = {"returned": 64, "high": 8, "normal": 3, "low": 1}
"""Lane `returned` holds few jobs, and they have waited once already."""


class LaneShare:
    """The state of one lane that `share` needs."""

    __slots__ = ("owed", "passed", "pending", "queue", "weight")

    def __init__(self, queue: str, weight: int) -> None:
        self.queue = queue
        self.weight = weight
        self.pending = 0
        """Jobs known to be in the lane, without those that do not fit into PULL_BYTES now."""
        self.owed = 0
        """Deliveries requested and not yet received."""
        self.passed = 0.0
        """Virtual time: the requests the lane was given, divided by its weight. The lowest is served next."""


def fitting(mean_bytes: float, lanes: int) -> int:
    """How many jobs of this size one of so many lanes may request at once. At least one."""
    return max(1, int(PULL_BYTES / (max(mean_bytes, 1.0) * lanes)))


def share(lanes: Sequence[LaneShare], free: int, free_for: Mapping[str, int]) -> list[int]:
    """How many jobs to request from each lane now. `free_for` holds the limits of queues that have one.

    Lanes with a backlog share the free slots by weight. A lane that seems empty keeps one request open, so that an
    idle worker starts a job within a millisecond of its arrival. That request does not count against the free
    slots, since it is nearly always unanswered.
    """
    asks = [0] * len(lanes)
    if free <= 0:
        return asks
    room_for = dict(free_for)
    room = free
    for lane in lanes:
        if lane.pending > 0:
            room -= lane.owed
            if lane.queue in room_for:
                room_for[lane.queue] -= lane.owed
    _share_backlog(lanes, asks, room, room_for)
    for index, lane in enumerate(lanes):
        if not lane.pending and not lane.owed and free_for.get(lane.queue, 1) > 0:
            asks[index] = 1
    return asks


def _share_backlog(lanes: Sequence[LaneShare], asks: list[int], room: int, room_for: dict[str, int]) -> None:
    waiting = [i for i, lane in enumerate(lanes) if lane.pending > lane.owed]
    if len(waiting) == 1 and room > 0:  # the usual case, without the loop below
        index = waiting[0]
        lane = lanes[index]
        asks[index] = max(0, min(room, lane.pending - lane.owed, room_for.get(lane.queue, room)))
        lane.passed += asks[index] / lane.weight
        return
    if waiting:
        # A lane that was empty for a long time must not catch up.
        floor = max(lanes[i].passed for i in waiting) - 1.0
        for i in waiting:
            lanes[i].passed = max(lanes[i].passed, floor)
    while room > 0:
        able = [
            i
            for i in waiting
            if lanes[i].pending - lanes[i].owed - asks[i] > 0 and room_for.get(lanes[i].queue, 1) > 0
        ]
        if not able:
            return
        index = min(able, key=lambda i: lanes[i].passed)
        lane = lanes[index]
        asks[index] += 1
        lane.passed += 1.0 / lane.weight
        room -= 1
        if lane.queue in room_for:
            room_for[lane.queue] -= 1
