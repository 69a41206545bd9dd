"""The registry of workers: a key-value bucket in which each live worker keeps a record that expires.

The server throws a record away when its worker has not renewed it for three beats. Written by compare-and-set, so
that two workers of one name do not take turns under one key: the second adds a token to its own.
"""

from __future__ import annotations

import json
import secrets
import time

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import WRONG_LAST_SEQUENCE, from_response
from jetjobs.jetstream.reads import StoredMessage, last_on
from jetjobs.jetstream.scan import scan
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError, TopologyMissing
from jetjobs.model.names import Names, kv_stream, kv_subject
from jetjobs.model.presence import WorkerRecord, read_worker
from jetjobs.model.reading import read_json

BEAT_S = 5.0
TTL_S = 14
"""Three beats less a second: the server looks for what has expired about once a second."""
_TRY_S = 2.0
_CLAIMS = 5
_BORN = time.time()
"""Nothing of this process is older."""


class Seat:
    """The place of one worker in the registry."""

    def __init__(self, names: Names, name: str) -> None:
        self._bucket = names.workers_bucket
        self._stream = kv_stream(names.workers_bucket)
        self._plain = n.token_of(name)
        self.key = self._plain
        self._revision = 0
        self.taken = False
        """Whether the key is known to be ours."""

    async def put(self, connection: Connection, record: WorkerRecord) -> None:
        """Write the record under a key of our own, found on the first call. BrokerError when it is not written."""
        for _ in range(_CLAIMS):
            refusal = await self._publish(connection, record)
            if refusal is None:
                return
            if refusal.code != WRONG_LAST_SEQUENCE:
                raise refusal
            there = await last_on(connection, self._stream, kv_subject(self._bucket, self.key))
            if there is None or not there.data or _is_ours(there, record):
                self._revision = there.sequence if there is not None else 0
            else:
                self._revision, self.taken = 0, False
                self.key = f"{self._plain}-{secrets.token_hex(3)}"
        raise BrokerError(f"no key for worker {self._plain} in {self._bucket}")

    async def _publish(self, connection: Connection, record: WorkerRecord) -> BrokerError | None:
        headers = {n.TTL: f"{TTL_S}s", n.EXPECTED_LAST_SUBJECT_SEQ: str(self._revision)}
        body = json.dumps(record.to_wire()).encode()
        answer = json.loads(await connection.ask(kv_subject(self._bucket, self.key), body, headers, _TRY_S))
        refusal = from_response(answer, "register the worker")
        if refusal is None:
            self._revision, self.taken = int(answer["seq"]), True
        return refusal

    async def leave(self, connection: Connection) -> None:
        """Take the record away. BrokerError when that is not certain; then it expires."""
        if not self.taken:
            return
        self.taken = False
        headers = {n.KV_OPERATION: "DEL", n.TTL: "1s"}
        await connection.ask(kv_subject(self._bucket, self.key), b"", headers, 1.0)


def _is_ours(there: StoredMessage, record: WorkerRecord) -> bool:
    """Written by this worker, or by one that had our host and pid before us and so is dead: a container that was
    started again."""
    try:
        value = read_json(there.data)
        if value["token"] == record.token:
            return True
        return (value["host"], value["pid"]) == (record.host, record.pid) and float(value["started_at"]) < _BORN
    except (ValueError, KeyError, TypeError, OverflowError):
        return False


async def workers_on(connection: Connection, names: Names) -> list[WorkerRecord]:
    """The workers that live, by key."""
    bucket = names.workers_bucket
    prefix = kv_subject(bucket, "")
    found: dict[str, WorkerRecord] = {}
    try:
        async for message in scan(connection, kv_stream(bucket), prefix + ">"):
            key = message.subject.removeprefix(prefix)
            if (record := _read(key, message)) is None:
                found.pop(key, None)
            else:
                found[record.key] = record  # twice, when it is written while we read
    except TopologyMissing:
        return []  # set up by an earlier version: nobody can have registered
    return [found[key] for key in sorted(found)]


def _read(key: str, message: StoredMessage) -> WorkerRecord | None:
    """None for the mark of a worker that left, and for what cannot be read."""
    if n.KV_OPERATION in message.headers or not message.data:
        return None
    try:
        return read_worker(key, read_json(message.data), message.stored_at)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
