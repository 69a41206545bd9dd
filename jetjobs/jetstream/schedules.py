"""The schedules bucket: definitions by name, each written only over the revision its writer has read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import NamedTuple

import nats.errors

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import from_exception
from jetjobs.jetstream.publisher import Outgoing, Publisher, Taken
from jetjobs.jetstream.reads import StoredMessage, last_on
from jetjobs.jetstream.scan import scan
from jetjobs.model import names as n
from jetjobs.model.errors import ScheduleConflict
from jetjobs.model.names import Names, is_schedule_name, is_token, kv_stream, kv_subject
from jetjobs.model.schedule import Schedule, is_generation, read_schedule

_GONE_S = 3600
"""How long the bucket remembers that a schedule was deleted."""
_CLOCKS_DIFFER_S = 3600.0
"""No clocks of one cluster are so far apart."""


class Definition(NamedTuple):
    """What stands in the bucket under one name."""

    name: str
    schedule: Schedule | None
    """None when it is deleted, or cannot be read."""
    revision: int
    deleted: bool = False
    queues: tuple[str, ...] = ()
    """Where something of a deleted one may be planned, if that is known."""
    generation: str = ""
    """Of a deleted one: up to this one nothing is planned any more, whoever sees to that and however late."""


class ScheduleStore:
    """The definitions of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._bucket = names.schedules_bucket
        self._stream = kv_stream(self._bucket)

    async def created(self) -> str:
        """When the bucket was made: another time, another bucket. TopologyMissing when it is not there."""
        return str((await self._connection.api(f"STREAM.INFO.{self._stream}"))["created"])

    async def get(self, name: str) -> Definition | None:
        """From the leader of the bucket, so it decides. None when there never was one, or it is long deleted."""
        message = await last_on(self._connection, self._stream, kv_subject(self._bucket, name))
        return _read(message) if message is not None else None

    async def all(self) -> list[Definition]:
        """Those that stand, by name."""
        subject = kv_subject(self._bucket, ">")
        found = {
            d.name: d async for m in scan(self._connection, self._stream, subject) if not (d := _read(m)).deleted
        }
        return [found[name] for name in sorted(found)]

    async def put(self, schedule: Schedule, revision: int) -> int:
        """Write it over `revision`, 0 for none; the new revision. ScheduleConflict when another stands there."""
        return await self._write(schedule.name, schedule.model_dump_json().encode(), revision, {})

    async def delete(self, name: str, revision: int, queues: tuple[str, ...], generation: str) -> None:
        """Delete `revision` of it. ScheduleConflict when another stands there. What is left behind names queues
        and generation, for whoever has to take back what was planned there."""
        headers = {n.KV_OPERATION: "DEL", n.TTL: f"{_GONE_S}s", n.GENERATION: generation}
        await self._write(name, b"", revision, {**headers, n.QUEUE: ",".join(queues)} if queues else headers)

    async def _write(self, name: str, body: bytes, revision: int, headers: dict[str, str]) -> int:
        guarded = {**headers, n.EXPECTED_LAST_SUBJECT_SEQ: str(revision)}
        message = Outgoing(kv_subject(self._bucket, name), body, guarded)
        try:
            reply = await self._publisher.confirm(self._stream, message)
        except Taken:
            there = await last_on(self._connection, self._stream, message.subject)
            if there is None or (there.data, n.KV_OPERATION in there.headers) != (body, n.KV_OPERATION in headers):
                raise ScheduleConflict(
                    f"schedule {name!r} was changed meanwhile by somebody else",
                    hint="look at it as it is now, and change it again",
                ) from None
            return there.sequence  # our own resend
        return int(json.loads(reply)["seq"])

    async def listen(self, told: Callable[[str], None]) -> int:
        """Hear the name of each that is written from now on; the id to `unlisten`."""
        prefix = kv_subject(self._bucket, "")
        try:
            return await self._connection.nc.listen(
                f"{prefix}>", lambda subject, reply, data, headers: told(subject.removeprefix(prefix))
            )
        except nats.errors.Error as error:
            raise from_exception(error, "listen for schedules") from error


def _read(message: StoredMessage) -> Definition:
    name = message.subject.split(".", 2)[2]
    if message.headers.get(n.KV_OPERATION):
        queues = tuple(message.headers.get(n.QUEUE, "").split(","))
        # Under a name that no schedule may have nothing was ever planned: there is nothing to take back.
        known = all(map(is_token, queues)) and is_schedule_name(name)
        given = message.headers.get(n.GENERATION, "")
        generation = given if is_generation(given) else ""
        return Definition(name, None, message.sequence, True, queues if known else (), generation)
    schedule = read_schedule(message.data)
    if schedule is not None and (
        schedule.name != name or schedule.since.timestamp() > message.stored_at + _CLOCKS_DIFFER_S
    ):
        # Written by hand: under another name, or to begin long after it was stored. It would not be planned.
        schedule = None
    return Definition(name, schedule, message.sequence)
