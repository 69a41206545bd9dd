"""Change a schedule: first its definition, then what was planned for the one before. Safe to repeat."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jetjobs.jetstream.changeover import Changeover
from jetjobs.jetstream.schedules import Definition, ScheduleStore
from jetjobs.jetstream.server_clock import ServerClock
from jetjobs.jetstream.ticks import Marker, Ticks
from jetjobs.model.errors import DefinitionError, QueueNotFound, ScheduleNotFound, TopologyMissing
from jetjobs.model.names import is_schedule_name
from jetjobs.model.planning import AHEAD, last_slot
from jetjobs.model.schedule import MAX_JITTER, Schedule, is_generation, make_schedule

_LINGERS = MAX_JITTER + AHEAD
"""So long after a schedule has left a queue its last tick there may fire."""


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
        older = before.generation if before is not None else over.generation if over is not None else ""
        generation = next_generation(now, above, older)
        kept: dict[str, Any] = {"generation": generation, "since": now, "left": (), "last": None, "replaced": None}
        if before is not None:
            marker = await self._finished(before)
            kept["left"] = tuple(sorted({*_queues(before, marker, now)} - {schedule.queue}))
            kept["last"] = last_slot(before, marker.progress, now) if marker.sequence else before.last
            kept["replaced"] = before.model_dump(mode="json", exclude={"replaced"})
        elif over is not None:
            left = {*(over.queues or await self._ticks.marked(schedule.name))}
            kept["left"] = tuple(sorted(left - {schedule.queue}))
        new = schedule.model_copy(update=kept)
        self._ticks.check_size(new)
        await self._check_queue(new)
        revision = await self._store.put(new, over.revision if over is not None else 0)
        marker = await self._changeover.to(new)
        if marker.generation > generation:  # of one that was deleted by a clock ahead of ours, perhaps
            return await self.put(schedule, Definition(new.name, new, revision), marker.generation)
        return Definition(new.name, new, revision)

    async def delete(self, over: Definition) -> None:
        """ScheduleConflict when another stands there by now."""
        now, older = await self._clock.now(), ""
        if over.schedule is not None:
            older = over.schedule.generation
            queues = _queues(over.schedule, await self._finished(over.schedule), now)
        else:  # under a name that no schedule may have nothing was ever planned
            queues = await self._ticks.marked(over.name) if is_schedule_name(over.name) else ()
        generation = next_generation(now, older)
        await self._store.delete(over.name, over.revision, queues, generation)
        await self.finish_delete(over._replace(queues=queues, generation=generation))

    async def finish_delete(self, deleted: Definition) -> None:
        """Take back what was planned for a schedule that is deleted."""
        if not deleted.queues:
            return
        now = await self._clock.now()
        # Not a new one: it may be there again by now, and this is about the one that was.
        generation = deleted.generation or next_generation(now)
        values = {"name": deleted.name, "task": "none", "every": "1h", "generation": generation, "since": now}
        for queue in deleted.queues:
            await self._changeover.end(make_schedule({**values, "queue": queue}))

    async def _finished(self, schedule: Schedule) -> Marker:
        """The marker of a definition, its change done: whoever wrote it may have died over that, and what follows
        goes on from where it ended."""
        try:
            marker = await self._ticks.marker(schedule.queue, schedule.name)
            return marker if marker.generation >= schedule.generation else await self._changeover.to(schedule)
        except TopologyMissing:
            return Marker(None, 0)

    async def _check_queue(self, schedule: Schedule) -> None:
        """QueueNotFound unless its ticks could be stored."""
        try:
            await self._ticks.marker(schedule.queue, schedule.name)
        except TopologyMissing as error:
            raise QueueNotFound(
                f"there is no queue {schedule.queue!r} for schedule {schedule.name!r}",
                hint="create it with `jetjobs setup apply`, or start a worker for it",
            ) from error


def _queues(schedule: Schedule, marker: Marker, now: datetime) -> tuple[str, ...]:
    """Where something of it may be planned: in its queue, and in those it has left, until the change to it is done
    and the last tick there has fired."""
    left = marker.generation < schedule.generation or now - schedule.since <= _LINGERS
    return (schedule.queue, *(schedule.left if left else ()))


def next_generation(now: datetime, *older: str) -> str:
    """Greater than those, also if the clock has gone back. Compared as text."""
    numbers = [int(generation) + 1 for generation in older if generation]
    generation = f"{max([int(now.timestamp() * 1_000_000), *numbers]):016d}"
    if not is_generation(generation):
        raise DefinitionError("a generation stands there above which there is none", hint="it was written by hand")
    return generation
