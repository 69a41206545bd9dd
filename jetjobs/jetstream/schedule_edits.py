"""Change a schedule: first its definition, then what was planned for the one before. Safe to repeat.

A change gives the definition a new generation; each is greater than the one before. The leader plans for a
generation while the marker in the work stream names it; whoever sees a marker of an older one writes it anew, and
removes the ticks that were planned for that. The caller does so at once, for there may be no leader; the leader
does so where the caller did not come to it.
"""

from __future__ import annotations

from datetime import datetime

from jetjobs.jetstream.schedules import Definition, ScheduleStore
from jetjobs.jetstream.server_clock import ServerClock
from jetjobs.jetstream.ticks import Ticks
from jetjobs.model.errors import QueueNotFound, ScheduleNotFound, TopologyMissing
from jetjobs.model.schedule import Schedule


class ScheduleEdits:
    """Changes to the definitions of one namespace."""

    def __init__(self, store: ScheduleStore, ticks: Ticks, clock: ServerClock) -> None:
        self._store = store
        self._ticks = ticks
        self._clock = clock

    async def find(self, name: str) -> Definition:
        """ScheduleNotFound unless it is there."""
        found = await self._store.get(name)
        if found is None or found.deleted:
            raise ScheduleNotFound(f"there is no schedule {name!r}", hint="jetjobs schedules list shows all")
        return found

    async def put(self, schedule: Schedule, over: Definition | None) -> Definition:
        """Write the definition over the one that was read. ScheduleConflict when another stands there by now."""
        now = await self._clock.now()
        before = over.schedule if over is not None else None
        new = schedule.model_copy(update={"generation": next_generation(before, now), "since": now})
        self._ticks.check_size(new)
        await self._check_queue(new)
        revision = await self._store.put(new, over.revision if over is not None else 0)
        if before is not None and before.queue != new.queue:
            await self._take_back(before.queue, new, gone=True)
        await self._take_back(new.queue, new)
        return Definition(new.name, new, revision)

    async def delete(self, over: Definition) -> None:
        """ScheduleConflict when another stands there by now."""
        await self._store.delete(over.name, over.revision)
        if over.schedule is not None:
            now = await self._clock.now()
            generation = next_generation(over.schedule, now)
            gone = over.schedule.model_copy(update={"generation": generation, "since": now, "paused": True})
            await self._take_back(gone.queue, gone, gone=True)

    async def _take_back(self, queue: str, new: Schedule, *, gone: bool = False) -> None:
        try:
            await self._ticks.take_back(queue, new.name, new.generation, new.since, idle=new.paused, gone=gone)
        except TopologyMissing:
            return  # no queue, nothing planned in it

    async def _check_queue(self, schedule: Schedule) -> None:
        """QueueNotFound unless its ticks could be stored."""
        try:
            await self._ticks.marker(schedule.queue, schedule.name)
        except TopologyMissing as error:
            raise QueueNotFound(
                f"there is no queue {schedule.queue!r} for schedule {schedule.name!r}",
                hint="create it with `jetjobs setup apply`, or start a worker for it",
            ) from error


def next_generation(before: Schedule | None, now: datetime) -> str:
    """Greater than that of the definition before, also if the clock has gone back. Compared as text."""
    number = int(now.timestamp() * 1_000_000)
    if before is not None and before.generation.isdigit():
        number = max(number, int(before.generation) + 1)
    return f"{number:016d}"
