"""The leader's sweeps: what they are and how often they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.orphans import sweep_orphans
from jetjobs.jetstream.topology import queues_on
from jetjobs.worker.duties import Duty, Swept
from jetjobs.worker.lost import LostJobs
from jetjobs.worker.overdue import sweep_overdue
from jetjobs.worker.stranded import StrandedSweep

OVERDUE = "overdue"
OVERDUE_EVERY_S = 600.0
STRANDED_EVERY_S = 120.0
ORPHANS_EVERY_S = 600.0


def sweeps(jetstream: JetStreamClient, lost: LostJobs, lease_s: float) -> list[Duty]:
    """For all queues of the namespace: the leader need not work on them itself."""
    stranded = StrandedSweep(jetstream, lost, lease_s)

    async def each_queue(sweep: Callable[[str], Awaitable[Swept]]) -> Swept:
        queues = await queues_on(jetstream.connection, jetstream.names)
        done = [await sweep(queue) for queue in queues]
        soonest = min((one.again_in_s for one in done if one.again_in_s is not None), default=None)
        return Swept(sum(one.mended for one in done), soonest)

    async def overdue(queue: str) -> Swept:
        return await sweep_overdue(jetstream, queue)

    async def find_stranded(queue: str) -> Swept:
        return Swept(await stranded.sweep(queue))

    async def orphans() -> Swept:
        return Swept(await sweep_orphans(jetstream))

    return [
        Duty(OVERDUE, OVERDUE_EVERY_S, lambda: each_queue(overdue)),
        Duty("stranded", STRANDED_EVERY_S, lambda: each_queue(find_stranded)),
        Duty("orphans", ORPHANS_EVERY_S, orphans),
    ]
