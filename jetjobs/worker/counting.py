"""The leader counts all queues of the namespace every few seconds, for the metrics. All others have no counts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.queue_counts import MOST_LATER, count_queue, count_workers
from jetjobs.jetstream.queue_facts import Fronts
from jetjobs.jetstream.topology import queues_on
from jetjobs.model.errors import BrokerError, JetJobsError
from jetjobs.model.queue_counts import QueueCounts

EVERY_S = 5.0
_SHARE = 0.02
"""Of the time that may go into telling retries from other jobs for later, which takes reading them."""
_FEW = 1_000
"""So few are read each time."""

_log = logging.getLogger("jetjobs.leader")


class _Retries(NamedTuple):
    number: int
    exact: bool
    again_at: float


class QueueCounting:
    """Not a duty among the others: a long sweep must not make the counts old."""

    def __init__(self, jetstream: JetStreamClient, leads: Callable[[], bool]) -> None:
        self._jetstream = jetstream
        self._leads = leads
        self._counts: list[QueueCounts] = []
        self._workers: Counter[str] = Counter()
        self._retries: dict[str, _Retries] = {}
        self._fronts: Fronts = {}
        self._failing = False
        self.errors = 0
        """Queues that could not be counted."""

    @property
    def counts(self) -> list[QueueCounts]:
        return self._counts if self._leads() else []

    @property
    def workers(self) -> Mapping[str, int]:
        return self._workers if self._leads() else {}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            # What was counted in an earlier time as the leader must not show when the next one begins.
            self._counts = await self._count() if self._leads() else []
            await asyncio.sleep(EVERY_S if self._counts else min(1.0, EVERY_S))

    async def _count(self) -> list[QueueCounts]:
        """A queue that cannot be counted is left out: an old number would look like a true one."""
        counts: list[QueueCounts] = []
        try:
            queues = await queues_on(self._jetstream.connection, self._jetstream.names)
            self._workers = await count_workers(self._jetstream)
        except BrokerError as error:
            self._failed("", error)
            return []
        for queue in queues:
            try:
                counts.append(await self._count_one(queue))
            except JetJobsError as error:
                self._failed(queue, error)
        self._failing = self._failing and len(counts) < len(queues)
        return counts

    async def _count_one(self, queue: str) -> QueueCounts:
        known, started = self._retries.get(queue), time.monotonic()
        if known is not None and started < known.again_at:
            counts = await count_queue(self._jetstream, queue, 1, self._fronts)
            later = counts.scheduled + counts.retrying
            retrying = min(known.number, later)
            return counts._replace(scheduled=later - retrying, retrying=retrying, exact=known.exact)
        counts = await count_queue(self._jetstream, queue, MOST_LATER, self._fronts)
        if counts.scheduled + counts.retrying > _FEW:
            now = time.monotonic()
            self._retries[queue] = _Retries(counts.retrying, counts.exact, now + (now - started) / _SHARE)
        return counts

    def _failed(self, queue: str, error: JetJobsError) -> None:
        self.errors += 1
        if not self._failing:
            extra = {"event": "leader.count_failed", "queue": queue, "error": str(error)}
            _log.warning("queues cannot be counted", extra=extra)
        self._failing = True
