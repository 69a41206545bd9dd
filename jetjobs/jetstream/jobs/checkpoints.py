"""Checkpoints: values that a job saves for its next attempt. One per run of a job.

Each record names its owner by hop and delivery, which only rise during a run. A write expects the revision that
was last read. If there is another revision, it is overwritten if an older owner wrote it. If a newer owner wrote
it, the writer has lost its lease, and the write fails. ADR 14.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from jetjobs.jetstream.jobs.results import quote
from jetjobs.jetstream.messages.get import StoredMessage, last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import UnstorableValue
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import Names, kv_stream, kv_subject

TTL_S = 30 * 86_400
"""A checkpoint is removed when its job ends. This limit is for those that no worker was left to remove."""

_HEADERS = 1024
"""Upper limit for the size of a record's headers, which count towards the size of a message."""


class Superseded(Exception):
    """A newer owner of the job has written the checkpoint."""


class CheckpointHandle:
    """The access of one delivery to the checkpoint of its job."""

    __slots__ = ("delivery", "fence", "job", "lock", "number", "revision", "worker", "written")

    def __init__(self, job: Job, delivery: int, fence: int, worker: str) -> None:
        self.job = job
        self.delivery = delivery
        self.fence = fence
        self.worker = worker
        self.revision = 0
        """Revision of the record when it was last read; 0 for none."""
        self.number = 0
        self.written = False
        self.lock = asyncio.Lock()

    @property
    def order(self) -> tuple[int, int]:
        """Rises from owner to owner."""
        return self.job.hop, self.delivery


class Checkpoints:
    """The `checkpoints` bucket."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._bucket = names.checkpoints_bucket
        self._stream = kv_stream(self._bucket)

    async def load(self, handle: CheckpointHandle) -> bytes | None:
        """The value as JSON; None if there is none. Superseded when a newer owner has written it."""
        there = await last_on(self._connection, self._stream, self._subject(handle.job.id, handle.job.run))
        record = _check_owner(handle, there)
        return json.dumps(record["value"]).encode() if "value" in record else None

    async def save(self, handle: CheckpointHandle, value: bytes, owned: Callable[[], bool]) -> None:
        """Store the value. Superseded when a newer owner has written one, BrokerError when that is unknown."""
        handle.number += 1
        record = _record(handle, value)
        room = self._connection.max_payload - _HEADERS
        if len(record) > room:
            raise UnstorableValue(
                f"the checkpoint is {len(value):,} bytes as JSON, too large for the server",
                hint="raise max_payload on the server",
            )
        subject = self._subject(handle.job.id, handle.job.run)
        while True:
            headers = {h.TTL: f"{TTL_S}s", h.EXPECTED_LAST_SUBJECT_SEQ: str(handle.revision)}
            message = Outgoing(subject, record, headers)
            try:
                reply = await self._publisher.confirm(self._stream, message, owned=owned)
                handle.revision = int(json.loads(reply)["seq"])
                handle.written = True
                return
            except WrongLastSequence:
                there = await last_on(self._connection, self._stream, subject)
                _check_owner(handle, there)
                if there is not None and there.data == record:
                    return  # an earlier try of ours, whose answer was lost

    async def remove(self, handle: CheckpointHandle) -> None:
        """Remove the checkpoint of a job that has ended, unless a newer owner has written it."""
        async with handle.lock:  # a save may be in progress
            if handle.revision:
                await self._purge(self._subject(handle.job.id, handle.job.run), {"seq": handle.revision + 1})
                handle.revision = 0

    async def forget(self, job_id: str, run: str = "*") -> None:
        """Remove the checkpoints of a job that no delivery owns."""
        await self._purge(self._subject(job_id, run), {})

    async def _purge(self, subject: str, upto: dict[str, Any]) -> None:
        await self._connection.api(api.stream_purge(self._stream), {"filter": subject, **upto})

    def _subject(self, job_id: str, run: str) -> str:
        return kv_subject(self._bucket, self._names.checkpoint_key(job_id, run))


def _check_owner(handle: CheckpointHandle, there: StoredMessage | None) -> dict[str, Any]:
    """The current record, whose revision the next write expects. Superseded when a newer owner wrote it."""
    record = read_record(there.data) if there is not None else {}
    order = (_whole(record, "hop"), _whole(record, "delivery"))
    ours = order == handle.order and (record.get("fence"), record.get("worker")) == (handle.fence, handle.worker)
    if order > handle.order or (order == handle.order and handle.written and not ours):
        raise Superseded(
            f"worker {record.get('worker')} wrote the checkpoint in delivery {order[1]} of hop {order[0]}"
        )
    handle.revision = there.sequence if there is not None else 0
    handle.written |= ours
    return record


def _record(handle: CheckpointHandle, value: bytes) -> bytes:
    job = handle.job
    return (
        b'{"id":%b,"run":%b,"task":%b,"queue":%b,"attempt":%d,"hop":%d,"delivery":%d,"fence":%d,"worker":%b,'
        b'"number":%d,"at":%.6f,"value":%b}'
    ) % (
        quote(job.id),
        quote(job.run),
        quote(job.task),
        quote(job.queue),
        job.attempt,
        job.hop,
        handle.delivery,
        handle.fence,
        quote(handle.worker),
        handle.number,
        time.time(),
        value,
    )


def _whole(record: dict[str, Any], field: str) -> int:
    value = record.get(field)
    return value if isinstance(value, int) else -1
