"""Between lanes and slots: asks lanes for as much as there is room for, and starts what arrives."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from jetjobs.jetstream.delivery import Delivery
from jetjobs.jetstream.puller import LanePuller
from jetjobs.model import names as n
from jetjobs.model.events import LaneTrouble, Observer, Redelivered
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.leases import STANDSTILL_S, Leases
from jetjobs.worker.sharing import WEIGHTS, LaneShare, share
from jetjobs.worker.slots import Slots
from jetjobs.worker.suspects import Suspects

QUICK_S = 0.01
QUICK_AHEAD = 4
"""While jobs are shorter than QUICK_S on average, so many are asked for ahead of the slots. ADR 7."""
SURPLUS_WAIT_S = 1.0
"""A delivery that finds no free slot within this is given back."""


class Dispatcher:
    """Owns what is asked and what waits. `start` runs an attempt, `release` gives one back, `mend` sees to a lane
    that was refused; none of them blocks."""

    def __init__(
        self,
        slots: Slots,
        leases: Leases,
        start: Callable[[Attempt], None],
        release: Callable[[Attempt], None],
        mend: Callable[[LanePuller], None],
        observe: Observer,
    ) -> None:
        self._slots = slots
        self._leases = leases
        self._start = start
        self._release = release
        self._mend = mend
        self._observe = observe
        self._lanes: list[tuple[LanePuller, LaneShare]] = []
        self._surplus: deque[Attempt] = deque()
        self._suspects = Suspects(slots, start, release)
        self._wake = asyncio.Event()
        self._asking = True
        self._troubles: dict[LanePuller, str] = {}
        self._mean_s = 1.0
        self._stuck = self._full = 0
        self._was_exclusive = False

    def use(self, pullers: Sequence[LanePuller]) -> None:
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
        if self._suspects.exclusive or (self._full and self._slots.busy > self._full):
            return
        busy = self._suspects.occupied
        able = [(p, lane) for p, lane in self._lanes if not p.blocked and not (busy and p.lane == n.LONE)]
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
        since = puller.doubted_since or now
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
        self._leases.hold(attempt)
        return attempt

    def _place(self, attempt: Attempt) -> None:
        if not self._asking:
            self._release(attempt)
        elif attempt.lane == n.LONE:
            self.release_surplus(0.0)
            self._suspects.add(attempt)
        elif self._suspects.exclusive:
            self._release(attempt)
        elif self._slots.take(attempt.queue):
            self._start(attempt)
        else:
            self._surplus.append(attempt)

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
        for attempt in self._suspects.give_up():
            self._release(attempt)

    def on_stuck(self, stuck: int, full: int) -> None:
        """So many outcomes cannot be stored now, `full` of them because there is no room."""
        self._stuck, self._full = stuck, full
        self._wake.set()

    def slot_freed(self, attempt: Attempt, held_s: float) -> None:
        """A job has ended that held its slot for so long: start one that waits, or ask for more."""
        self._mean_s += (held_s - self._mean_s) / 8
        if attempt.lane == n.LONE:
            self._suspects.ended(attempt)
        self._suspects.advance()
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
        self._suspects.advance()
        self.release_surplus()
        was, self._was_exclusive = self._was_exclusive, self._suspects.exclusive
        if was and not self._was_exclusive:
            self._wake.set()

    def release_surplus(self, older_than_s: float = SURPLUS_WAIT_S) -> None:
        """Give back what has waited too long for a slot: another worker may have one."""
        now = time.monotonic()
        while self._surplus and now - self._surplus[0].received_at >= older_than_s:
            attempt = self._surplus.popleft()
            if attempt.owned():
                self._release(attempt)
