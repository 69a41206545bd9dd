"""Checkpoints: what a job has kept for its next run. One a life of a job; a newer owner's is never written over.

Each record says by whose hand it is: hop and delivery, which only rise in a job's life. A write expects the
revision that was last seen. Where another stands, it is written over if it is by an older hand; by a newer one,
the writer has lost its lease and learns it here. ADR 14.
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
"""A checkpoint goes with its job. This is for those that nobody was left to remove."""

_HEADERS = 1024
"""More than those of a record take, of what the server allows for a message."""


class Superseded(Exception):
    """The checkpoint is by the hand of a newer owner of the job."""


class CheckpointHandle:
    """One delivery's hand on the checkpoint of its job."""

    __slots__ = ("delivery", "fence", "job", "lock", "number", "revision", "worker", "written")

    def __init__(self, job: Job, delivery: int, fence: int, worker: str) -> None:
        self.job = job
        self.delivery = delivery
        self.fence = fence
        self.worker = worker
        self.revision = 0
        """Of the record as it was last seen; 0 for none."""
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

    async def load(self, kept: CheckpointHandle) -> bytes | None:
        """The value as JSON; None when there is none. Superseded when a newer owner has written it."""
        there = await last_on(self._connection, self._stream, self._subject(kept.job.id, kept.job.run))
        record = _look(kept, there)
        return json.dumps(record["value"]).encode() if "value" in record else None

    async def save(self, kept: CheckpointHandle, value: bytes, owned: Callable[[], bool]) -> None:
        """Stored when it returns. Superseded when a newer owner was first, BrokerError when it is not known."""
        kept.number += 1
        record = _record(kept, value)
        room = self._connection.max_payload - _HEADERS
        if len(record) > room:
            raise UnstorableValue(
                f"the checkpoint is {len(value):,} bytes as JSON, too large for the server",
                hint="raise max_payload on the server",
            )
        subject = self._subject(kept.job.id, kept.job.run)
        while True:
            headers = {h.TTL: f"{TTL_S}s", h.EXPECTED_LAST_SUBJECT_SEQ: str(kept.revision)}
            message = Outgoing(subject, record, headers)
            try:
                reply = await self._publisher.confirm(self._stream, message, owned=owned)
                kept.revision = int(json.loads(reply)["seq"])
                kept.written = True
                return
            except WrongLastSequence:
                there = await last_on(self._connection, self._stream, subject)
                _look(kept, there)
                if there is not None and there.data == record:
                    return  # our own first try, whose answer was lost

    async def remove(self, kept: CheckpointHandle) -> None:
        """The job has ended. What a newer owner has written since stays."""
        async with kept.lock:  # a save may be under way
            if kept.revision:
                await self._purge(self._subject(kept.job.id, kept.job.run), {"seq": kept.revision + 1})
                kept.revision = 0

    async def forget(self, job_id: str, run: str = "*") -> None:
        """Remove whatever a job has kept, where no delivery has a hand on it."""
        await self._purge(self._subject(job_id, run), {})

    async def _purge(self, subject: str, upto: dict[str, Any]) -> None:
        await self._connection.api(api.stream_purge(self._stream), {"filter": subject, **upto})

    def _subject(self, job_id: str, run: str) -> str:
        return kv_subject(self._bucket, self._names.checkpoint_key(job_id, run))


def _look(kept: CheckpointHandle, there: StoredMessage | None) -> dict[str, Any]:
    """What stands there, and expect its revision from now on. Superseded when it is by a newer hand."""
    record = read_record(there.data) if there is not None else {}
    order = (_whole(record, "hop"), _whole(record, "delivery"))
    ours = order == kept.order and (record.get("fence"), record.get("worker")) == (kept.fence, kept.worker)
    if order > kept.order or (order == kept.order and kept.written and not ours):
        raise Superseded(f"its checkpoint is by {record.get('worker')}, delivery {order[1]} of hop {order[0]}")
    kept.revision = there.sequence if there is not None else 0
    kept.written |= ours
    return record


def _record(kept: CheckpointHandle, value: bytes) -> bytes:
    job = kept.job
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
        kept.delivery,
        kept.fence,
        quote(kept.worker),
        kept.number,
        time.time(),
        value,
    )


def _whole(record: dict[str, Any], field: str) -> int:
    value = record.get(field)
    return value if isinstance(value, int) else -1
