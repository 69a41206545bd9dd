"""One generation of a schedule ends and the next begins: who may plan, from where, and what is taken back.

The marker of a new generation names a moment, two seconds from now. Slots up to it are the old generation's, whose
ticks fire; slots after it are the new one's, and ticks that the old one had placed for them are removed. All this
is done before the moment comes, so no slot has two ticks or none. A marker that was stored after its own moment,
by somebody who stood still meanwhile, does not count and is written anew.

Whoever changes a schedule does this at once, for there may be no leader; the leader does it where he did not come
to it. Generations have an order, so whoever is late with it changes nothing.
"""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.publisher import Taken
from jetjobs.jetstream.reads import delete_message, last_on
from jetjobs.jetstream.server_clock import ServerClock
from jetjobs.jetstream.ticks import Marker, Ticks
from jetjobs.model import names as n
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.names import Names
from jetjobs.model.planning import carried_on
from jetjobs.model.schedule import Schedule, schedule_key, slot_token

MARGIN = timedelta(seconds=2)
"""So long a change may take before a tick that it is to take back could fire."""


class Changeover:
    """Changes of generation in the work streams of one namespace."""

    def __init__(self, connection: Connection, names: Names, ticks: Ticks, clock: ServerClock) -> None:
        self._connection = connection
        self._names = names
        self._ticks = ticks
        self._clock = clock

    async def to(self, schedule: Schedule) -> Marker:
        """Let the generation of this definition plan. The marker that stands then: a newer one, perhaps.

        TopologyMissing when its queue is not there."""
        after = None
        if schedule.left and schedule.left != schedule.queue:
            with contextlib.suppress(TopologyMissing):
                old = await self._begin(schedule.left, schedule, gone=True)
                after = old.progress.since if old.progress is not None else None
        return await self._begin(schedule.queue, schedule, after=after)

    async def end(self, schedule: Schedule) -> None:
        """No generation up to that of `schedule` plans any more, and nothing of them is left to fire."""
        with contextlib.suppress(TopologyMissing):
            await self._begin(schedule.queue, schedule.model_copy(update={"paused": True}), gone=True)

    async def _begin(
        self, queue: str, schedule: Schedule, *, gone: bool = False, after: datetime | None = None
    ) -> Marker:
        name, generation, idle = schedule.name, schedule.generation, schedule.paused
        while (marker := await self._ticks.marker(queue, name)).generation < generation or (
            marker.generation == generation and marker.late
        ):
            now, before = await self._clock.now(), marker.progress
            # Where nothing is planned there is nothing to wait for.
            by = None if idle or after or before is None or before.idle else now + MARGIN
            since = after or by or now
            first = since if idle or marker.generation == generation else carried_on(before, since)
            record: dict[str, object] = {
                "slot": first.isoformat(),
                "generation": generation,
                "since": since.isoformat(),
                "by": by.isoformat() if by is not None else None,
                "missed": before.missed if before is not None else 0,
                "idle": idle or gone,
                "gone": gone,
            }
            # Refused when a leader has placed ticks meanwhile: then with what it wrote.
            with contextlib.suppress(Taken):
                await self._ticks.write_marker(queue, name, record, marker.sequence)
        if marker.generation == generation:
            await self._remove(queue, schedule, marker)
        return marker

    async def _remove(self, queue: str, schedule: Schedule, marker: Marker) -> None:
        """Ticks of older generations that have not fired: all if it is paused, else those after the moment."""
        assert marker.progress is not None
        since = marker.progress.since
        stream = self._names.work_stream(queue)
        for subject in await self._ticks.subjects(queue, self._names.planned(queue, schedule_key(schedule.name))):
            if not schedule.paused and (since is None or subject.rsplit(".", 1)[1] <= slot_token(since)):
                continue
            message = await last_on(self._connection, stream, subject)
            # A tick that is retried has no generation any more: it has fired long ago.
            if message is not None and message.headers.get(n.GENERATION, "~") < schedule.generation:
                await delete_message(self._connection, stream, message.sequence, erase=False)
