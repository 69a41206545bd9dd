"""The server's clock, which fires what is planned: asked now and then, and carried on by our monotonic clock.

So a jump of this machine's wall clock moves nothing, and machines whose clocks differ plan the same.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.reads import parse_time
from jetjobs.model.clock import SYSTEM, Clock
from jetjobs.model.errors import BrokerError

ASK_S = 60.0
_JUMP_S = 2.0
_log = logging.getLogger("jetjobs.leader")


class ServerClock:
    """Reads the time off one stream's leader."""

    def __init__(self, connection: Connection, stream: str, clock: Clock = SYSTEM) -> None:
        self._connection = connection
        self._stream = stream
        self._clock = clock
        self._offset: float | None = None
        """Of the server's wall clock to our monotonic one."""
        self._ask_at = 0.0

    async def now(self) -> datetime:
        """BrokerError when it was never known; one that was is carried on."""
        asked = self._clock.monotonic()
        if self._offset is None or asked >= self._ask_at:
            try:
                info = await self._connection.api(f"STREAM.INFO.{self._stream}")
            except BrokerError:
                if self._offset is None:
                    raise
            else:
                self._set(parse_time(info["ts"]), asked, self._clock.monotonic())
        assert self._offset is not None
        return datetime.fromtimestamp(0, UTC) + timedelta(seconds=self._offset + self._clock.monotonic())

    def _set(self, server_s: float, asked: float, heard: float) -> None:
        offset = server_s - (asked + heard) / 2
        if self._offset is not None and abs(offset - self._offset) > _JUMP_S:
            extra = {"event": "nats.clock_jump", "jump_s": round(offset - self._offset, 3)}
            _log.warning("the server's clock has jumped", extra=extra)
        self._offset, self._ask_at = offset, heard + ASK_S
