"""Cancel marks: the first step of a cancellation, known to every worker before it starts a job.

They are stored in a bucket and expire. A worker reads all marks when it starts and after each reconnect, and
subscribes to the subjects of the bucket for new ones. A check before each run therefore needs no request.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import nats.errors

from jetjobs.jetstream.jobs.results import MARK_TTL_S
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.flow.steps import After
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import as_seconds, read_record
from jetjobs.model.wire.subjects import Names, kv_key_tokens, kv_stream, kv_subject

MOST = 100_000
FLOW_MARK = "flow"
"""In place of a job's id: the mark is of a flow."""


class CancelMark(NamedTuple):
    """Which run of a job is cancelled, by whom and why."""

    run: str
    """Of a flow, its key token."""
    by: str
    why: str
    until: float = 0.0
    """When the mark of a flow ends, in seconds since the epoch: the id of the flow may be used again."""


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
        self.on_flow: list[Callable[[str], None]] = []
        """Called with the key token of each flow that is cancelled."""

    async def put(self, job_id: str, mark: CancelMark, ttl_s: int = MARK_TTL_S) -> None:
        """Store a mark and wait for its confirmation. From then on no worker starts that run of the job. With
        FLOW_MARK as id it is the mark of a flow."""
        body = json.dumps(mark._asdict()).encode()
        message = Outgoing(self._subject(job_id, mark.run), body, {h.TTL: f"{ttl_s}s"})
        await self._publisher.store(kv_stream(self._bucket), message)

    async def get(self, job_id: str, run: str) -> CancelMark | None:
        """The mark of this run of a job, read from the server."""
        try:
            found = await last_on(self._connection, kv_stream(self._bucket), self._subject(job_id, run))
        except TopologyMissing:
            return None
        return _read(found.data) if found is not None else None

    async def of_flow(self, fkey: str) -> CancelMark | None:
        """The mark of a flow, read from the server unless this process listens to marks."""
        return await self.get(FLOW_MARK, fkey) if self._sid is None else self._find_flow(fkey)

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
        missed = {fkey for kind, fkey in found.keys() - self._marks.keys() if kind == FLOW_MARK}
        newest = list({**found, **self._marks}.items())[-MOST:]
        self._marks = dict(newest)
        for fkey in missed:
            self._flow_cancelled(fkey)

    def __bool__(self) -> bool:
        return bool(self._marks)

    def find(self, job_id: str, run: str) -> CancelMark | None:
        """The mark of this run of the job, if there is one."""
        return self._marks.get((job_id, run))

    def flow_of(self, job: Job) -> CancelMark | None:
        """The mark of the job's flow, if it has one. It does not concern the job that `on_failed` names."""
        if h.FLOW not in job.headers or (mark := self._find_flow(job.key)) is None:
            return None
        with contextlib.suppress(ValueError):
            return None if After.parse(job.headers.get(h.AFTER, "{}")).unless else mark
        return mark

    def _find_flow(self, fkey: str) -> CancelMark | None:
        mark = self._marks.get((FLOW_MARK, fkey))
        return mark if mark is not None and time.time() < mark.until else None

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
        if key[0] == FLOW_MARK:
            self._flow_cancelled(mark.run)

    def _flow_cancelled(self, fkey: str) -> None:
        for notify in self.on_flow:
            notify(fkey)

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
    return CancelMark(
        str(record["run"]), str(record.get("by", "")), str(record.get("why", "")), as_seconds(record.get("until"))
    )
