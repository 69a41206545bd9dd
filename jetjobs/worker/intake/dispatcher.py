"""Pull as many jobs as there is room for, and start them in free slots."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.pull.puller import LanePuller
from jetjobs.model.events import LaneTrouble, Observer, Redelivered
from jetjobs.model.wire import subjects as n
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.execution.quarantine import Quarantine
from jetjobs.worker.intake.fair_share import WEIGHTS, LaneShare, fitting, share
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.leases.loop_monitor import STALL_S, LoopMonitor

QUICK_S = 0.01
QUICK_AHEAD = 4
"""While jobs take less than QUICK_S on average, this many are requested beyond the free slots. ADR 7."""
MAX_SURPLUS_S = 1.0
"""A delivery that finds no free slot within this time is released."""


class Dispatcher:
    """Decides what is requested and what starts. `start` runs an attempt and `release` returns one to its queue;
    neither blocks.

    While a suspect is in quarantine nothing else starts: no pull request is open, and deliveries that arrive are
    released. ADR 29.
    """

    def __init__(
        self,
        slots: Slots,
        leases: LeaseTable,
        monitor: LoopMonitor,
        quarantine: Quarantine,
        start: Callable[[Attempt], None],
        release: Callable[[Attempt], None],
        observe: Observer,
    ) -> None:
        self._slots = slots
        self._leases = leases
        self._clock = leases.clock
        self._monitor = monitor
        self._quarantine = quarantine
        self._start = start
        self._release = release
        self._observe = observe
        self._lanes: list[tuple[LanePuller, LaneShare]] = []
        self._surplus: deque[Attempt] = deque()
        self._wake = asyncio.Event()
        self._open = True
        self._troubles: dict[LanePuller, str] = {}
        self._mean_s = 1.0
        self._full = 0
        self._left_to_start = 0
        self._on_last: Callable[[], None] = lambda: None

    def use(
        self,
        pullers: Sequence[LanePuller],
        restore: Callable[[LanePuller], None],
        reset: Callable[[], None],
        doubt: Callable[[str], None],
    ) -> None:
        """`restore` makes a refused lane usable again, `reset` drops every open request, and `doubt` compares the
        held jobs of a queue with its stream; none of them blocks."""
        self._restore, self._reset, self._doubt = restore, reset, doubt
        self._lanes = [(p, LaneShare(p.queue, WEIGHTS.get(p.lane, 1))) for p in pullers]

    def limit(self, max_jobs: int, on_last: Callable[[], None]) -> None:
        """Call `on_last` when the last of `max_jobs` jobs starts."""
        self._left_to_start, self._on_last = max_jobs, on_last

    @property
    def trouble(self) -> str:
        """Why a lane cannot be pulled from; empty if all can."""
        for puller, text in self._troubles.copy().items():  # a copy, because any thread may ask
            return f"lane {puller.lane} of queue {puller.queue}: {text}"
        return ""

    @property
    def full(self) -> bool:
        """Whether nothing is requested because no slot is free."""
        return self._slots.free <= 0

    # Pull

    async def run(self) -> None:
        """Keep requests open until cancelled. One pass serves all slots that became free in one turn of the event
        loop."""
        while self._open:
            self._pull()
            await self._wake.wait()
            self._wake.clear()
        await asyncio.Event().wait()

    def _pull(self) -> None:
        if self._quarantine.exclusive or (self._full and self._slots.busy > self._full):
            return
        # A second suspect would be released, and then delivered again at once: do not request one.
        hidden = n.RETURNED if self._quarantine.suspect is not None else ""
        able = [(p, lane) for p, lane in self._lanes if not p.blocked and p.lane != hidden]
        with_backlog = sum(puller.pending > 0 for puller, _ in able)
        for puller, lane in able:
            lane.pending, lane.owed = puller.pending, puller.owed
            if lane.pending:
                lane.pending = min(lane.pending, fitting(puller.mean_bytes, with_backlog))
        # Quick jobs may wait here for a slot: that saves them the round trip to the server.
        ahead = QUICK_AHEAD if self._mean_s < QUICK_S else 0
        free = self._slots.free - len(self._surplus) + ahead
        if self._full:
            # Held outcomes wait for storage. One job at a time goes on, since each success may free some. ADR 18.
            free = min(free, 1)
        free_for = {queue: self._slots.free_for(queue) for queue in self._slots.caps}
        asks = share([lane for _, lane in able], free, free_for)
        for (puller, lane), count in zip(able, asks, strict=True):
            if count:
                puller.ask(count, backlog=lane.pending > lane.owed)

    # Called by the pullers

    def on_delivery(self, puller: LanePuller, delivery: Delivery) -> None:
        attempt = self._receive(puller, delivery)
        if puller.denied:
            if attempt is not None:
                self._release(attempt)  # it could not be acked
            return
        if self._troubles:
            self._troubles.pop(puller, None)
        if attempt is not None:
            self._place(attempt)
        if not puller.owed:
            self._wake.set()

    def _receive(self, puller: LanePuller, delivery: Delivery) -> Attempt | None:
        """Hold the delivery. None if its lease has run out, or if this worker holds it already."""
        now = self._clock.monotonic()
        received_at = puller.stale_since or now
        if now - self._monitor.ticked_at > STALL_S:
            received_at = self._monitor.ticked_at
        if delivery.delivered > 1:
            self._observe(Redelivered(puller.queue, puller.lane, delivery.sequence, delivery.delivered))
        if delivery.fence <= puller.fence:
            self._doubt(puller.queue)  # the consumer counts again from an earlier number: it is a new one
        puller.fence = delivery.fence
        attempt = Attempt(delivery, puller.queue, puller.lane, received_at, self._leases.lease_s, self._clock)
        if now >= attempt.leased_until:
            # The delivery lay in the socket while the process was stalled. The server may have delivered it to
            # another worker since, so this one must neither run nor settle it.
            return None
        if puller.lane == n.RETURNED:
            attempt.suspect = self._quarantine.is_suspect(delivery)
        return attempt if self._leases.add(attempt) else None

    def _place(self, attempt: Attempt) -> None:
        """Start the attempt, keep it until a slot is free, or release it."""
        quarantine = self._quarantine
        if not self._open or quarantine.exclusive or (attempt.suspect and quarantine.suspect is not None):
            self._release(attempt)
        elif attempt.suspect:
            quarantine.enter(attempt)
            self._release_surplus(0.0)
            self._reset()
            self._start_suspect()
        elif self._slots.take(attempt.queue):
            self._begin(attempt)
        else:
            self._surplus.append(attempt)

    def _begin(self, attempt: Attempt) -> None:
        if self._left_to_start:
            self._left_to_start -= 1
            if not self._left_to_start:
                self._on_last()
        self._start(attempt)

    def _start_suspect(self) -> None:
        """Start the suspect once it may start. Without a free slot even then, it is released."""
        suspect = self._quarantine.ready(self._slots.busy)
        if suspect is None:
            return
        if self._slots.take(suspect.queue):
            self._quarantine.start()  # first, since the last of `max_jobs` to start releases what still waits
            self._begin(suspect)
        else:
            self._quarantine.leave(suspect)
            self._release(suspect)

    def on_change(self, puller: LanePuller, problem: str | None) -> None:
        """A lane is in trouble, works again (""), or may be pulled from again (None). Each trouble is reported
        once."""
        # A full worker does not pull from a lane that exists again, and is healthy without doing so.
        if problem == "" or (problem is None and self.full):
            self._troubles.pop(puller, None)
        elif problem:
            if puller.shut_down:
                # Not reported: the connection is lost next, which is one warning for all lanes, or another server
                # takes over. `Lanes` reports a lane that does not come back.
                self._doubt(puller.queue)
            elif self._troubles.get(puller) != problem:
                self._troubles[puller] = problem
                self._observe(LaneTrouble(puller.queue, puller.lane, problem))
                self._doubt(puller.queue)
            if puller.blocked:
                self._restore(puller)
            if puller.denied:
                self._release_surplus(0.0)
        self._wake.set()

    # Called by the pipeline

    def on_end(self, attempt: Attempt) -> None:
        """An attempt has ended: give back its slot, and start what waits or pull more."""
        self._slots.give_back(attempt.queue)
        self._mean_s += (self._clock.monotonic() - attempt.received_at - self._mean_s) / 8
        if self._quarantine.suspect is not None:
            self._quarantine.leave(attempt)
            self._start_suspect()
        for _ in range(len(self._surplus)):
            waiting = self._surplus.popleft()
            if not waiting.owned():
                continue
            if self._slots.take(waiting.queue):
                self._begin(waiting)
                break
            self._surplus.append(waiting)
        self._wake.set()

    def on_stuck(self, stuck: int, full: int) -> None:
        """`stuck` outcomes cannot be stored now, `full` of them because storage is full."""
        self._full = full
        self._wake.set()

    # Called by the worker

    def close(self) -> None:
        """Start nothing more. What waits for a slot, and what still arrives, is released."""
        self._open = False
        self._release_surplus(0.0)
        waiting = self._quarantine.waiting
        if waiting is not None:
            self._quarantine.leave(waiting)
            self._release(waiting)

    def tick(self) -> None:
        """Start or release what has waited too long."""
        if self._quarantine.suspect is not None:
            self._start_suspect()
            self._wake.set()  # other jobs may start again once the suspect has left or its time is up
        self._release_surplus()

    def _release_surplus(self, min_age_s: float = MAX_SURPLUS_S) -> None:
        """Release what has waited too long for a slot. Another worker may have a free one."""
        now = self._clock.monotonic()
        while self._surplus and now - self._surplus[0].received_at >= min_age_s:
            attempt = self._surplus.popleft()
            if attempt.owned():
                self._release(attempt)
