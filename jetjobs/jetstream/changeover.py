"""One generation of a schedule ends and the next begins: from when on, and what is taken back and placed for that.

A change takes effect at a moment two seconds from now. Slots up to it are the old generation's: its ticks fire,
and what nobody has planned of them is placed now, as its misfire policy says. Slots after it are the new one's:
ticks that the old one had placed for them are taken back, and its own are placed, up to a minute ahead. All this
and the marker that says so is one batch, refused whole when one of those ticks has fired meanwhile or somebody
else has written the marker. So however slow the editor is, and wherever he dies, no slot has two ticks or none.

Where a schedule moves to another queue there are two streams, and two batches: the old one ends first and says up
to when the slots are its own; the new one begins there.

Whoever changes a schedule does this at once, for there may be no leader; the leader does it where he did not come
to it. Generations have an order, so whoever is late with it changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
from datetime import datetime

from jetjobs.jetstream.reads import StoredMessage
from jetjobs.jetstream.ticks import Marker, Placing, Ticks, portion
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError, TopologyMissing
from jetjobs.model.planning import change, plan
from jetjobs.model.schedule import Schedule, schedule_key, slot_token

TRIES = 20
PAUSE_S = 0.05


class Changeover:
    """Changes of generation in the work streams of one namespace."""

    def __init__(self, ticks: Ticks) -> None:
        self._ticks = ticks

    async def to(self, schedule: Schedule) -> Marker:
        """Let the generation of this definition plan. The marker that stands then: of a newer one, perhaps.

        TopologyMissing when its queue is not there."""
        ended: list[datetime] = []
        for queue in schedule.left:
            with contextlib.suppress(TopologyMissing):
                marker = await self._change(queue, schedule, gone=True)
                if marker.progress is not None and marker.progress.since is not None:
                    ended.append(marker.progress.since)
        return await self._change(schedule.queue, schedule, after=max(ended, default=None))

    async def end(self, schedule: Schedule) -> None:
        """No generation up to that of `schedule` plans any more, and nothing of them is left to fire."""
        with contextlib.suppress(TopologyMissing):
            await self._change(schedule.queue, schedule.model_copy(update={"paused": True}), gone=True)

    async def _change(
        self, queue: str, schedule: Schedule, *, gone: bool = False, after: datetime | None = None
    ) -> Marker:
        """The marker that stands in the queue then."""
        for _ in range(TRIES):
            marker = await self._ticks.marker(queue, schedule.name)
            if marker.generation >= schedule.generation:
                break
            # First what stands there, then the time, of the server's clock this moment: a tick that is due after
            # it cannot have fired unseen, however long we stood still in between.
            standing = await self._old(queue, schedule, await self._ticks.now(queue))
            now = await self._ticks.now(queue)
            before = schedule.predecessor
            wanted = change(schedule, before, marker.progress, now, after, gone=gone)
            if before is not None and len(wanted.closing) > portion(before):
                # More than one batch takes: a part of it by itself, and look again.
                part = plan(before, marker.progress, now).first(portion(before))
                await self._ticks.place([Placing(before, part, marker)], now.timestamp(), 0)
                continue
            wanted = wanted._replace(opening=wanted.opening.first(portion(schedule)))
            taken = [message for message in standing if _slot(message) > slot_token(wanted.since)]
            within = taken if self._ticks.takes_back else []
            stamp = now.timestamp()
            if not await self._ticks.change(queue, schedule, wanted, marker, taken=within, gone=gone, now=stamp):
                await asyncio.sleep(PAUSE_S)
            elif within is not taken:
                for message in taken:  # by their sequence: newer ones may stand on the same subjects
                    await self._ticks.remove(queue, message)
        else:
            raise BrokerError(f"schedule {schedule.name!r} is stored, but its ticks could not be changed yet")
        if marker.generation == schedule.generation:
            await self._remove(queue, schedule, marker)
        return marker

    async def _old(self, queue: str, schedule: Schedule, since: datetime | None) -> list[StoredMessage]:
        """Ticks of older generations that have not fired, of slots after `since`; of all slots with None."""
        token = slot_token(since) if since is not None else ""
        found = await self._ticks.planned(queue, schedule_key(schedule.name), token)
        return [message for message in found if message.headers[n.GENERATION] < schedule.generation]

    async def _remove(self, queue: str, schedule: Schedule, marker: Marker) -> None:
        """Whatever of older generations is left that must not fire. For one that is paused that is what waits for
        the end of its jitter; for others only servers before 2.14 leave anything."""
        assert marker.progress is not None
        for message in await self._old(queue, schedule, None if schedule.paused else marker.progress.since):
            await self._ticks.remove(queue, message)


def _slot(message: StoredMessage) -> str:
    return message.subject.rsplit(".", 1)[1]
