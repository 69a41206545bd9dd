"""Records of flows in their bucket: create one for a new flow, find that of a repeated one, change it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import AccessDenied, FlowConflict
from jetjobs.model.flow.flow_record import FlowRecord
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.ids import flow_key
from jetjobs.model.wire.lenient_json import as_int, read_record
from jetjobs.model.wire.subjects import kv_stream, kv_subject

UNENDED_S = 30 * 86400
"""How long after its deadline the record of a flow is kept that has not ended."""
ENDED_S = 86400
"""How long the record of an ended flow is kept."""


class FlowRecords:
    """The records of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, names: FlowNames) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._stream = kv_stream(names.flows_bucket)

    async def get(self, flow_id: str) -> FlowRecord | None:
        found = await last_on(self._connection, self._stream, self._subject(flow_id))
        return FlowRecord.read(found.data, found.sequence) if found is not None else None

    async def scan(self) -> AsyncIterator[FlowRecord]:
        """All records, oldest change first. May be slightly old."""
        async for message in scan(self._connection, self._stream, kv_subject(self._names.flows_bucket, "*")):
            if (record := FlowRecord.read(message.data, message.sequence)) is not None:
                yield record

    async def create(self, record: FlowRecord, queues: Collection[str]) -> tuple[FlowRecord, bool]:
        """Store the record of a new flow, or find that of the flow that has its id. Returns it, and whether it is
        new. FlowConflict if the flow with that id has another content.

        `queues` may have marks of an earlier flow with that id, whose record has expired; they are removed. For an
        id that was never used there are none.
        """
        left = await self._left_over(record.id, queues) if queues else {}
        while (there := await self.get(record.id)) is None:
            await self._remove(record.id, left)
            try:
                return await self.put(record), True
            except WrongLastSequence:
                continue  # another process was faster
        if there.digest != record.digest:
            raise FlowConflict(
                f"flow {record.id!r} exists with another content",
                flow_id=record.id,
                hint="use another id for another flow; an id is free again a day after its flow has ended",
            )
        return there, False

    async def put(self, record: FlowRecord, ttl_s: float = 0.0) -> FlowRecord:
        """Store the record over the version that was read. WrongLastSequence if it has changed since. It is kept
        for `ttl_s`, by default until long after its deadline."""
        ttl_s = ttl_s or record.deadline - record.enqueued_at + UNENDED_S
        headers = {h.EXPECTED_LAST_SUBJECT_SEQ: str(record.sequence), h.TTL: f"{math.ceil(ttl_s)}s"}
        message = Outgoing(self._subject(record.id), record.write(), headers)
        answer = read_record(await self._publisher.confirm(self._stream, message))
        return replace(record, sequence=as_int(answer.get("seq")))

    async def _left_over(self, flow_id: str, queues: Collection[str]) -> dict[str, tuple[str, int]]:
        """By stream: the subjects of an earlier flow with that id, and the last sequence they can have."""
        fkey, names = flow_key(flow_id), self._names
        subjects = {names.names.work_stream(queue): names.marks_of(queue, fkey) for queue in queues}
        subjects[names.ledger_stream] = names.ledger_of(fkey)
        found = {}
        for stream, pattern in subjects.items():
            state = (await self._connection.api(api.stream_info(stream), {"subjects_filter": pattern}))["state"]
            if state.get("subjects"):
                found[stream] = (pattern, int(state["last_seq"]))
        return found

    async def _remove(self, flow_id: str, left: dict[str, tuple[str, int]]) -> None:
        """Remove what an earlier flow has left. After the sequences were read, no flow had the id, so nothing of a
        new one is among them."""
        for stream, (pattern, last) in left.items():
            try:
                await self._connection.api(api.stream_purge(stream), {"filter": pattern, "seq": last + 1})
            except AccessDenied as error:
                raise FlowConflict(
                    f"an earlier flow {flow_id!r} is not removed yet, and this user may not remove it: {error}",
                    flow_id=flow_id,
                    hint="use another id, or wait until a worker has removed it",
                ) from error

    def _subject(self, flow_id: str) -> str:
        return kv_subject(self._names.flows_bucket, flow_key(flow_id))
