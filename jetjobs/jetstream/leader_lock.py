"""The leader lock: one worker at a time does the work that only one worker must do.

It is a key with a TTL in the `locks` bucket. A worker takes it with a publish that expects no value, and renews
it after a third of the TTL with a publish that expects its last revision, so a stale holder is refused. A holder
relies on the lock until 1 s before the TTL ends, counted from the *sending* of its last successful publish by its
monotonic clock: a late answer does not extend that. The lock only saves work: it is harmless if two leaders act at
once.

A holder that stops deletes the key, which notifies the others. The server does not announce an expiry, so they
also try again every few seconds.

It uses plain publishes, because `kv.update` of nats-py drops the TTL, and the lock would never expire.
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
"""A failover of the server takes about seven seconds. With a shorter TTL, each one would change the leader."""
RENEW_S = TTL_S / 3
_MARGIN_S = 1.0


async def lock_holder(connection: Connection, bucket: str) -> str | None:
    """The name of the leader; None if there is none."""
    there = await last_on(connection, kv_stream(bucket), kv_subject(bucket, n.LEADER))
    if there is None or h.KV_OPERATION in there.headers:
        return None
    return str(read_record(there.data).get("holder", ""))


class LeaderLock:
    """One candidate for leader."""

    def __init__(self, connection: Connection, publisher: Publisher, bucket: str, holder: str) -> None:
        self._connection = connection
        self._publisher = publisher
        self._stream = kv_stream(bucket)
        self._removal = f"nats kv purge {bucket} {n.LEADER} --force"
        self._subject = kv_subject(bucket, n.LEADER)
        # Two workers may have the same name, so the value has a token.
        self._value = json.dumps({"holder": holder, "token": new_uid()}).encode()
        self._revision = 0
        self._taken_at = 0
        self._trusted_until = 0.0

    @property
    def held(self) -> bool:
        return time.monotonic() < self._trusted_until

    @property
    def term(self) -> int:
        """The revision at which the lock was taken, higher for each holder; 0 while it is not held."""
        return self._taken_at if self.held else 0

    @property
    def connected(self) -> bool:
        return self._connection.connected

    async def try_lock(self) -> bool:
        """Take or renew the lock. False when another worker has it, BrokerError when that is unknown.
        TopologyConflict for a lock without TTL, which jetjobs did not write and which never expires."""
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
                    raise TopologyConflict("the leader lock has no TTL and never expires", hint=self._removal)
                return False
            # The key has just expired or was deleted, or an answer was lost: try again with the current revision.
        return False

    async def listen(self, freed: Callable[[], None]) -> int:
        """Call `freed` when a holder releases the lock. Returns the id for `unlisten`."""
        try:
            return await self._connection.nc.listen(
                self._subject, lambda subject, reply, data, headers: None if data else freed()
            )
        except nats.errors.Error as error:
            raise from_exception(error, "subscribe to the leader lock") from error

    async def release(self) -> None:
        """Release the lock, so that others need not wait for the TTL."""
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
            return  # it expires
