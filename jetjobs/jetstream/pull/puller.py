"""Continuous pull from one lane: requests kept open on an inbox, watched, and asked again when lost."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import nats.errors

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.nats_client import read_headers, read_status

_log = logging.getLogger("jetjobs.worker")

EXPIRES_S = 30.0
HEARTBEAT_S = 5.0
_PATIENCE_S = 2 * HEARTBEAT_S + 1.0
_BACKLOG = b'{"batch":%%d,"expires":%d}' % api.NS
_WAIT = b'{"batch":%%d,"expires":%d,"idle_heartbeat":%d}' % (EXPIRES_S * api.NS, HEARTBEAT_S * api.NS)


class LanePuller:
    """The open pull requests of one lane. `on_delivery` is called for every job, in order.

    nats-py's `fetch` waits in rounds and takes a deleted consumer for an empty queue. This asks, counts
    what is still owed, and hears every status the server sends.
    """

    def __init__(
        self,
        connection: Connection,
        queue: str,
        lane: str,
        stream: str,
        on_delivery: Callable[[LanePuller, Delivery], None],
        on_change: Callable[[LanePuller, str | None], None],
    ) -> None:
        self.queue = queue
        self.lane = lane
        self.stream = stream
        self.owed = 0
        """Deliveries asked for and not yet received."""
        self.pending = 0
        """Jobs left in the lane, as the last delivery said."""
        self._connection = connection
        self._on_delivery = on_delivery
        self._on_change = on_change
        self._sid: int | None = None
        self._inbox = ""
        self._next = api.next_messages(stream, lane)
        self._heard_at = 0.0
        self.blocked = False
        """Refused by the server: not asked again before `unblock`, so that no refusal becomes a hot loop."""
        self.stale_since = 0.0
        """Not 0 while what arrives may have been sent as long ago as that: the process stood still. ADR 10."""
        self._resetting = asyncio.Lock()
        self._closed = False
        self._watchdog: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._subscribe()
        self._watchdog = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Drop every open request. When this returns, all that was delivered has been handed over."""
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watchdog
        async with self._resetting:
            await self._unsubscribe()

    def unblock(self) -> None:
        """The lane may be asked again."""
        self.blocked = False
        self._on_change(self, None)

    def ask(self, count: int, *, backlog: bool) -> None:
        """Ask for up to `count` jobs. With a backlog the request is filled at once or given up after a second,
        so that slots are not kept for a lane that others have emptied; without one it waits, with heartbeats.
        """
        if self._sid is None or not self._connection.connected:
            return  # `reset` asks again once the connection is back
        if not self.owed:
            self._heard_at = time.monotonic()
        if self._connection.post(self._next, _BACKLOG % count if backlog else _WAIT % count, self._inbox):
            self.owed += count

    async def reset(self) -> None:
        """Forget what is owed and start on a fresh inbox: old requests must not be filled beside new ones."""
        async with self._resetting:
            if self._closed:
                return
            self.owed = 0
            with contextlib.suppress(nats.errors.Error):  # lost again: the next reconnect resets again
                await self._unsubscribe()
                await self._subscribe()
            self.owed = 0
            self.stale_since = 0.0
            self.blocked = False
        self._on_change(self, "")

    def mark_stale(self, since: float) -> None:
        """What arrives before the next `reset` may be as old as `since`."""
        self.stale_since = self.stale_since or since

    async def _subscribe(self) -> None:
        nc = self._connection.nc
        self._inbox = nc.new_inbox()
        self._heard_at = time.monotonic()
        self._sid = await nc.listen(self._inbox, self._on_message)

    async def _unsubscribe(self) -> None:
        sid, self._sid = self._sid, None
        if sid is not None:
            # Waits for what is on its way: a delivery must be given back, not left to its lease.
            with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
                await self._connection.nc.unlisten(sid)

    def _on_message(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if reply.startswith(api.ACK_PREFIX):
            self._heard_at = time.monotonic()
            if self.owed:
                self.owed -= 1
            delivery = Delivery(self._connection, subject, reply, data, headers)
            self.pending = delivery.pending
            try:
                self._on_delivery(self, delivery)
            except Exception as error:  # we are called as the socket is read: it would never be read again
                _log.error("internal error (please report)", exc_info=error, extra={"event": "worker.fault"})
        elif headers is not None:
            self._on_status(headers)

    def _on_status(self, headers: bytes) -> None:
        self._heard_at = time.monotonic()
        status, description = read_status(headers)
        if status == "100":
            self._on_change(self, "")
            return
        # A request has ended; the server says how much of it is unfilled.
        unfilled = read_headers(headers).get("Nats-Pending-Messages", "")
        self.owed = max(0, self.owed - int(unfilled)) if unfilled.isdigit() else 0
        self.pending = 0
        problem = ""
        if status not in ("404", "408"):
            problem = f"{status} {description}".strip()
            self.blocked = True
        self._on_change(self, problem)

    async def _watch(self) -> None:
        """Notice requests the server has forgotten: no delivery and no heartbeat for too long."""
        while True:
            await asyncio.sleep(HEARTBEAT_S / 2)
            silent_s = time.monotonic() - self._heard_at
            if self.owed and silent_s > _PATIENCE_S and self._connection.nc.is_connected:
                self._on_change(self, f"no heartbeat for {silent_s:.0f} s")
                with contextlib.suppress(nats.errors.Error):
                    await self.reset()
