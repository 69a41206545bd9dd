"""The server's clock, by which planned jobs fire: read once a minute and extrapolated by our monotonic clock.

A jump of this machine's wall clock therefore moves nothing, and machines whose clocks differ plan the same times.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.wire.subjects import Names, kv_stream

REFRESH_S = 60.0
_SKEW_S = 2.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_log = logging.getLogger("jetjobs.jetstream")


class ServerClock:
    """One clock for all streams: the nodes of a cluster are assumed to agree on the time."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._default = kv_stream(names.schedules_bucket)
        self._offset: float | None = None
        """The server's wall clock minus our monotonic clock."""
        self._refresh_at = 0.0
        self._warned = False

    async def now(self) -> datetime:
        """As `seconds`, as a datetime."""
        return _EPOCH + timedelta(seconds=await self.seconds())

    async def seconds(self, stream: str = "") -> float:
        """Seconds since the epoch, read from the leader of `stream` if the last reading is too old.

        TopologyMissing when that stream does not exist, BrokerError when the time was never known. A user that
        may not read it gets this machine's time.
        """
        asked = time.monotonic()
        if self._offset is None or asked >= self._refresh_at:
            try:
                server_s = await self.ask(stream or self._default)
            except TopologyMissing:
                raise
            except AccessDenied:
                self._offset, self._refresh_at = time.time() - time.monotonic(), asked + REFRESH_S
            except BrokerError:
                if self._offset is None:
                    raise
            else:
                self._set(server_s, asked, time.monotonic())
        assert self._offset is not None
        return self._offset + time.monotonic()

    async def ask(self, stream: str) -> float:
        """Seconds since the epoch by the leader of `stream`, read now: for decisions that delete or move jobs."""
        info = await self._connection.api(api.stream_info(stream))
        return api.parse_time(info["ts"])

    async def skew_s(self, stream: str) -> float | None:
        """By how much the server's clock is ahead of this machine's, at least; None without such a stream."""
        before = time.time()
        try:
            server_s = await self.ask(stream)
        except TopologyMissing:
            return None
        after = time.time()
        return min(0.0, server_s - before) if server_s < before else max(0.0, server_s - after)

    def _set(self, server_s: float, asked: float, answered: float) -> None:
        self._offset, self._refresh_at = server_s - (asked + answered) / 2, answered + REFRESH_S
        skew = server_s - time.time()
        if abs(skew) > _SKEW_S and not self._warned:
            self._warned = True
            extra = {"event": "nats.clock_skew", "skew_s": round(skew, 3)}
            _log.warning("the clocks of this machine and the server differ", extra=extra)
