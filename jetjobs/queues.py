"""`app.queues`: what stands in each queue and how it moves; pause, resume, purge."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.pausing import pause, pause_of, resume
from jetjobs.jetstream.purging import Purge, Purged
from jetjobs.jetstream.queue_facts import (
    Backlog,
    Fronts,
    LaneLook,
    count_dead,
    count_later,
    look_at_lanes,
    look_at_later,
    now_of,
    oldest_due,
    state_of,
)
from jetjobs.jetstream.queue_stats import stats_of
from jetjobs.jetstream.registry import workers_on
from jetjobs.jetstream.topology import queues_on
from jetjobs.model import names as n
from jetjobs.model.errors import DefinitionError, QueueNotFound, TopologyMissing
from jetjobs.model.names import check_token
from jetjobs.model.presence import WorkerRecord
from jetjobs.model.queue import LaneState, Pause, QueueState, QueueStats

RATES_S = 0.2
"""Between the two looks that rates are made of."""
LOOK_LIST = 1_000
LOOK_ONE = 10_000
"""So many jobs for later are looked at to tell retries from schedules: in a list, and of a single queue."""


@dataclass(slots=True)
class Glances:
    """What the last glance has seen: the lanes of each queue, who stands in front, and the dead letters while none
    comes or goes."""

    lanes: dict[str, Sequence[LaneLook]] = field(default_factory=dict)
    fronts: Fronts = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    dead_state: tuple[int, int, int] = (0, 0, 0)


class Queues:
    """The queues of one namespace, as they stand on the server."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._names = jetstream.names

    async def names(self) -> list[str]:
        """The queues there are."""
        return await queues_on(self._connection, self._names)

    async def list(self, *, rates_s: float = RATES_S) -> list[QueueState]:
        """All of them. Takes `rates_s` to see how they move; 0 for no rates."""
        queues, workers = await asyncio.gather(self.names(), workers_on(self._connection, self._names))
        any_dead = await self._any_dead()
        looks = (self._look(queue, workers, rates_s, LOOK_LIST, any_dead) for queue in queues)
        found = await asyncio.gather(*looks, return_exceptions=True)
        return _but_deleted(found)

    async def glance(self, before: Glances, workers: Sequence[WorkerRecord]) -> Sequence[QueueState]:
        """All of them, by what the server counts anyway: for a look every second. Jobs for later are not told
        apart. Rates are those since the last glance, which `before` keeps; give it an empty one at first."""
        queues, dead_state = await asyncio.gather(self.names(), self._dead_state())
        if dead_state != before.dead_state:
            # To count them the server walks every letter of the queue.
            before.dead, before.dead_state = {}, dead_state
        looks = (self._glance(queue, before, workers) for queue in queues)
        found = await asyncio.gather(*looks, return_exceptions=True)
        return _but_deleted(found)

    async def get(self, queue: str, *, rates_s: float = 5 * RATES_S) -> QueueState:
        """One of them, looked at more closely. QueueNotFound when there is none of that name."""
        check_token("queue", queue)
        workers = await workers_on(self._connection, self._names)
        return await self._look(queue, workers, rates_s, LOOK_ONE, await self._any_dead())

    async def pause(
        self, queue: str, *, for_: timedelta | None = None, reason: str = "", by: str = ""
    ) -> QueueState:
        """Let no job of the queue start, for a time or until `resume`. What runs finishes. Repeating it sets the
        time and the reason anew. QueueNotFound when there is none of that name."""
        check_token("queue", queue)
        if for_ is not None and not timedelta(0) < for_ <= timedelta(days=3650):
            raise DefinitionError("a pause lasts longer than nothing, and ten years at most")
        lanes = await look_at_lanes(self._connection, self._names, queue)
        until = now_of(lanes) + for_.total_seconds() if for_ is not None else 0.0
        await pause(self._connection, self._jetstream.publisher, self._names, queue, Pause(until, reason, by))
        return await self.get(queue, rates_s=0)

    async def resume(self, queue: str) -> bool:
        """Let its jobs start again. False when it was not paused; QueueNotFound when there is no such queue."""
        check_token("queue", queue)
        return await resume(self._connection, self._jetstream.publisher, self._names, queue)

    async def purge(
        self, queue: str, *, scheduled: bool = False, step: Callable[[int], None] = lambda count: None
    ) -> Purged:
        """Delete the jobs that wait, and with `scheduled` those for later. Running ones, done records and dead
        letters stay. Nothing starts while it works. QueueNotFound when there is none of that name."""
        check_token("queue", queue)
        return await Purge(self._connection, self._names, queue, step).run(scheduled=scheduled)

    async def stats(self, queue: str, *, since: timedelta = timedelta(hours=1)) -> QueueStats:
        """How its jobs ended within a time, by task, from the records and letters that are still kept."""
        check_token("queue", queue)
        await look_at_lanes(self._connection, self._names, queue)  # QueueNotFound
        return await stats_of(self._connection, self._names, queue, max(1.0, time.time() - since.total_seconds()))

    # Parts

    async def _look(
        self, queue: str, workers: Sequence[WorkerRecord], rates_s: float, most: int, any_dead: bool
    ) -> QueueState:
        connection, names = self._connection, self._names
        started = time.monotonic()
        lanes = await look_at_lanes(connection, names, queue)
        later, oldest, dead, paused = await asyncio.gather(
            look_at_later(connection, names, queue, lanes, most),
            oldest_due(connection, names, queue, lanes),
            count_dead(connection, names, queue) if any_dead else _none(),
            pause_of(connection, names, queue, lanes),
        )
        rates: tuple[float | None, float | None] = (None, None)
        if rates_s:
            await asyncio.sleep(rates_s - (time.monotonic() - started))
            rates = _rates(lanes, await look_at_lanes(connection, names, queue))
        return _state(queue, lanes, later, oldest, dead, paused, rates, workers)

    async def _glance(
        self,
        queue: str,
        before: Glances,
        workers: Sequence[WorkerRecord],
    ) -> QueueState:
        connection, names = self._connection, self._names
        lanes = await look_at_lanes(connection, names, queue)
        later, oldest, dead, paused = await asyncio.gather(
            count_later(connection, names, queue, lanes),
            oldest_due(connection, names, queue, lanes, before.fronts),
            self._dead_of(queue, before),
            pause_of(connection, names, queue, lanes),
        )
        earlier, before.lanes[queue] = before.lanes.get(queue), lanes
        rates = _rates(earlier, lanes) if earlier is not None else (None, None)
        return _state(queue, lanes, Backlog(later, 0, exact=False), oldest, dead, paused, rates, workers)

    async def _dead_of(self, queue: str, before: Glances) -> int:
        if not before.dead_state[0]:
            return 0
        if queue not in before.dead:
            before.dead[queue] = await count_dead(self._connection, self._names, queue)
        return before.dead[queue]

    async def _any_dead(self) -> bool:
        """To count nothing is cheap: most of the time there are no dead letters at all."""
        return (await self._dead_state())[0] > 0

    async def _dead_state(self) -> tuple[int, int, int]:
        """How many dead letters there are, and what else changes when one comes or goes."""
        try:
            state = await state_of(self._connection, self._names.dead_stream)
        except TopologyMissing:
            return 0, 0, 0
        return int(state["messages"]), int(state["first_seq"]), int(state["last_seq"])


async def _none() -> int:
    return 0


def _but_deleted(found: Sequence[QueueState | BaseException]) -> list[QueueState]:
    """The states; a queue that was deleted meanwhile is left out, any other fault raised."""
    for state in found:
        if isinstance(state, BaseException) and not isinstance(state, QueueNotFound):
            raise state
    return [state for state in found if isinstance(state, QueueState)]


def _rates(before: Sequence[LaneLook], after: Sequence[LaneLook]) -> tuple[float | None, float | None]:
    """Jobs that came into the lanes and left them, a second."""
    earlier = {lane.lane: lane for lane in before}
    pairs = [(earlier[lane.lane], lane) for lane in after if lane.lane in earlier and lane.lane in n.PULLED]
    if not pairs:
        return None, None
    came = sum(second.came - first.came for first, second in pairs)
    went = sum(second.went - first.went for first, second in pairs)
    took_s = max(0.001, sum(second.at - first.at for first, second in pairs) / len(pairs))
    return max(0, came) / took_s, max(0, went) / took_s


def _state(
    queue: str,
    lanes: list[LaneLook],
    later: Backlog,
    oldest: float | None,
    dead: int,
    paused: Pause | None,
    rates: tuple[float | None, float | None],
    workers: Sequence[WorkerRecord],
) -> QueueState:
    at = now_of(lanes)
    ours = [worker for worker in workers if queue in worker.queues and worker.takes_jobs]
    return QueueState(
        queue=queue,
        at=at,
        pause=paused,
        lanes=tuple(
            LaneState(lane.lane, lane.pending, lane.running, lane.waiting_pulls)
            for lane in lanes
            if lane.lane in n.PULLED
        ),
        later=later.later,
        retrying=later.retrying,
        retrying_exact=later.exact,
        dead=dead,
        oldest_s=None if oldest is None else max(0.0, at - oldest),
        in_per_s=rates[0],
        out_per_s=rates[1],
        workers=len(ours),
        busy=sum(worker.queues[queue].busy for worker in ours),
        slots=sum(worker.queues[queue].total for worker in ours),
    )
