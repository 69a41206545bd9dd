"""The leader lock: one worker at a time does what only one need do.

A key in the `locks` bucket with a TTL. It is taken by a publish that expects the key to be empty, and renewed at a
third of the TTL by one that expects the revision written last; so a stale holder is refused, even if nobody took
over. A holder trusts itself until TTL - 1 s after the *sending* of its last good publish, by its own monotonic
clock: a late answer never extends that. The lock only saves work: what a leader does is harmless if two do it.

A holder that stops deletes the key: the others hear of that and need not wait for the TTL. Its expiry nobody hears
of; for that they ask again every few seconds.

Written with plain publishes: nats-py's `kv.update` drops the TTL and would leave an immortal lock.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import nats.errors

from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.model.errors import BrokerError, TopologyConflict
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import new_uid
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import kv_stream, kv_subject

TTL_S = 15.0
"""A failover of the broker takes about seven seconds: a shorter TTL would cost the leader each time."""
RENEW_S = TTL_S / 3
_MARGIN_S = 1.0


async def lock_holder(connection: Connection, bucket: str) -> str | None:
    """The name of the worker that leads; None when none does."""
    there = await last_on(connection, kv_stream(bucket), kv_subject(bucket, n.LEADER))
    if there is None or h.KV_OPERATION in there.headers:
        return None
    return str(read_record(there.data).get("holder", ""))


class LeaderLock:
    """One candidate for the lock."""

    def __init__(self, connection: Connection, publisher: Publisher, bucket: str, holder: str) -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream = kv_stream(bucket)
        self._removal = f"nats kv purge {bucket} {n.LEADER} --force"
        self._subject = kv_subject(bucket, n.LEADER)
        # Two workers may have one name; the token tells them apart.
        self._value = json.dumps({"holder": holder, "token": new_uid()}).encode()
        self._revision = 0
        self._taken_at = 0
        self._trusted_until = 0.0

    @property
    def held(self) -> bool:
        return time.monotonic() < self._trusted_until

    @property
    def term(self) -> int:
        """The revision it was taken at, which is higher for each holder; 0 while we do not hold it."""
        return self._taken_at if self.held else 0

    @property
    def connected(self) -> bool:
        return self._connection.connected

    async def try_lock(self) -> bool:
        """Take or renew it. False when another has it; BrokerError when that is not known. TopologyConflict for a
        lock that never ends: none of us wrote it, and nobody gives it up."""
        for _ in range(2):
            started = time.monotonic()
            headers = {h.TTL: f"{TTL_S:.0f}s", h.EXPECTED_LAST_SUBJECT_SEQ: str(self._revision)}
            message = Outgoing(self._subject, self._value, headers)
            try:
                await self._publisher.store(self._stream, message, timeout_s=RENEW_S)
                written = True
            except WrongLastSequence:
                written = False
            there = await last_on(self._connection, self._stream, self._subject)
            free = there is None or h.KV_OPERATION in there.headers
            ours = there is not None and there.data == self._value
            self._revision = there.sequence if there is not None and (ours or free) else 0
            if written and ours:
                self._taken_at = self._taken_at if self.held else self._revision
                self._trusted_until = started + TTL_S - _MARGIN_S
                return True
            if there is not None and not ours and not free:
                self._trusted_until = 0.0
                if h.TTL not in there.headers:
                    raise TopologyConflict("the leader lock has no TTL: it never ends", hint=self._removal)
                return False
            # The key has just expired or was given up, or an answer of ours was lost: now we know what to expect.
        return False

    async def listen(self, freed: Callable[[], None]) -> int:
        """Hear when a holder gives it up; the id to `unlisten`."""
        try:
            return await self._connection.nc.listen(
                self._subject, lambda subject, reply, data, headers: None if data else freed()
            )
        except nats.errors.Error as error:
            raise from_exception(error, "listen for the leader lock") from error

    async def release(self) -> None:
        """Give it up at once, so that another need not wait for the TTL."""
        if not self.held:
            return
        self._trusted_until = 0.0
        headers = {
            h.KV_OPERATION: "DEL",
            h.TTL: f"{TTL_S:.0f}s",
            h.EXPECTED_LAST_SUBJECT_SEQ: str(self._revision),
        }
        try:
            await self._publisher.store(self._stream, Outgoing(self._subject, b"", headers), timeout_s=1.0)
        except (BrokerError, WrongLastSequence):
            return  # then it expires
