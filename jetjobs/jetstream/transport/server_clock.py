"""The server's clock, by which planned jobs fire: read once a minute and extrapolated by our monotonic clock.

A jump of this machine's wall clock therefore moves nothing, and machines whose clocks differ plan the same times.
ADR 42.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime, timedelta

from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import AccessDenied, BrokerError, BrokerUnavailable, TopologyMissing
from jetjobs.model.wire.subjects import Names, kv_stream

REFRESH_S = 60.0
JUMP_S = 2.0
"""Two clocks that move apart by more than this between two readings have not drifted: one of them was set."""
_RETRY_S = 5.0
_SKEW_S = 2.0
_EPOCH = datetime.fromtimestamp(0, UTC)
_log = logging.getLogger("jetjobs.jetstream")


class ServerClock:
    """One clock for all streams: the nodes of a cluster are assumed to agree on the time.

    It is a `Clock` whose `time` is that of the server.
    """

    monotonic = staticmethod(time.monotonic)

    def __init__(self, connection: Connection, names: Names) -> None:
        self._connection = connection
        self._default = kv_stream(names.schedules_bucket)
        self._offset: float | None = None
        """The server's wall clock minus our monotonic clock."""
        self._refresh_at = 0.0
        self._wall = 0.0
        """This machine's wall clock minus its monotonic clock, when the server was last asked."""
        self._warned = False

    def time(self) -> float:
        """Seconds since the epoch, without a request. `seconds` or `refresh` must have succeeded before."""
        if self._offset is None:
            raise BrokerUnavailable("the server's clock is not known yet")
        return self._offset + time.monotonic()

    @property
    def stale(self) -> bool:
        """Whether to read it again: after a while, and when this machine was suspended, which stops its
        monotonic clock. A wall clock that was set looks the same."""
        now = time.monotonic()
        return now >= self._refresh_at or abs(time.time() - now - self._wall) > JUMP_S

    async def now(self) -> datetime:
        """As `seconds`, as a datetime."""
        return _EPOCH + timedelta(seconds=await self.seconds())

    async def seconds(self, stream: str = "") -> float:
        """Seconds since the epoch, read from the leader of `stream` if the last reading is too old.

        TopologyMissing when that stream does not exist, BrokerError when the time was never known. A user that
        may not read it gets this machine's time.
        """
        if self._offset is None or self.stale:
            await self.refresh(stream)
        return self.time()

    async def refresh(self, stream: str = "") -> None:
        """Read the server's clock now. Errors as for `seconds`."""
        asked = time.monotonic()
        # Not again at once without an answer: the last reading is good enough for a while.
        self._refresh_at, self._wall = asked + _RETRY_S, time.time() - asked
        try:
            server_s = await self.ask(stream or self._default)
        except TopologyMissing:
            self._refresh_at = 0.0
            raise
        except AccessDenied as error:
            self._refresh_at = asked + REFRESH_S
            if self._offset is None:
                self._offset = time.time() - time.monotonic()
                extra = {"event": "nats.clock_denied", "error": str(error)}
                _log.warning("this user may not read the server's clock; this machine's is used", extra=extra)
        except BrokerError:
            if self._offset is None:
                raise
        else:
            self._set(server_s, asked, time.monotonic())

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
