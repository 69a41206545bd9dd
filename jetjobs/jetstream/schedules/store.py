"""The schedules bucket: definitions by name. A write expects the revision that its writer has read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import nats.errors

from jetjobs.jetstream.messages.get import StoredMessage, last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.schedules.ticks import Ticks
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.errors import from_exception
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import QueueNotFound, ScheduleConflict, ScheduleNotFound, TopologyMissing
from jetjobs.model.schedule.schedule import Schedule, read_schedule
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.subjects import Names, kv_key, kv_stream, kv_subject

_GONE_S = 3600
"""How long the mark of a deleted schedule is kept."""
_CLOCKS_DIFFER_S = 3600.0
"""More than the clocks of one cluster differ."""


@dataclass(frozen=True)
class Definition:
    """One entry of the bucket."""

    name: str
    revision: int
    data: bytes
    stored_at: float
    deleted: bool = False

    @cached_property
    def schedule(self) -> Schedule | None:
        """None when the schedule is deleted or unreadable."""
        schedule = None if self.deleted else read_schedule(self.data)
        if schedule is not None and (
            schedule.name != self.name or schedule.since.timestamp() > self.stored_at + _CLOCKS_DIFFER_S
        ):
            # Not written by jetjobs: it has another name or begins long after it was stored. It is not planned.
            return None
        return schedule


class ScheduleStore:
    """The definitions of one namespace."""

    def __init__(
        self, connection: Connection, publisher: Publisher, names: Names, ticks: Ticks, clock: ServerClock
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._bucket = names.schedules_bucket
        self._stream = kv_stream(self._bucket)
        self._ticks = ticks
        self._clock = clock

    # Reading

    async def get(self, name: str) -> Definition | None:
        """Read from the leader of the bucket. None without a schedule and without a mark of a deleted one."""
        message = await last_on(self._connection, self._stream, kv_subject(self._bucket, name))
        return _read(message) if message is not None else None

    async def find(self, name: str) -> Definition:
        """As `get`; ScheduleNotFound unless the schedule exists."""
        found = await self.get(name)
        if found is None or found.deleted:
            raise ScheduleNotFound(
                f"schedule {name!r} does not exist", hint="list them with `jetjobs schedules list`"
            )
        return found

    async def all(self) -> list[Definition]:
        """All existing schedules by name. A replica may answer, so the list may be slightly old."""
        subject = kv_subject(self._bucket, ">")
        found = {
            d.name: d async for m in scan(self._connection, self._stream, subject) if not (d := _read(m)).deleted
        }
        return [found[name] for name in sorted(found)]

    # Writing

    async def check(self, schedule: Schedule) -> None:
        """JobTooLarge or QueueNotFound if its ticks cannot be stored."""
        self._ticks.check_size(schedule)
        try:
            await self._ticks.mark(schedule.queue, schedule.name)
        except TopologyMissing as error:
            raise QueueNotFound(
                f"queue {schedule.queue!r} does not exist; schedule {schedule.name!r} needs it",
                hint="create it with `jetjobs setup apply`, or start a worker for it",
            ) from error

    async def put(self, schedule: Schedule, over: Definition | None) -> Definition:
        """Replace the definition that was read; the leader plans it. ScheduleConflict if it has changed since."""
        now = await self._clock.now()
        body = schedule.over(over.schedule if over is not None else None, now).model_dump_json().encode()
        revision = await self._write(schedule.name, body, over.revision if over is not None else 0, {})
        return Definition(schedule.name, revision, body, now.timestamp())

    async def delete(self, over: Definition) -> None:
        """Delete the schedule; the leader removes its ticks. ScheduleConflict if it has changed since."""
        await self._write(over.name, b"", over.revision, {h.KV_OPERATION: "DEL", h.TTL: f"{_GONE_S}s"})

    async def _write(self, name: str, body: bytes, revision: int, headers: dict[str, str]) -> int:
        guarded = {**headers, h.EXPECTED_LAST_SUBJECT_SEQ: str(revision)}
        message = Outgoing(kv_subject(self._bucket, name), body, guarded)
        try:
            reply = await self._publisher.confirm(self._stream, message)
        except WrongLastSequence:
            there = await last_on(self._connection, self._stream, message.subject)
            if there is None or (there.data, h.KV_OPERATION in there.headers) != (body, h.KV_OPERATION in headers):
                raise ScheduleConflict(
                    f"schedule {name!r} was changed by another process",
                    hint="read it again and repeat the change",
                ) from None
            return there.sequence  # a repeated publish of ours
        return int(json.loads(reply)["seq"])

    async def listen(self, on_change: Callable[[str], None]) -> int:
        """Call `on_change` with the name of each schedule that is written. Returns the id for `unlisten`."""
        prefix = kv_subject(self._bucket, "")
        try:
            return await self._connection.nc.listen(
                f"{prefix}>", lambda subject, reply, data, headers: on_change(subject.removeprefix(prefix))
            )
        except nats.errors.Error as error:
            raise from_exception(error, "subscribe to schedules") from error


def _read(message: StoredMessage) -> Definition:
    name, deleted = kv_key(message.subject), h.KV_OPERATION in message.headers
    return Definition(name, message.sequence, message.data, message.stored_at, deleted)
