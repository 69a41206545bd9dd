"""Markers of schedules that are gone or in another queue: what they stood for is ended, then they go."""

from __future__ import annotations

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.schedule_edits import next_generation
from jetjobs.jetstream.schedules import Definition
from jetjobs.jetstream.topology import queues_on
from jetjobs.model.names import is_schedule_name
from jetjobs.model.schedule import EPOCH
from jetjobs.worker.agenda import Agenda

FORGET_S = 600.0
"""A marker of a deleted schedule stays so long, against leaders that have not heard of it yet."""


async def tidy(jetstream: JetStreamClient, agenda: Agenda) -> None:
    """Look at the markers of all queues; those of schedules in the agenda are in order."""
    now = await jetstream.server_clock.now()
    for queue in await queues_on(jetstream.connection, jetstream.names):
        for name, marker in (await jetstream.ticks.markers(queue)).items():
            known = agenda.known.get(name)
            if known is not None and known.schedule.queue == queue:
                continue
            definition = await jetstream.schedules.get(name)
            there = definition.schedule if definition is not None else None
            if there is not None and there.queue == queue:
                continue
            if definition is not None and there is None and not definition.deleted:
                continue  # unreadable to us: a newer version may have written it
            # Under a name that no schedule may have nothing was planned; such a marker only goes away.
            if not marker.gone and is_schedule_name(name):
                # Only what the marker speaks of: it may be back here by now.
                above = next_generation(EPOCH, marker.generation)
                await jetstream.schedule_edits.finish_delete(Definition(name, None, 0, True, (queue,), above))
            elif now.timestamp() - marker.written_at > FORGET_S:
                await jetstream.ticks.forget(queue, marker)
