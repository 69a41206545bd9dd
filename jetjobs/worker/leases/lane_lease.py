"""The lease that a worker uses: that of its settings, or a shorter one of the lanes that it pulls from."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.wire_version import check_layout
from jetjobs.model.errors import AccessDenied, BrokerError
from jetjobs.model.wire import subjects as n
from jetjobs.worker.leases.lease_table import Heartbeats, LeaseTable

FAILOVER_S = 15.0
"""How long a starting worker waits for a cluster to elect its leaders."""
REREAD_S = 60.0
"""How often the lease of the lanes is read again."""
MIN_LEASE_S = 1.0
"""Requests for a shorter lease than this are refused, as such settings are."""

_log = logging.getLogger("jetjobs.worker")


class LaneLease:
    """Follows the lease of the lanes. A shorter one is used at once. A longer one is used when two reads in a row
    have found it: the first may precede a change that was already announced. ADR 43."""

    def __init__(
        self, jetstream: JetStreamClient, queues: Iterable[str], leases: LeaseTable, heartbeats: Heartbeats
    ) -> None:
        self._jetstream = jetstream
        self._queues = list(queues)
        self._leases = leases
        self._heartbeats = heartbeats
        self._longest_s = leases.lease_s
        self._longer_s = 0.0
        """The longer lease that the last read found; 0 if it found none."""

    async def read(self) -> None:
        """Use the shortest lease of the lanes. They may have been provisioned with other settings."""
        await check_layout(self._jetstream.connection, self._jetstream.names, self._queues)
        await self._follow(FAILOVER_S)

    async def read_again(self) -> None:
        """Once the worker answers requests and before it pulls: its first read may precede a change whose
        announcement it could not receive."""
        await self._follow(FAILOVER_S)

    async def run(self) -> None:
        """Read the lease again every minute, until cancelled."""
        while True:
            await asyncio.sleep(REREAD_S)
            with contextlib.suppress(BrokerError):
                await self._follow(5.0)

    async def on_request(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the announcement of a shorter lease, after the server has confirmed a heartbeat for every held
        job: then it may change the lanes."""
        seconds, queues = request.get("seconds"), request.get("queues")
        if not isinstance(seconds, int | float) or not seconds >= MIN_LEASE_S or not isinstance(queues, list):
            return {"ok": False, "error": "a request needs `seconds`, at least 1, and `queues`"}
        if not set(self._queues).intersection(str(queue) for queue in queues):
            return {"lease_s": self._leases.lease_s}
        self._longer_s = 0.0
        if seconds <= self._leases.lease_s and (unconfirmed := await self._shorten(seconds)):
            return {"ok": False, "error": f"the server did not confirm {unconfirmed} heartbeats"}
        return {"lease_s": self._leases.lease_s}

    async def _follow(self, timeout_s: float) -> None:
        found = await self._shortest(timeout_s)
        current = self._leases.lease_s
        if found < current:
            await self._shorten(found)
        elif found == self._longer_s > current:
            self._leases.lease_s = found
        self._longer_s = found if found > current else 0.0

    async def _shorten(self, lease_s: float) -> int:
        if lease_s < self._leases.lease_s:
            extra = {"event": "worker.lease_shortened", "lease_s": lease_s, "before_s": self._leases.lease_s}
            _log.info("the lease of a lane is shorter: heartbeats are sent more often", extra=extra)
        return await self._heartbeats.shorten(lease_s, self._jetstream.connection)

    async def _shortest(self, timeout_s: float) -> float:
        """The current lease if this user may not read the lanes."""
        connection, names = self._jetstream.connection, self._jetstream.names
        shortest = self._longest_s
        for queue in self._queues:
            for lane in n.PULLED:
                try:
                    subject = api.consumer_info(names.work_stream(queue), lane)
                    info = await connection.api(subject, timeout_s=timeout_s)
                except AccessDenied:
                    return self._leases.lease_s
                shortest = min(shortest, info["config"]["ack_wait"] / api.NS)
        return shortest
