"""The leader's sweeps: what they are and how often they are made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.orphans import sweep_orphans
from jetjobs.jetstream.topology import queues_on
from jetjobs.worker.duties import Duty
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

    async def each_queue(sweep: Callable[[str], Awaitable[int]]) -> int:
        queues = await queues_on(jetstream.connection, jetstream.names)
        return sum([await sweep(queue) for queue in queues])

    return [
        Duty(OVERDUE, OVERDUE_EVERY_S, lambda: each_queue(lambda queue: sweep_overdue(jetstream, queue))),
        Duty("stranded", STRANDED_EVERY_S, lambda: each_queue(stranded.sweep)),
        Duty("orphans", ORPHANS_EVERY_S, lambda: sweep_orphans(jetstream)),
    ]
