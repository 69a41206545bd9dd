"""Pull jobs of one lane continuously: keep requests open, watch them, and repeat lost ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import nats.errors

from jetjobs.jetstream.pull.delivery import IN_PROGRESS, Delivery
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.denials import CHECK_S
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.jetstream.transport.nats_client import frame, read_headers, read_status

_log = logging.getLogger("jetjobs.worker")

PULL_BYTES = 16 * 1024 * 1024
"""What all lanes together request at once, by the mean size of their jobs. Also the limit of one request that
could exceed it, for jobs that are larger than the ones before. The server disconnects a client for which more than
64 MB wait to be sent: large jobs for many slots would cut a slow link after each reconnect."""
EXPIRES_S = 30.0
HEARTBEAT_S = 5.0
_PATIENCE_S = 2 * HEARTBEAT_S + 1.0
_ENVELOPE_BYTES = 64 * 1024
"""Subjects count too. A request that no message fits into would be refused again and again."""
_BACKLOG = b'{"batch":%%d,"expires":%d}' % api.NS
_BOUNDED = b'{"batch":%%d,"expires":%d,"max_bytes":%%d}' % api.NS
# How a bounded request ends: the next message does not fit, or all that was requested has been delivered.
_FILLED, _COMPLETED = "Message Size Exceeds MaxBytes", "Batch Completed"
SHUTDOWN = "409 Server Shutdown"
"""The server that leads the lane stops. The connection is lost next, or another server takes over the lane."""
_WAIT = b'{"batch":%%d,"expires":%d,"idle_heartbeat":%d}' % (EXPIRES_S * api.NS, HEARTBEAT_S * api.NS)


class LanePuller:
    """The open pull requests of one lane. `on_delivery` is called for every job, in order.

    `fetch` of nats-py waits in rounds and reports a deleted consumer as an empty queue. This class counts the
    deliveries that are still outstanding and handles every status that the server sends.
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
        """Deliveries requested and not yet received."""
        self.pending = 0
        """Jobs left in the lane, as reported by the last delivery."""
        self.fence = 0
        """The consumer's sequence of the last delivery. It rises until the consumer is recreated or restored."""
        self._max_bytes = PULL_BYTES
        self.mean_bytes = 0.0
        """The size of the last deliveries on average. At first as large as a message can be."""
        self._connection = connection
        self._on_delivery = on_delivery
        self._on_change = on_change
        self._sid: int | None = None
        self._inbox = ""
        self._next = api.next_messages(stream, lane)
        self._heard_at = 0.0
        self.blocked = False
        """The server refused a request. None is sent before `unblock`, so that a refusal causes no busy loop."""
        self.shut_down = False
        """Whether it is blocked because its server stops, which is not reported yet."""
        self.denied = ""
        """The subject of pull requests or acks that this user may not publish to. Nothing is requested then."""
        self._ack = api.ack(stream, lane, 0)
        self.stale_since = 0.0
        """Not 0 after the process was suspended: deliveries may have been sent as early as this. ADR 10."""
        self._resetting = asyncio.Lock()
        self._closed = False
        self._watchdog: asyncio.Task[None] | None = None

    async def open(self) -> None:
        self.mean_bytes = float(self._connection.max_payload)
        self._max_bytes = max(PULL_BYTES, self._connection.max_payload + _ENVELOPE_BYTES)
        await self._subscribe()
        self._watchdog = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        """Drop the open requests. Everything delivered has been passed on when this returns."""
        self._closed = True
        if self._watchdog is not None:
            self._watchdog.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watchdog
        async with self._resetting:
            await self._unsubscribe()

    def report(self, problem: str) -> None:
        """The lane has not come back after its server has stopped."""
        self.shut_down = False
        self._on_change(self, problem)

    def unblock(self) -> None:
        """Allow requests again."""
        self.blocked, self.shut_down = bool(self.denied), False
        self._on_change(self, None)

    def deny(self, subject: str) -> bool:
        """Request nothing more if `subject` is that of this lane's pull requests or acks: a job that cannot be
        acked must not start. True if this is new."""
        if self.denied or subject not in (self._next, api.acks_of(self._ack)):
            return False
        self.denied, self.blocked = subject, True
        self._on_change(self, f'permissions violation for publish to "{subject}"')
        return True

    async def check_permissions(self) -> None:
        """Allow requests again if the server accepts pull requests and acks. BrokerError if it does not."""
        # Neither message has an effect: a pull request without a reply, and a heartbeat for no message.
        for subject, payload in ((self._next, b""), (self._ack, IN_PROGRESS)):
            await _check_publish(self._connection, subject, payload)
        self.denied = ""
        self.blocked = False
        self._on_change(self, "")

    def ask(self, count: int, *, backlog: bool) -> None:
        """Request up to `count` jobs. With a backlog, the request is filled at once or expires after a second, so
        that no slots are reserved for a lane that others have emptied. Without one it waits, with heartbeats.
        """
        if self._sid is None or not self._connection.connected:
            return  # `reset` requests again after the reconnect
        if not self.owed:
            self._heard_at = time.monotonic()
        if not backlog:
            request = _WAIT % count
        elif count * self._connection.max_payload <= PULL_BYTES:
            request = _BACKLOG % count  # the server sends no status at its end
        else:
            request = _BOUNDED % (count, self._max_bytes)
        if self._connection.post(self._next, request, self._inbox):
            self.owed += count

    async def reset(self) -> None:
        """Start again on a new inbox, so that old requests are not filled in addition to new ones."""
        async with self._resetting:
            if self._closed:
                return
            self.owed = 0
            with contextlib.suppress(nats.errors.Error):  # disconnected again: the next reconnect resets again
                await self._unsubscribe()
                await self._subscribe()
            self.owed = 0
            self.stale_since = 0.0
            self.blocked, self.shut_down = bool(self.denied), False
        if not self.denied:
            self._on_change(self, "")

    def mark_stale(self, since: float) -> None:
        """Deliveries that arrive before the next `reset` may be as old as `since`."""
        self.stale_since = self.stale_since or since

    async def _subscribe(self) -> None:
        nc = self._connection.nc
        self._inbox = nc.new_inbox()
        self._heard_at = time.monotonic()
        self._sid = await nc.listen(self._inbox, self._on_message)
        if not self.denied:
            # A missing permission shows before the first delivery. The heartbeat is for no message.
            self._connection.post(self._ack, IN_PROGRESS)

    async def _unsubscribe(self) -> None:
        sid, self._sid = self._sid, None
        if sid is not None:
            # Waits for deliveries on their way: they must be returned, not left until their lease expires.
            with contextlib.suppress(nats.errors.Error, asyncio.TimeoutError):
                await self._connection.nc.unlisten(sid)

    def _on_message(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if reply.startswith(api.ACK_PREFIX):
            self._heard_at = time.monotonic()
            if self.owed:
                self.owed -= 1
            delivery = Delivery(self._connection, subject, reply, data, headers)
            self.pending = delivery.pending
            self.mean_bytes += (len(data) + delivery.header_bytes - self.mean_bytes) / 8
            try:
                self._on_delivery(self, delivery)
            except Exception as error:  # raised in the task that reads the socket, it would end that task
                _log.error("internal error (please report)", exc_info=error, extra={"event": "worker.fault"})
        elif headers is not None:
            self._on_status(headers)

    def _on_status(self, headers: bytes) -> None:
        self._heard_at = time.monotonic()
        status, description = read_status(headers)
        if status == "100":
            self._on_change(self, "")
            return
        if description == _COMPLETED:
            return  # its last delivery has said so already
        # A request has ended, and the server reports how much of it is unfilled.
        unfilled = read_headers(headers).get("Nats-Pending-Messages", "")
        self.owed = max(0, self.owed - int(unfilled)) if unfilled.isdigit() else 0
        problem = ""
        if description == _FILLED:
            self._on_change(self, problem)  # more jobs wait, as many as the last delivery reported
            return
        self.pending = 0
        if status not in ("404", "408"):
            problem = f"{status} {description}".strip()
            self.blocked = True
            self.shut_down = problem == SHUTDOWN
        self._on_change(self, problem)

    async def _watch(self) -> None:
        """Detect requests that the server has lost: no delivery and no heartbeat for too long."""
        while True:
            await asyncio.sleep(HEARTBEAT_S / 2)
            silent_s = time.monotonic() - self._heard_at
            if self.owed and silent_s > _PATIENCE_S and self._connection.nc.is_connected:
                try:
                    await self._connection.nc.flush(CHECK_S)
                except nats.errors.Error:
                    continue  # the whole server is silent: the connection reports that, once for all lanes
                self._on_change(self, f"no heartbeat for {silent_s:.0f} s")
                with contextlib.suppress(nats.errors.Error):
                    await self.reset()


async def _check_publish(connection: Connection, subject: str, payload: bytes) -> None:
    """Publish without a reply. AccessDenied if this user may not, BrokerUnavailable if that is unknown."""
    refused: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    name = connection.pending.expect(refused, subject, 2 * CHECK_S)
    try:
        connection.nc.write(frame(subject, payload))
        await connection.nc.flush(CHECK_S)  # the answer follows the refusal, if there is one
        if refused.done():
            refused.result()
    except nats.errors.Error as error:
        raise from_exception(error, subject) from error
    finally:
        connection.pending.forget(name)
        refused.cancel()
