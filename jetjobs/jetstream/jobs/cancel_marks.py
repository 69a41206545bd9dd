"""Cancel marks: the first step of a cancellation, known to every worker before it starts a job.

They are stored in a bucket and expire. A worker reads all marks when it starts and after each reconnect, and
subscribes to the subjects of the bucket for new ones. A check before each run therefore needs no request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.jobs.results import MARK_TTL_S
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import Names, kv_key_tokens, kv_stream, kv_subject

MOST = 100_000


class CancelMark(NamedTuple):
    """Which run of a job is cancelled, by whom and why."""

    run: str
    by: str
    why: str


class CancelMarks:
    """The marks of the namespace that this process knows."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._bucket = names.cancelled_bucket
        self.subject = kv_subject(self._bucket, "*.*")
        """The subject of all marks."""
        self._marks: dict[tuple[str, str], CancelMark] = {}
        self._sid: int | None = None

    async def put(self, job_id: str, mark: CancelMark) -> None:
        """Store a mark and wait for its confirmation. From then on no worker starts that run of the job."""
        body = json.dumps(mark._asdict()).encode()
        message = Outgoing(self._subject(job_id, mark.run), body, {h.TTL: f"{MARK_TTL_S}s"})
        await self._publisher.store(kv_stream(self._bucket), message)

    async def get(self, job_id: str, run: str) -> CancelMark | None:
        """The mark of this run of a job, read from the server."""
        try:
            found = await last_on(self._connection, kv_stream(self._bucket), self._subject(job_id, run))
        except TopologyMissing:
            return None
        return _read(found.data) if found is not None else None

    async def listen(self) -> None:
        """Subscribe to new marks, then read the existing ones."""
        try:
            self._sid = await self._connection.nc.listen(self.subject, self._on_mark)
        except nats.errors.Error as error:
            raise from_exception(error, "subscribe to cancelled jobs") from error
        await self.load()

    async def load(self) -> None:
        """Read all marks, including those stored while this process was disconnected."""
        found: dict[tuple[str, str], CancelMark] = {}
        stream, subject = kv_stream(self._bucket), self.subject
        try:
            async for message in scan(self._connection, stream, subject):
                if (mark := _read(message.data)) is not None:
                    found[_key(message.subject, mark)] = mark
        except TopologyMissing:
            return  # the bucket was deleted with all marks
        # Marks received in the meantime stay. An outdated mark does no harm, because it applies to one run only.
        newest = list({**found, **self._marks}.items())[-MOST:]
        self._marks = dict(newest)

    def __bool__(self) -> bool:
        return bool(self._marks)

    def find(self, job_id: str, run: str) -> CancelMark | None:
        """The mark of this run of the job, if there is one."""
        return self._marks.get((job_id, run))

    def on_request(self, data: Mapping[str, Any]) -> None:
        """A request to cancel has the mark too: the stored one may not have arrived, if the network was cut."""
        if (mark := _mark(data)) is not None:
            self._add((str(data.get("id", "")), mark.run), mark)

    def _on_mark(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        if (mark := _read(data)) is not None:
            self._add(_key(subject, mark), mark)

    def _add(self, key: tuple[str, str], mark: CancelMark) -> None:
        if len(self._marks) >= MOST:
            self._marks.pop(next(iter(self._marks)))
        self._marks[key] = mark

    def _subject(self, job_id: str, run: str) -> str:
        """The subject contains the run, because jobs of other queues or tasks may have the same id."""
        return kv_subject(self._bucket, f"{job_id}.{run}")


def _key(subject: str, mark: CancelMark) -> tuple[str, str]:
    return kv_key_tokens(subject)[0], mark.run


def _read(data: bytes) -> CancelMark | None:
    return _mark(read_record(data))


def _mark(record: Mapping[str, Any]) -> CancelMark | None:
    if not record.get("run"):
        return None
    return CancelMark(str(record["run"]), str(record.get("by", "")), str(record.get("why", "")))
