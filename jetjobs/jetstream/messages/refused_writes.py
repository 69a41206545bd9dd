"""Streams that do not store what this process publishes: storage is full, or the server has frozen the stream.

When a write to disk fails, the server freezes the stream: it confirms no more publishes, even when there is space
again, and answers all other requests. Only a restart of the server ends that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import nats.errors

from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError, BrokerUnavailable, StorageFull

FREE_DISK = "free the disk, then restart the server"
FROZEN_S = 10.0
"""A stream that has confirmed nothing for this long counts as frozen. The election of a leader takes less."""
FORGET_S = 30.0
"""A stream to which nothing was published for this long is not reported any more: it may have recovered."""


class _Refusal(NamedTuple):
    since: float
    last: float
    error: str
    """Why the server refused the publish; empty if it did not answer."""


class RefusedWrites:
    """Kept by those who publish, read by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.streams: dict[str, _Refusal] = {}
        """Usually empty: check that before calling `stored` for a job."""

    async def failed(self, stream: str, error: BrokerError, connection: Connection) -> None:
        """A publish has failed. Counts if storage is full, or if the server answers pings but not this."""
        text = ""
        if isinstance(error, StorageFull):
            text = f"{error}: {error.hint}"
        elif not isinstance(error, BrokerUnavailable) or error.code or not await _answers(connection):
            return
        now, before = self._clock(), self.streams.get(stream)
        since = before.since if before is not None and now - before.last <= FORGET_S else now
        self.streams[stream] = _Refusal(since, now, text)

    def stored(self, stream: str) -> None:
        """The server has confirmed a publish."""
        self.streams.pop(stream, None)

    def reason(self, stream: str) -> str:
        """Why the stream stores nothing now; empty if it does, as far as known."""
        refusal = self.streams.get(stream)
        if refusal is None or self._clock() - refusal.last > FORGET_S:
            return ""
        silent_s = refusal.last - refusal.since
        if refusal.error or silent_s < FROZEN_S:
            return refusal.error
        return f"stream {stream} has confirmed nothing for {silent_s:.0f} s; if its disk is full: {FREE_DISK}"

    def reasons(self) -> list[str]:
        """One for each stream that stores nothing now."""
        return [reason for stream in sorted(self.streams.copy()) if (reason := self.reason(stream))]


async def _answers(connection: Connection) -> bool:
    if not connection.connected:
        return False
    try:
        await connection.nc.flush(2)
    except (nats.errors.Error, OSError, TimeoutError):
        return False
    return True
