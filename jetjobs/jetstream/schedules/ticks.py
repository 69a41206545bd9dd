"""Place and remove the ticks of schedules in work streams, each atomically with the mark that records it.

The mark of a schedule records how far it is planned, and by which revision of its definition. Ticks that are
placed or removed and their mark form one atomic batch, in which the mark expects the previous one. If two leaders
do the same, one is refused, even if a restart of the server has lost the message ids.
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
REMOVALS = "_taken"
"""In place of a schedule's name: the subject of the messages that remove ticks."""


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
        """Read from the leader of the stream. TopologyMissing when the queue does not exist."""
        message = await last_on(self._connection, self._stream(queue), self._names.schedule_mark(queue, schedule))
        return _read(message) if message is not None else Mark()

    async def marks_of(
        self, schedule: str, queues: Iterable[str]
    ) -> tuple[dict[str, Mark], dict[str, BrokerError]]:
        """The marks of one schedule by queue, read from the leaders, and the errors of unreadable queues."""
        found, failed = await _of_each(queues, lambda queue: self.mark(queue, schedule))
        return {queue: mark for queue, mark in found.items() if mark.sequence}, failed

    async def all_marks(self, queues: Iterable[str]) -> tuple[dict[str, dict[str, Mark]], dict[str, BrokerError]]:
        """All marks by queue and schedule, and the errors of unreadable queues. May be slightly old."""
        return await _of_each(queues, self.marks)

    async def marks(self, queue: str) -> dict[str, Mark]:
        """All marks of a queue by schedule. May be slightly old."""
        found: dict[str, Mark] = {}
        async for message in scan(self._connection, self._stream(queue), self._names.schedule_mark(queue, "*")):
            name = last_token(message.subject)
            if name != REMOVALS:
                found[name] = _read(message)
        return found

    async def waiting(self, queue: str, schedule: str) -> tuple[list[PlacedTick], datetime]:
        """The ticks of a schedule that have not fired, and the time of the leader of the stream. The time is read
        after the ticks, so no tick that is due later can have fired without being seen."""
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
        """Matching subjects with messages, read from the leader of the stream."""
        info = await self._connection.api(api.stream_info(self._stream(queue)), {"subjects_filter": pattern})
        return sorted(info["state"].get("subjects") or {})

    # Writing

    async def store(self, queue: str, steps: Sequence[Step], now: datetime) -> list[Mark] | None:
        """Carry out all steps or none, and return the new marks. None when a mark or tick has changed since it was
        read, or when the answer was lost: read them again.

        Unconfirmed when the result is unknown, otherwise BrokerError; JobTooLarge before anything is sent.
        """
        batch = [self._removal(queue, tick) for one in steps for tick in one.taken]
        if batch:
            # Also deletes the removal messages of earlier batches.
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
        """Remove a mark if it still exists."""
        await delete_message(self._connection, self._stream(queue), mark.sequence, erase=False)

    def check_size(self, schedule: Schedule) -> None:
        """JobTooLarge if a tick of the schedule does not fit into a message."""
        self._job(schedule, Tick(schedule.since, schedule.since), schedule.since)

    def _job(self, schedule: Schedule, tick: Tick, now: datetime) -> Outgoing:
        due_at = tick.due.timestamp() if tick.due > now else None
        message = self._publisher.outgoing(tick_job(schedule, tick, now.timestamp()), due_at)
        # The server closes the connection when a message is too large.
        self._publisher.check_size(message, self._connection.inline_limit)
        return message

    def _removal(self, queue: str, tick: PlacedTick) -> BatchMessage:
        """A message that removes a tick if it still exists."""
        headers = {
            h.SCHEDULER: tick.subject,
            h.SCHEDULE_NEXT: "purge",
            h.EXPECTED_LAST_SUBJECT_SEQ: str(tick.sequence),
            h.EXPECTED_LAST_SUBJECT: tick.subject,
        }
        return BatchMessage(self._names.schedule_mark(queue, REMOVALS), b"", header_lines(headers))

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
    """The job of one tick. Its id depends only on the schedule and the scheduled time."""
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
    """How many ticks of the schedule fit into one batch."""
    return max(1, BATCH_BYTES // (len(json.dumps(schedule.args)) + 1024))


def batches(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps, grouped so that each group fits into one batch."""
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
    mark = Mark(sequence=message.sequence, written_at=datetime.fromtimestamp(message.stored_at, UTC))
    try:
        moved_to = record.get("moved_to")
        return mark._replace(
            revision=int(record["revision"]),
            planned_until=_moment(record["planned_until"]),
            last=_moment(record["last"]) if record.get("last") else None,
            missed=int(record.get("missed", 0)),
            moved_to=None if moved_to is None else str(moved_to),
        )
    except (KeyError, ValueError, TypeError, OverflowError):
        return mark  # invalid: the leader replaces it


def _waiting(message: StoredMessage) -> PlacedTick | None:
    """None if the message is not a tick."""
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
        raise ValueError("the time has no time zone")
    return moment.astimezone(UTC)
