"""Change a schedule: first its definition, then what was planned for the one before. Safe to repeat."""

from __future__ import annotations

from datetime import datetime

from jetjobs.jetstream.changeover import Changeover
from jetjobs.jetstream.schedules import Definition, ScheduleStore
from jetjobs.jetstream.server_clock import ServerClock
from jetjobs.jetstream.ticks import Ticks
from jetjobs.model.errors import QueueNotFound, ScheduleNotFound, TopologyMissing
from jetjobs.model.planning import last_slot
from jetjobs.model.schedule import Schedule, make_schedule


class ScheduleEdits:
    """Changes to the definitions of one namespace."""

    def __init__(self, store: ScheduleStore, ticks: Ticks, changeover: Changeover, clock: ServerClock) -> None:
        self._store = store
        self._ticks = ticks
        self._changeover = changeover
        self._clock = clock

    async def find(self, name: str) -> Definition:
        """ScheduleNotFound unless it is there."""
        found = await self._store.get(name)
        if found is None or found.deleted:
            if found is not None:
                await self.finish_delete(found)  # whoever deleted it may have died over it
            raise ScheduleNotFound(f"there is no schedule {name!r}", hint="jetjobs schedules list shows all")
        return found

    async def put(self, schedule: Schedule, over: Definition | None, above: str = "") -> Definition:
        """Write the definition over the one that was read, as a generation above its and above that given.
        ScheduleConflict when another stands there by now."""
        now = await self._clock.now()
        before = over.schedule if over is not None else None
        left = before.queue if before is not None else over.queue if over is not None else ""
        new = schedule.model_copy(
            update={
                "generation": next_generation(now, above, before.generation if before is not None else ""),
                "since": now,
                "left": left if left != schedule.queue else "",
                "last": await self._last(before, now) if before is not None else None,
            }
        )
        self._ticks.check_size(new)
        await self._check_queue(new)
        revision = await self._store.put(new, over.revision if over is not None else 0)
        await self._changeover.to(new)
        return Definition(new.name, new, revision)

    async def delete(self, over: Definition) -> None:
        """ScheduleConflict when another stands there by now."""
        queue = over.schedule.queue if over.schedule is not None else ""
        await self._store.delete(over.name, over.revision, queue)
        await self.finish_delete(over._replace(queue=queue))

    async def finish_delete(self, deleted: Definition) -> None:
        """Take back what was planned for a schedule that is deleted."""
        if not deleted.queue:
            return
        values = {"name": deleted.name, "task": "none", "queue": deleted.queue, "every": "1h"}
        now = await self._clock.now()
        await self._changeover.end(make_schedule({**values, "generation": next_generation(now), "since": now}))

    async def _last(self, before: Schedule, now: datetime) -> datetime | None:
        try:
            marker = await self._ticks.marker(before.queue, before.name)
        except TopologyMissing:
            return before.last
        return last_slot(before, marker.progress, now)

    async def _check_queue(self, schedule: Schedule) -> None:
        """QueueNotFound unless its ticks could be stored."""
        try:
            await self._ticks.marker(schedule.queue, schedule.name)
        except TopologyMissing as error:
            raise QueueNotFound(
                f"there is no queue {schedule.queue!r} for schedule {schedule.name!r}",
                hint="create it with `jetjobs setup apply`, or start a worker for it",
            ) from error


def next_generation(now: datetime, *older: str) -> str:
    """Greater than those, also if the clock has gone back. Compared as text."""
    numbers = [int(generation) + 1 for generation in older if generation]
    return f"{max([int(now.timestamp() * 1_000_000), *numbers]):016d}"
