"""Ticks of schedules in the work streams: each placed together with the marker that says so, or not at all.

The marker of a schedule tells how far it has been planned. A tick and its marker are one atomic batch, in which
the marker expects the one before it: of two leaders who plan the same slot one is refused, even after a restart of
the server has forgotten every message id. Ticks of many schedules share a batch; if one marker is not as expected
the batch is refused whole, and each is tried by itself.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.protocol import header_lines
from jetjobs.jetstream.publisher import BATCH_SIZE, Outgoing, Publisher, Staged, Taken, stage
from jetjobs.jetstream.reads import StoredMessage, delete_message, last_on
from jetjobs.jetstream.results import read_record
from jetjobs.jetstream.scan import scan
from jetjobs.model import names as n
from jetjobs.model.ids import JobId, new_run
from jetjobs.model.job import Job
from jetjobs.model.names import Names
from jetjobs.model.planning import Plan, Progress, Tick, carried_on
from jetjobs.model.schedule import Schedule, schedule_key, slot_token

BATCH_BYTES = 4 * 1024 * 1024
NOW_S = 0.25
"""What is due within this is put into its lane at once: the clock would be later."""


class Marker(NamedTuple):
    """How far a schedule has been planned, as it stands in the work stream of its queue."""

    progress: Progress | None
    """None where there is no marker, or one that cannot be read."""
    sequence: int
    """What the next marker must expect; 0 for none."""
    token: str = ""
    """Of the placing that wrote it."""
    written_at: float = 0.0

    gone: bool = False
    """Of a schedule that is no more, in this queue."""

    @property
    def generation(self) -> str:
        """Of the definition it was written for; empty where there is none."""
        return self.progress.generation if self.progress is not None else ""


class Placing(NamedTuple):
    """What is to be placed for one schedule, over the marker that was read."""

    schedule: Schedule
    plan: Plan
    marker: Marker


class Ticks:
    """The ticks and markers of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names

    # Markers

    async def marker(self, queue: str, schedule: str) -> Marker:
        """From the stream's leader. TopologyMissing when there is no such queue."""
        message = await last_on(self._connection, self._stream(queue), self._names.tick(queue, schedule))
        return _read(message) if message is not None else Marker(None, 0)

    async def markers(self, queue: str) -> dict[str, Marker]:
        """All of a queue, by the name of the schedule: as they were a moment ago."""
        found: dict[str, Marker] = {}
        async for message in scan(self._connection, self._stream(queue), self._names.tick(queue, "*")):
            name = message.subject.rsplit(".", 1)[1]
            if not name.startswith("_"):
                found[name] = _read(message)
        return found

    async def forget(self, queue: str, marker: Marker) -> None:
        """Take away the marker of a schedule that is no more."""
        await delete_message(self._connection, self._stream(queue), marker.sequence, erase=False)

    # Placing

    async def place(self, placings: Sequence[Placing], now: float, term: int) -> list[Marker | None]:
        """Place them, all of one queue; the new marker of each, or None where another was there: read it again.

        Unconfirmed when it is not known, else BrokerError; JobTooLarge before anything is sent.
        """
        queue = placings[0].schedule.queue
        batch: list[Staged] = []
        ends: list[tuple[int, str]] = []
        for one in placings:
            token = new_run()
            batch += [stage(self._job(one.schedule, tick, now)) for tick in one.plan.ticks]
            batch.append(self._marker(one, token, term))
            ends.append((len(batch), token))
        try:
            last = await self._publisher.store_batch(self._stream(queue), batch)
        except Taken:
            last = 0
        if last:
            return [
                Marker(_settled(one), last - len(batch) + end, token, now)
                for one, (end, token) in zip(placings, ends, strict=True)
            ]
        # Refused, or stored and the answer lost: the markers know.
        there = [await self.marker(queue, one.schedule.name) for one in placings]
        stored = [mark if mark.token == token else None for mark, (_, token) in zip(there, ends, strict=True)]
        if any(stored) or len(placings) == 1:
            return stored
        return [(await self.place([one], now, term))[0] for one in placings]

    def _job(self, schedule: Schedule, tick: Tick, now: float) -> Outgoing:
        due_at = tick.due.timestamp()
        message = self._publisher.outgoing(tick_job(schedule, tick, now), due_at if due_at > now + NOW_S else None)
        assert isinstance(message.headers, dict)
        message.headers[n.GENERATION] = schedule.generation
        # The server closes the connection over a message that is too large.
        self._publisher.check_size(message, self._connection.inline_limit)
        return message

    def _marker(self, one: Placing, token: str, term: int) -> Staged:
        settled = _settled(one)
        record = {
            "slot": settled.slot.isoformat(),
            "generation": settled.generation,
            "missed": settled.missed,
            "passed": settled.passed.isoformat() if settled.passed is not None else None,
            "token": token,
            "term": term,
        }
        return self._staged_marker(one.schedule.queue, one.schedule.name, record, one.marker.sequence)

    def _staged_marker(self, queue: str, name: str, record: dict[str, object], expected: int) -> Staged:
        headers = {n.EXPECTED_LAST_SUBJECT_SEQ: str(expected), n.ROLLUP: "sub"}
        return Staged(self._names.tick(queue, name), json.dumps(record).encode(), header_lines(headers))

    def check_size(self, schedule: Schedule) -> None:
        """JobTooLarge unless a message holds a tick of it."""
        self._job(schedule, Tick(schedule.since, schedule.since), 0.0)

    # Taking back

    async def take_back(
        self, queue: str, name: str, generation: str, since: datetime, *, idle: bool = False, gone: bool = False
    ) -> int:
        """Older generations of the schedule may place no more ticks in this queue, and what they have placed for
        after `since` is removed; how many. `idle`: nothing is to be planned for the new one, so what is due and
        has not fired is removed too. `gone`: the marker may be forgotten some time.

        Whoever is late with it changes nothing: a marker or tick of a newer generation is left alone."""
        while (marker := await self.marker(queue, name)).generation < generation:
            before = marker.progress
            record = {
                "slot": (since if idle else carried_on(before, since)).isoformat(),
                "generation": generation,
                "missed": before.missed if before is not None else 0,
                "idle": idle or gone,
                "gone": gone,
            }
            staged = self._staged_marker(queue, name, record, marker.sequence)
            # Refused when a leader has placed ticks meanwhile: then with what it wrote.
            with contextlib.suppress(Taken):
                await self._publisher.store_batch(self._stream(queue), [staged])
        removed = 0
        for subject in await self._subjects(queue, self._names.planned(queue, schedule_key(name))):
            message = await last_on(self._connection, self._stream(queue), subject)
            # A tick that is retried has no generation any more: it has fired long ago.
            if message is None or message.headers.get(n.GENERATION, generation) >= generation:
                continue
            # A slot before the change is none of the new generation's: its tick stays, or it would be lost.
            if idle or subject.rsplit(".", 1)[1] > slot_token(since):
                stream = self._stream(queue)
                removed += await delete_message(self._connection, stream, message.sequence, erase=False)
        return removed

    async def earlier(self, job: Job) -> bool:
        """Whether a job of the same schedule is alive whose slot is before that of this one."""
        subjects = await self._subjects(job.queue, self._names.key_anywhere(job.queue, job.task, job.key))
        return any(subject.rsplit(".", 1)[1] < job.uid for subject in subjects)

    async def _subjects(self, queue: str, filter_: str) -> list[str]:
        info = await self._connection.api(f"STREAM.INFO.{self._stream(queue)}", {"subjects_filter": filter_})
        return sorted(info["state"].get("subjects") or {})

    def _stream(self, queue: str) -> str:
        return self._names.work_stream(queue)


def tick_job(schedule: Schedule, tick: Tick, now: float) -> Job:
    """The job of one tick. Its id is the same whoever makes it."""
    arguments = schedule.args
    if schedule.takes_slot:
        arguments = {**arguments, "slot": tick.slot.isoformat()}
    headers = {**schedule.headers, n.OF_SCHEDULE: schedule.name, n.SLOT: tick.slot.isoformat()}
    if schedule.overlap == "skip":
        headers[n.OVERLAP] = schedule.overlap
    return Job(
        str(JobId(schedule.key, slot_token(tick.slot))),
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


def batches(placings: Sequence[Placing]) -> list[list[Placing]]:
    """In portions that one batch takes."""
    portions: list[list[Placing]] = [[]]
    count = size = 0
    for one in placings:
        messages = len(one.plan.ticks) + 1
        bytes_ = messages * (len(json.dumps(one.schedule.args)) + 1024)
        if portions[-1] and (count + messages > BATCH_SIZE or size + bytes_ > BATCH_BYTES):
            portions.append([])
            count = size = 0
        portions[-1].append(one)
        count, size = count + messages, size + bytes_
    return portions


def _settled(one: Placing) -> Progress:
    before = one.marker.progress
    missed = before.missed if before is not None else 0
    upto = one.plan.upto
    assert upto is not None  # nothing is placed otherwise
    passed = one.plan.passed or (before.passed if before is not None else None)
    return Progress(upto, one.schedule.generation, missed + one.plan.missed, passed)


def _read(message: StoredMessage) -> Marker:
    record = read_record(message.data)
    progress: Progress | None = None
    try:
        passed = _moment(record["passed"]) if record.get("passed") else None
        missed, idle = int(record.get("missed", 0)), bool(record.get("idle"))
        progress = Progress(_moment(record["slot"]), str(record["generation"]), missed, passed, idle)
    except (KeyError, ValueError, TypeError, OverflowError):
        pass  # written by hand: the next placing writes over it
    gone = bool(record.get("gone"))
    return Marker(progress, message.sequence, str(record.get("token", "")), message.stored_at, gone)


def _moment(text: object) -> datetime:
    return datetime.fromisoformat(str(text)).astimezone(UTC)
