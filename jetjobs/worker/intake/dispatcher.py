"""Between lanes and slots: asks lanes for as much as there is room for, and starts what arrives."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.pull.puller import LanePuller
from jetjobs.model.events import LaneTrouble, Observer, Redelivered
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.lease_table import STANDSTILL_S, Leases

WEIGHTS: Mapping[str, int] = {"returned": 64, "high": 8, "normal": 3, "low": 1}
"""`back` holds what has waited once already, and has few jobs in it."""
QUICK_S = 0.01
QUICK_AHEAD = 4
"""While jobs are shorter than QUICK_S on average, so many are asked for ahead of the slots. ADR 7."""
SURPLUS_WAIT_S = 1.0
"""A delivery that finds no free slot within this is given back."""
IDLE_WAIT_S = 10.0
"""How long a suspect waits for the jobs beside it to end; then it starts beside what is left of them."""
ALONE_S = 60.0
"""How long nothing is started beside a suspect: one that runs on for longer must not hold up the worker."""


class LaneShare:
    """What sharing knows of one lane."""

    __slots__ = ("owed", "passed", "pending", "queue", "weight")

    def __init__(self, queue: str, weight: int) -> None:
        self.queue = queue
        self.weight = weight
        self.pending = 0
        """Jobs known to wait in the lane."""
        self.owed = 0
        """Deliveries asked for and not yet received."""
        self.passed = 0.0
        """Virtual time: what the lane was given, divided by its weight. The lowest is served next."""


def share(lanes: Sequence[LaneShare], free: int, free_for: Mapping[str, int]) -> list[int]:
    """How many to ask of each lane now. `free_for` bounds single queues; a queue not in it has no bound.

    Lanes with a backlog share the free slots by weight. A lane that seems empty keeps one request open,
    so that an idle worker starts a job within a millisecond of its arrival; that one request is outside
    the count, since nearly always nothing comes of it.
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
    if len(waiting) == 1 and room > 0:  # the usual case, without the walk
        index = waiting[0]
        lane = lanes[index]
        asks[index] = max(0, min(room, lane.pending - lane.owed, room_for.get(lane.queue, room)))
        lane.passed += asks[index] / lane.weight
        return
    if waiting:
        # A lane that was empty for long must not catch up on the past.
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


class Dispatcher:
    """Owns what is asked and what waits. `start` runs an attempt, `release` gives one back; neither blocks.

    A suspect is a job from lane `back` that is one crash short of `max_crashes`. There is one at a time, and
    nothing new starts beside it: no request is open meanwhile, and what else arrives is given back. ADR 29.
    """

    def __init__(
        self,
        slots: Slots,
        leases: Leases,
        start: Callable[[Attempt], None],
        release: Callable[[Attempt], None],
        max_crashes: int,
        observe: Observer,
    ) -> None:
        self._slots = slots
        self._leases = leases
        self._start = start
        self._release = release
        self._max_crashes = max_crashes
        self._observe = observe
        self._lanes: list[tuple[LanePuller, LaneShare]] = []
        self._surplus: deque[Attempt] = deque()
        self._suspect: Attempt | None = None
        self._alone_since = 0.0
        """When the suspect was started; 0 while it waits."""
        self._wake = asyncio.Event()
        self._asking = True
        self._troubles: dict[LanePuller, str] = {}
        self._mean_s = 1.0
        self._stuck = self._full = 0

    def use(
        self, pullers: Sequence[LanePuller], mend: Callable[[LanePuller], None], ask_anew: Callable[[], None]
    ) -> None:
        """`mend` sees to a lane that was refused, `ask_anew` drops every open request; neither blocks."""
        self._mend, self._ask_anew = mend, ask_anew
        self._lanes = [(p, LaneShare(p.queue, WEIGHTS.get(p.lane, 1))) for p in pullers]

    @property
    def healthy(self) -> bool:
        return not self._troubles and not self._stuck

    @property
    def full(self) -> bool:
        """Whether nothing is asked for, because there is no free slot."""
        return self._slots.free <= 0

    @property
    def _quick(self) -> bool:
        """Whether jobs end so fast that a few may wait here for a slot: it spares them the round trip."""
        return self._mean_s < QUICK_S

    async def ask_for_ever(self) -> None:
        """Keep the lanes asked until cancelled. One pass serves all slots freed in one turn of the loop."""
        while self._asking:
            self._ask()
            await self._wake.wait()
            self._wake.clear()
        await asyncio.Event().wait()

    def _ask(self) -> None:
        if self._exclusive or (self._full and self._slots.busy > self._full):
            return
        # While a suspect runs no other is wanted: it would be given back, and be asked for again at once.
        hidden = n.RETURNED if self._suspect is not None else ""
        able = [(p, lane) for p, lane in self._lanes if not p.blocked and p.lane != hidden]
        for puller, lane in able:
            lane.pending, lane.owed = puller.pending, puller.owed
        free = self._slots.free - len(self._surplus) + (QUICK_AHEAD if self._quick else 0)
        if self._full:
            # What is in hand waits for room. A trickle goes on, for each success may set some free. ADR 18.
            free = min(free, 1)
        free_for = {queue: self._slots.free_for(queue) for queue in self._slots.caps}
        asks = share([lane for _, lane in able], free, free_for)
        for (puller, lane), count in zip(able, asks, strict=True):
            if count:
                puller.ask(count, backlog=lane.pending > lane.owed)

    # Called by the pullers

    def on_delivery(self, puller: LanePuller, delivery: Delivery) -> None:
        attempt = self._receive(puller, delivery)
        if self._troubles:
            self._troubles.pop(puller, None)
        if attempt is not None:
            self._place(attempt)
        if not puller.owed:
            self._wake.set()

    def _receive(self, puller: LanePuller, delivery: Delivery) -> Attempt | None:
        """Hold the delivery. None when it is none of ours any more, or in hand already."""
        now = time.monotonic()
        since = puller.stale_since or now
        if now - self._leases.turned_at > STANDSTILL_S:
            since = self._leases.turned_at
        if delivery.delivered > 1:
            self._observe(Redelivered(puller.queue, puller.lane, delivery.sequence, delivery.delivered))
            if self._leases.renew(puller.queue, delivery, since):
                return None
        attempt = Attempt(delivery, puller.queue, puller.lane, since, self._leases.lease_s)
        if now >= attempt.leased_until:
            # It lay in the socket while we stood still. The server has counted its lease since, and may have
            # given it to another: it is not ours to run, and not ours to touch.
            return None
        attempt.alone = puller.lane == n.RETURNED and self._is_suspect(delivery)
        self._leases.hold(attempt)
        return attempt

    def _is_suspect(self, delivery: Delivery) -> bool:
        crashes = delivery.headers.get(h.CRASHES, "")
        usable = crashes.isascii() and crashes.isdigit() and len(crashes) <= 8
        return usable and int(crashes) >= self._max_crashes - 1 > 0

    def _place(self, attempt: Attempt) -> None:
        if not self._asking or self._exclusive or (attempt.alone and self._suspect is not None):
            self._release(attempt)
        elif attempt.alone:
            self._suspect, self._alone_since = attempt, 0.0
            self.release_surplus(0.0)
            self._ask_anew()
            self._advance()
        elif self._slots.take(attempt.queue):
            self._start(attempt)
        else:
            self._surplus.append(attempt)

    @property
    def _exclusive(self) -> bool:
        """Whether nothing but the suspect may start."""
        if self._suspect is None:
            return False
        return not self._alone_since or time.monotonic() - self._alone_since < ALONE_S

    def _advance(self) -> None:
        """Start the suspect once it may start. One that finds no slot even then is given back."""
        suspect, now = self._suspect, time.monotonic()
        if suspect is None or self._alone_since:
            return
        if not suspect.owned():
            self._suspect = None
        elif not self._slots.busy or now - suspect.received_at >= IDLE_WAIT_S:
            if self._slots.take(suspect.queue):
                self._alone_since = now  # first, since a start that is the worker's last gives back what waits
                self._start(suspect)
            else:
                self._suspect = None
                self._release(suspect)

    def on_change(self, puller: LanePuller, problem: str | None) -> None:
        """A lane is in trouble, is well (""), or may be asked again (None). Each trouble is told once."""
        # One that was found to be there is asked when a slot is free: a worker that is full is well without.
        if problem == "" or (problem is None and self.full):
            self._troubles.pop(puller, None)
        elif problem:
            if self._troubles.get(puller) != problem:
                self._troubles[puller] = problem
                self._observe(LaneTrouble(puller.queue, puller.lane, problem))
            if puller.blocked:
                self._mend(puller)
        self._wake.set()

    # Called by the worker

    def stop_intake(self) -> None:
        """Start nothing more: what still arrives, and what waits for a slot, is given back."""
        self._asking = False
        self.release_surplus(0.0)
        if self._suspect is not None and not self._alone_since:
            self._release(self._suspect)
            self._suspect = None

    def on_stuck(self, stuck: int, full: int) -> None:
        """So many outcomes cannot be stored now, `full` of them because there is no room."""
        self._stuck, self._full = stuck, full
        self._wake.set()

    def slot_freed(self, attempt: Attempt, held_s: float) -> None:
        """A job has ended that held its slot for so long: start one that waits, or ask for more."""
        self._mean_s += (held_s - self._mean_s) / 8
        if attempt is self._suspect:
            self._suspect = None
        self._advance()
        for _ in range(len(self._surplus)):
            waiting = self._surplus.popleft()
            if not waiting.owned():
                continue
            if self._slots.take(waiting.queue):
                self._start(waiting)
                break
            self._surplus.append(waiting)
        self._wake.set()

    def tick(self) -> None:
        """Now and then: what has waited too long goes another way."""
        if self._suspect is not None:
            self._advance()
            self._wake.set()  # others may start again, if it is gone or has had its time
        self.release_surplus()

    def release_surplus(self, older_than_s: float = SURPLUS_WAIT_S) -> None:
        """Give back what has waited too long for a slot: another worker may have one."""
        now = time.monotonic()
        while self._surplus and now - self._surplus[0].received_at >= older_than_s:
            attempt = self._surplus.popleft()
            if attempt.owned():
                self._release(attempt)
