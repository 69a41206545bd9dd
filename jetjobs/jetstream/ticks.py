"""Ticks of schedules in the work streams: each placed together with the marker that says so, or not at all.

The marker of a schedule tells how far it has been planned. A tick and its marker are one atomic batch, in which
the marker expects the one before it: of two leaders who plan the same slot one is refused, even after a restart of
the server has forgotten every message id. Ticks of many schedules share a batch; if one marker is not as expected
the batch is refused whole, and each is tried by itself.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.protocol import header_lines
from jetjobs.jetstream.publisher import BATCH_SIZE, Outgoing, Publisher, Staged, Taken, stage
from jetjobs.jetstream.reads import StoredMessage, delete_message, last_on, parse_time
from jetjobs.jetstream.results import read_record
from jetjobs.jetstream.scan import scan
from jetjobs.jetstream.topology import queues_on
from jetjobs.model import names as n
from jetjobs.model.ids import JobId, new_run
from jetjobs.model.job import Job
from jetjobs.model.names import Names
from jetjobs.model.planning import Change, Plan, Progress, Tick
from jetjobs.model.schedule import Schedule, is_generation, slot_token

BATCH_BYTES = 4 * 1024 * 1024
TAKEN = "_taken"
"""In the place of a schedule's name: where the messages go by which ticks are taken back."""


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

    async def marked(self, schedule: str) -> tuple[str, ...]:
        """The queues in which something of that schedule may be planned."""
        queues = await queues_on(self._connection, self._names)
        markers = await asyncio.gather(*(self.marker(queue, schedule) for queue in queues))
        return tuple(queue for queue, marker in zip(queues, markers, strict=True) if marker.sequence)

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
        message = self._publisher.outgoing(tick_job(schedule, tick, now), due_at if due_at > now else None)
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
            "since": settled.since.isoformat() if settled.since is not None else None,
            "token": token,
            "term": term,
        }
        return self._staged_marker(one.schedule.queue, one.schedule.name, record, one.marker.sequence)

    async def change(
        self,
        queue: str,
        schedule: Schedule,
        change: Change,
        over: Marker,
        *,
        taken: Sequence[StoredMessage],
        gone: bool,
        now: float,
    ) -> bool:
        """Let the generation of `schedule` begin in a queue, or end what was there before it: its first ticks, the
        last ones of the definition before, the marker over the one that was read, and `taken` back. All or none:
        False when one of those has fired meanwhile, or another marker stands there. Then look again."""
        before, opening = schedule.predecessor, change.opening
        batch = [self._take_back(queue, message, first=number == 0) for number, message in enumerate(taken)]
        batch += [stage(self._job(before, tick, now)) for tick in change.closing if before is not None]
        batch += [stage(self._job(schedule, tick, now)) for tick in opening.ticks]
        record: dict[str, object] = {
            "slot": (opening.upto or change.since).isoformat(),
            "generation": schedule.generation,
            "missed": change.missed,
            "passed": change.passed.isoformat() if change.passed is not None else None,
            "since": change.since.isoformat(),
            "idle": gone or schedule.paused,
            "gone": gone,
            "token": new_run(),
        }
        batch.append(self._staged_marker(queue, schedule.name, record, over.sequence))
        try:
            await self._publisher.store_batch(self._stream(queue), batch)
        except Taken:
            return False
        return True

    @property
    def takes_back(self) -> bool:
        """Whether the server removes ticks as a batch says. Those before 2.14 do not, and refuse the guards."""
        version = self._connection.nc.connected_server_version
        return (version.major, version.minor) >= (2, 14)

    def _take_back(self, queue: str, message: StoredMessage, *, first: bool) -> Staged:
        """Removes a tick as it is stored, if that still stands there. The first does so with those
        messages of the change before: nobody needs them any more."""
        headers = {
            n.SCHEDULER: message.subject,
            n.SCHEDULE_NEXT: "purge",
            n.EXPECTED_LAST_SUBJECT_SEQ: str(message.sequence),
            n.EXPECTED_LAST_SUBJECT: message.subject,
        }
        if first:
            headers[n.ROLLUP] = "sub"
        return Staged(self._names.tick(queue, TAKEN), b"", header_lines(headers))

    def _staged_marker(self, queue: str, name: str, record: dict[str, object], expected: int) -> Staged:
        headers = {n.EXPECTED_LAST_SUBJECT_SEQ: str(expected), n.ROLLUP: "sub"}
        return Staged(self._names.tick(queue, name), json.dumps(record).encode(), header_lines(headers))

    def check_size(self, schedule: Schedule) -> None:
        """JobTooLarge unless a message holds a tick of it."""
        self._job(schedule, Tick(schedule.since, schedule.since), 0.0)

    # Looking

    async def earlier(self, job: Job) -> bool:
        """Whether a job of the same schedule is alive in its queue whose slot is before that of this one."""
        pattern = self._names.job(job.queue, "*", "*", job.key, "*")
        for subject in await self.subjects(job.queue, pattern):
            lane, uid = subject.split(".")[3], subject.rsplit(".", 1)[1]
            if uid < job.uid and (lane != n.LATER or await self._has_fired(job.queue, subject)):
                return True
        return False

    async def _has_fired(self, queue: str, subject: str) -> bool:
        """Whether what waits in lane `later` is a retry, and not a tick whose jitter is not over."""
        message = await last_on(self._connection, self._stream(queue), subject)
        return message is not None and n.GENERATION not in message.headers

    async def planned(self, queue: str, key: str, after: str = "") -> list[StoredMessage]:
        """The ticks of that key in lane `later`, of slots after that token. One that is retried is none: it has
        fired long ago, and carries no generation any more."""
        found = []
        for subject in await self.subjects(queue, self._names.planned(queue, key)):
            if subject.rsplit(".", 1)[1] > after:
                message = await last_on(self._connection, self._stream(queue), subject)
                if message is not None and n.GENERATION in message.headers:
                    found.append(message)
        return found

    async def remove(self, queue: str, message: StoredMessage) -> None:
        await delete_message(self._connection, self._stream(queue), message.sequence, erase=False)

    async def now(self, queue: str) -> datetime:
        """By the clock of the stream's leader, asked this moment. TopologyMissing when there is no such queue."""
        info = await self._connection.api(f"STREAM.INFO.{self._stream(queue)}")
        return datetime.fromtimestamp(parse_time(info["ts"]), UTC)

    async def subjects(self, queue: str, pattern: str) -> list[str]:
        """Those that match and hold a message, by the stream's leader."""
        info = await self._connection.api(f"STREAM.INFO.{self._stream(queue)}", {"subjects_filter": pattern})
        return sorted(info["state"].get("subjects") or {})

    def _stream(self, queue: str) -> str:
        return self._names.work_stream(queue)


def tick_job(schedule: Schedule, tick: Tick, now: float) -> Job:
    """The job of one tick. Its id is the same whoever makes it."""
    arguments = schedule.args
    if schedule.takes_slot:
        arguments = {**arguments, "slot": tick.slot.isoformat()}
    headers = {n.OF_SCHEDULE: schedule.name, n.SLOT: tick.slot.isoformat()}
    if schedule.secret:
        headers[n.SECRET] = schedule.secret
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


def portion(schedule: Schedule) -> int:
    """How many ticks of it one batch takes."""
    return max(1, BATCH_BYTES // (len(json.dumps(schedule.args)) + 1024))


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
    assert one.plan.upto is not None  # nothing is placed otherwise
    before = one.marker.progress
    if before is None:
        return Progress(one.plan.upto, one.schedule.generation, one.plan.missed, one.plan.passed)
    missed, passed = before.missed + one.plan.missed, one.plan.passed or before.passed
    return before._replace(slot=one.plan.upto, generation=one.schedule.generation, missed=missed, passed=passed)


def _read(message: StoredMessage) -> Marker:
    record = read_record(message.data)
    token = str(record.get("token", ""))
    progress = None
    try:
        if is_generation(generation := str(record["generation"])):
            progress = Progress(
                _moment(record["slot"]),
                generation,
                int(record.get("missed", 0)),
                _moment(record["passed"]) if record.get("passed") else None,
                bool(record.get("idle")),
                _moment(record["since"]) if record.get("since") else None,
            )
    except (KeyError, ValueError, TypeError, OverflowError):
        progress = None  # written by hand: whoever plans next writes over it
    return Marker(progress, message.sequence, token, message.stored_at, bool(record.get("gone")))


def _moment(text: object) -> datetime:
    return datetime.fromisoformat(str(text)).astimezone(UTC)
