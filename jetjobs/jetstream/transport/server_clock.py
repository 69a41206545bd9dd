"""The server's clock, which fires what is planned: asked now and then, and carried on by our monotonic clock.

So a jump of this machine's wall clock moves nothing, and machines whose clocks differ plan the same.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.wire.subjects import Names, kv_stream

ASK_S = 60.0
_SKEW_S = 2.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_log = logging.getLogger("jetjobs.jetstream")


class ServerClock:
    """One for all that a process asks: the clocks of a cluster's nodes are taken to agree."""

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._default = kv_stream(names.schedules_bucket)
        self._offset: float | None = None
        """Of the server's wall clock to our monotonic one."""
        self._ask_at = 0.0
        self._warned = False

    async def now(self) -> datetime:
        """BrokerError when it was never known; one that was is carried on."""
        return _EPOCH + timedelta(seconds=await self.seconds())

    async def seconds(self, stream: str = "") -> float:
        """The same since the epoch, asked of the leader of `stream`. TopologyMissing when that is not there. Where
        this user may not ask, our own clock must do."""
        asked = time.monotonic()
        if self._offset is None or asked >= self._ask_at:
            try:
                info = await self._connection.api(api.stream_info(stream or self._default))
            except TopologyMissing:
                raise
            except AccessDenied:
                self._offset, self._ask_at = time.time() - time.monotonic(), asked + ASK_S
            except BrokerError:
                if self._offset is None:
                    raise
            else:
                self._set(api.parse_time(info["ts"]), asked, time.monotonic())
        assert self._offset is not None
        return self._offset + time.monotonic()

    def _set(self, server_s: float, asked: float, heard: float) -> None:
        self._offset, self._ask_at = server_s - (asked + heard) / 2, heard + ASK_S
        skew = server_s - time.time()
        if abs(skew) > _SKEW_S and not self._warned:
            self._warned = True
            extra = {"event": "nats.clock_skew", "skew_s": round(skew, 3)}
            _log.warning("this machine's clock differs from the server's", extra=extra)
