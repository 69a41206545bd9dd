"""The same work on plain nats-py, the baseline for the comparison."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable

from nats.aio.client import Client
from nats.aio.msg import Msg

from jetjobs.model.wire.headers import MSG_ID
from jetjobs.model.wire.subjects import Names

QUEUE = "raw"
NAMES = Names("bench")
"""Those of the app in benchmarks/tasks.py."""
LANE = "normal"
STREAM = NAMES.work_stream(QUEUE)
"""A queue provisioned by jetjobs like any other: both sides use equal streams."""

_IN_FLIGHT = 5_000
"""Limit of unconfirmed publishes. The server buffers at most 10,000 and refuses more."""
_EXPIRES_NS = 30_000_000_000


def _new_prefix() -> str:
    """A prefix for message ids: repeated ids would be duplicates to the server."""
    return secrets.token_hex(8)


def _subject(uid: str) -> str:
    return NAMES.job(QUEUE, LANE, "noop", "-", uid)


def _body(i: int) -> bytes:
    return b'{"i":%d}' % i


async def publish_each(nc: Client, count: int) -> None:
    """Publish one by one, each confirmed before the next."""
    js, prefix = nc.jetstream(), _new_prefix()
    for i in range(count):
        uid = f"{prefix}{i:016x}"
        await js.publish(_subject(uid), _body(i), headers={MSG_ID: uid})


async def publish_pipelined(nc: Client, count: int) -> None:
    """Publish as many at once as the server allows, then wait for the last confirmation."""
    confirmed, refused = 0, b""
    moved = asyncio.Event()

    async def on_ack(message: Msg) -> None:
        nonlocal confirmed, refused
        confirmed += 1
        if b'"error"' in message.data:
            refused = message.data
        moved.set()

    inbox, prefix = nc.new_inbox(), _new_prefix()
    subscription = await nc.subscribe(inbox, cb=on_ack)
    for i in range(count):
        uid = f"{prefix}{i:016x}"
        await nc.publish(_subject(uid), _body(i), reply=inbox, headers={MSG_ID: uid})
        while i - confirmed > _IN_FLIGHT:
            moved.clear()
            await moved.wait()
    while confirmed < count:
        moved.clear()
        await moved.wait()
    await subscription.unsubscribe()
    if refused:
        raise RuntimeError(f"the server refused a publish: {refused.decode()}")


class PullLoop:
    """Keeps pull requests open on one lane and acks each message: the minimum a worker must do."""

    def __init__(self, nc: Client, batch: int, arrived: Callable[[], None] | None = None) -> None:
        self._nc = nc
        self._batch = batch
        self._arrived = arrived
        self._next = f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{LANE}"
        self._inbox = nc.new_inbox()
        self._owed = 0
        self._left = -1
        self.done = asyncio.Event()

    async def start(self, count: int = -1) -> None:
        """Pull indefinitely, or set `done` after `count` messages."""
        self._left = count
        self._subscription = await self._nc.subscribe(self._inbox, cb=self._on_message)
        await self._ask(self._batch)

    async def stop(self) -> None:
        await self._subscription.unsubscribe()
        await self._nc.flush()

    async def _ask(self, count: int) -> None:
        self._owed += count
        request = b'{"batch":%d,"expires":%d}' % (count, _EXPIRES_NS)
        await self._nc.publish(self._next, request, reply=self._inbox)

    async def _on_message(self, message: Msg) -> None:
        if not message.reply:  # a status: the request expired; a header has its unfilled part
            unfilled = (message.headers or {}).get("Nats-Pending-Messages", "0")
            self._owed = max(0, self._owed - int(unfilled))
        else:
            if self._arrived is not None:
                self._arrived()
            await self._nc.publish(message.reply, b"")
            self._owed -= 1
            self._left -= 1
        if self._left and self._owed <= self._batch // 2:
            await self._ask(self._batch - self._owed)
        if not self._left:
            self.done.set()


async def drain(nc: Client, count: int, batch: int) -> None:
    """Pull and ack `count` messages."""
    loop = PullLoop(nc, batch)
    await loop.start(count)
    await loop.done.wait()
    await loop.stop()
