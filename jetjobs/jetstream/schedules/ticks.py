"""Ticks of schedules in the work streams: each placed together with the mark that says so, or not at all.

The mark of a schedule says how far it is planned, and by which revision of its definition. Ticks that are placed
or taken back and their mark are one atomic batch, in which the mark expects the one before it: of two leaders that
do the same one is refused, even after a restart of the server has forgotten every message id.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from jetjobs.jetstream.messages.batch import BATCH_SIZE, BatchMessage, BatchPublisher, batch_message
from jetjobs.jetstream.messages.get import StoredMessage, delete_message, last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.nats_client import header_lines
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import BrokerError
from jetjobs.model.job import Job
from jetjobs.model.schedule.plan import Mark, PlacedTick, Step, Tick
from jetjobs.model.schedule.schedule import Schedule, schedule_key, time_of_token, time_token
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import JobId, new_run
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import JobSubject, Names, last_token

_T = TypeVar("_T")
BATCH_BYTES = 4 * 1024 * 1024
TAKEN = "_taken"
"""In the place of a schedule's name: where the messages go by which ticks are taken back."""


class Ticks:
    """The ticks and marks of one namespace."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        batches: BatchPublisher,
        names: Names,
        clock: ServerClock,
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._batches = batches
        self._names = names
        self._clock = clock

    # Reading

    async def mark(self, queue: str, schedule: str) -> Mark:
        """From the stream's leader. TopologyMissing when there is no such queue."""
        message = await last_on(self._connection, self._stream(queue), self._names.schedule_mark(queue, schedule))
        return _read(message) if message is not None else Mark()

    async def marks_of(
        self, schedule: str, queues: Iterable[str]
    ) -> tuple[dict[str, Mark], dict[str, BrokerError]]:
        """The marks of one schedule by queue, from the streams' leaders; and why other queues cannot be read."""
        found, failed = await _of_each(queues, lambda queue: self.mark(queue, schedule))
        return {queue: mark for queue, mark in found.items() if mark.sequence}, failed

    async def all_marks(self, queues: Iterable[str]) -> tuple[dict[str, dict[str, Mark]], dict[str, BrokerError]]:
        """All marks by queue and schedule, as they were a moment ago; and why other queues cannot be read."""
        return await _of_each(queues, self.marks)

    async def marks(self, queue: str) -> dict[str, Mark]:
        """All of a queue, by the name of the schedule: as they were a moment ago."""
        found: dict[str, Mark] = {}
        async for message in scan(self._connection, self._stream(queue), self._names.schedule_mark(queue, "*")):
            name = last_token(message.subject)
            if name != TAKEN:
                found[name] = _read(message)
        return found

    async def waiting(self, queue: str, schedule: str) -> tuple[list[PlacedTick], datetime]:
        """The ticks of a schedule that have not fired, and the time by the clock of the stream's leader, asked
        for after they were read: one that is due later has not fired unseen."""
        pattern = self._names.planned(queue, schedule_key(schedule))
        subjects = await self._subjects(queue, pattern)
        found = await asyncio.gather(
            *(last_on(self._connection, self._stream(queue), subject) for subject in subjects)
        )
        now = await self._clock.ask(self._stream(queue))
        ticks = [tick for message in found if message is not None and (tick := _waiting(message)) is not None]
        return ticks, datetime.fromtimestamp(now, UTC)

    async def earlier(self, job: Job) -> bool:
        """Whether a live job of the same schedule has an earlier scheduled time. Ticks in lane `later` have not
        fired yet and do not count."""
        subjects = await self._subjects(job.queue, self._names.job(job.queue, "*", "*", job.key, "*"))
        return any(live.lane != n.LATER and live.uid < job.uid for live in map(JobSubject.parse_any, subjects))

    async def _subjects(self, queue: str, pattern: str) -> list[str]:
        """Those that match and hold a message, by the stream's leader."""
        info = await self._connection.api(api.stream_info(self._stream(queue)), {"subjects_filter": pattern})
        return sorted(info["state"].get("subjects") or {})

    # Writing

    async def store(self, queue: str, steps: Sequence[Step], now: datetime) -> list[Mark] | None:
        """Carry out all of them or none; the marks that stand then. None when one of the marks or ticks is not as
        it was read, or the answer was lost: look again.

        Unconfirmed when it is not known, else BrokerError; JobTooLarge before anything is sent.
        """
        batch = [self._take_back(queue, tick) for one in steps for tick in one.taken]
        if batch:
            # Nobody needs those of the batch before any more.
            batch[0] = batch[0]._replace(lines=f"{batch[0].lines}{h.ROLLUP}: sub\r\n")
        ends: list[int] = []
        for one in steps:
            assert one.schedule is not None or not one.plan.ticks
            batch += [batch_message(self._job(one.schedule, tick, now)) for tick in one.plan.ticks if one.schedule]
            batch.append(self._mark(queue, one))
            ends.append(len(batch))
        try:
            last = await self._batches.store(self._stream(queue), batch)
        except WrongLastSequence:
            return None
        return [
            one.mark._replace(sequence=last - len(batch) + end, written_at=now)
            for one, end in zip(steps, ends, strict=True)
            if last
        ] or None

    async def forget(self, queue: str, mark: Mark) -> None:
        """Remove a mark, if it still stands."""
        await delete_message(self._connection, self._stream(queue), mark.sequence, erase=False)

    def check_size(self, schedule: Schedule) -> None:
        """JobTooLarge unless a message holds a tick of it."""
        self._job(schedule, Tick(schedule.since, schedule.since), schedule.since)

    def _job(self, schedule: Schedule, tick: Tick, now: datetime) -> Outgoing:
        due_at = tick.due.timestamp() if tick.due > now else None
        message = self._publisher.outgoing(tick_job(schedule, tick, now.timestamp()), due_at)
        # The server closes the connection over a message that is too large.
        self._publisher.check_size(message, self._connection.inline_limit)
        return message

    def _take_back(self, queue: str, tick: PlacedTick) -> BatchMessage:
        """Removes a tick, if it still stands."""
        headers = {
            h.SCHEDULER: tick.subject,
            h.SCHEDULE_NEXT: "purge",
            h.EXPECTED_LAST_SUBJECT_SEQ: str(tick.sequence),
            h.EXPECTED_LAST_SUBJECT: tick.subject,
        }
        return BatchMessage(self._names.schedule_mark(queue, TAKEN), b"", header_lines(headers))

    def _mark(self, queue: str, one: Step) -> BatchMessage:
        mark = one.mark
        record = {
            "revision": mark.revision,
            "planned_until": mark.planned_until.isoformat() if mark.planned_until is not None else None,
            "last": mark.last.isoformat() if mark.last is not None else None,
            "missed": mark.missed,
            "moved_to": mark.moved_to,
        }
        headers = {h.EXPECTED_LAST_SUBJECT_SEQ: str(mark.sequence), h.ROLLUP: "sub"}
        return BatchMessage(
            self._names.schedule_mark(queue, one.name), json.dumps(record).encode(), header_lines(headers)
        )

    def _stream(self, queue: str) -> str:
        return self._names.work_stream(queue)


def tick_job(schedule: Schedule, tick: Tick, now: float) -> Job:
    """The job of one tick. Its id is the same whoever makes it."""
    arguments = schedule.args
    if schedule.takes_scheduled_time:
        arguments = {**arguments, "scheduled_time": tick.scheduled_time.isoformat()}
    headers = {h.OF_SCHEDULE: schedule.name, h.SCHEDULED_TIME: tick.scheduled_time.isoformat()}
    if schedule.secret:
        headers[h.SECRET] = schedule.secret
    if schedule.overlap == "skip":
        headers[h.OVERLAP] = schedule.overlap
    return Job(
        str(JobId(schedule.key, time_token(tick.scheduled_time))),
        schedule.task,
        schedule.queue,
        schedule.priority,
        json.dumps(arguments).encode(),
        schedule.key,
        run=new_run(),
        enqueued_at=now,
        due_at=tick.due.timestamp(),
        headers=headers,
    )


def portion(schedule: Schedule) -> int:
    """How many ticks of it one batch takes."""
    return max(1, BATCH_BYTES // (len(json.dumps(schedule.args)) + 1024))


def batches(steps: Sequence[Step]) -> list[list[Step]]:
    """In portions that one batch takes."""
    portions: list[list[Step]] = [[]]
    count = size = 0
    for one in steps:
        messages = len(one.taken) + len(one.plan.ticks) + 1
        bytes_ = messages * (len(json.dumps(one.schedule.args if one.schedule else {})) + 1024)
        if portions[-1] and (count + messages > BATCH_SIZE or size + bytes_ > BATCH_BYTES):
            portions.append([])
            count = size = 0
        portions[-1].append(one)
        count, size = count + messages, size + bytes_
    return portions


async def _of_each(
    queues: Iterable[str], read: Callable[[str], Awaitable[_T]]
) -> tuple[dict[str, _T], dict[str, BrokerError]]:
    found: dict[str, _T] = {}
    failed: dict[str, BrokerError] = {}

    async def one(queue: str) -> None:
        try:
            found[queue] = await read(queue)
        except BrokerError as error:
            failed[queue] = error

    await asyncio.gather(*(one(queue) for queue in queues))
    return found, failed


def _read(message: StoredMessage) -> Mark:
    record = read_record(message.data)
    standing = Mark(sequence=message.sequence, written_at=datetime.fromtimestamp(message.stored_at, UTC))
    try:
        moved_to = record.get("moved_to")
        return standing._replace(
            revision=int(record["revision"]),
            planned_until=_moment(record["planned_until"]),
            last=_moment(record["last"]) if record.get("last") else None,
            missed=int(record.get("missed", 0)),
            moved_to=None if moved_to is None else str(moved_to),
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return standing  # written by hand: the leader writes over it


def _waiting(message: StoredMessage) -> PlacedTick | None:
    """None for what is no tick."""
    scheduled_time = time_of_token(last_token(message.subject))
    if scheduled_time is None:
        return None
    due = scheduled_time
    with contextlib.suppress(ValueError, OverflowError):
        due = max(scheduled_time, _moment(message.headers.get(h.SCHEDULE, "").removeprefix("@at ")))
    return PlacedTick(scheduled_time, due, message.subject, message.sequence)


def _moment(text: object) -> datetime:
    moment = datetime.fromisoformat(str(text))
    if moment.utcoffset() is None:
        raise ValueError("has no time zone")
    return moment.astimezone(UTC)
