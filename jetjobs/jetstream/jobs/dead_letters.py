"""The dead-letter stream: complete jobs that will not run again by themselves, each with its cause."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, NamedTuple

from jetjobs.jetstream.messages.codec import encode_headers, header_number, header_size, read_history, read_replays
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence, delete_message, last_on
from jetjobs.jetstream.messages.payloads import Payloads, labels_of
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered
from jetjobs.model.views.dead_letter import DeadLetter
from jetjobs.model.views.error_text import cut
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import is_id, new_uid
from jetjobs.model.wire.lenient_json import as_time, read_record
from jetjobs.model.wire.subjects import PRIORITIES, DeadSubject, Names

HEADER_LIMIT = 63 * 1024
"""The server accepts 64 KB of headers."""
CAUSE_ROOM = 24 * 1024


class NewDeadLetter(NamedTuple):
    """A job to store as a dead letter, and why."""

    job: Job
    outcome: DeadLettered
    origin: str
    """Subject and sequence of the delivered message."""
    worker: str
    at: float
    started_at: float = 0.0
    """When its last attempt began; 0 if none did, or if that is unknown."""


class DeadLetters:
    """The dead-letter stream of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, payloads: Payloads, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._payloads = payloads
        self._names = names

    async def add(self, letter: NewDeadLetter, timeout_s: float, owned: Callable[[], bool]) -> None:
        """Store a dead letter: one per run, even if this is repeated. That of an earlier run is replaced."""
        subject, body, headers = await self._write(letter)
        stream = self._names.dead_stream
        expected = 0
        while True:
            headers[h.EXPECTED_LAST_SUBJECT_SEQ] = str(expected)
            try:
                message = Outgoing(subject, body, headers)
                await self._publisher.store(stream, message, timeout_s=timeout_s, owned=owned)
                return
            except WrongLastSequence:
                there = await last_on(self._connection, stream, subject)
                if there is not None and there.headers.get(h.RUN) == letter.job.run:
                    return
                expected = there.sequence if there is not None else 0

    async def get(self, queue: str, task: str, job_id: str) -> StoredMessage | None:
        subject = self._names.dead(queue, _token(task), job_id)
        return await last_on(self._connection, self._names.dead_stream, subject)

    async def subjects_of(self, job_id: str, queue: str = "*", task: str = "*") -> Sequence[str]:
        """Subjects of the letters of that id. Several if jobs of several queues or tasks have it."""
        query = {"subjects_filter": self._names.dead(queue, task, job_id)}
        answer = await self._connection.api(api.stream_info(self._names.dead_stream), query)
        return sorted(answer["state"].get("subjects") or {})

    async def at(self, subject: str) -> StoredMessage | None:
        """The letter on a subject that `subjects_of` returned."""
        return await last_on(self._connection, self._names.dead_stream, subject)

    async def exists(self, sequence: int) -> bool:
        """Whether the letter still exists."""
        return sequence > 0 and await at_sequence(self._connection, self._names.dead_stream, sequence) is not None

    async def last_sequence(self) -> int:
        """The sequence of the newest letter that was ever stored."""
        return int((await self._connection.api(api.stream_info(self._names.dead_stream)))["state"]["last_seq"])

    def scan(self, queue: str, task: str, start: int = 1) -> AsyncIterator[StoredMessage]:
        """Letters in the order in which they were stored; `*` for any queue or task."""
        return scan(self._connection, self._names.dead_stream, self._names.dead(queue, task, "*"), start)

    async def remove(self, sequence: int, *, erase: bool = True) -> bool:
        """Delete this letter. False when it no longer exists. `erase` overwrites its bytes on disk."""
        return await delete_message(self._connection, self._names.dead_stream, sequence, erase=erase)

    async def restore(self, subject: str, body: bytes, headers: dict[str, str]) -> bool:
        """Store an exported letter again. False when there is a letter of that id already."""
        guarded = {**headers, h.EXPECTED_LAST_SUBJECT_SEQ: "0", h.MSG_ID: new_uid()}
        try:
            await self._publisher.store(self._names.dead_stream, Outgoing(subject, body, guarded))
        except WrongLastSequence:
            return False
        return True

    async def _write(self, letter: NewDeadLetter) -> tuple[str, bytes, dict[str, str]]:
        job = letter.job
        headers = encode_headers(job)
        del headers[h.MSG_ID]  # the guard on the subject replaces it, without a time window
        headers.pop(h.TRACEBACK, None)  # the cause has it
        headers[h.SOURCE] = letter.origin
        headers[h.LANE] = job.lane
        if header_size(headers) > HEADER_LIMIT - CAUSE_ROOM:
            # A job published without jetjobs may have too many headers to add the cause: store them as an object.
            name = n.headers_object(job.id, job.run)
            await self._payloads.put(name, json.dumps(dict(job.headers)).encode(), labels_of(job))
            headers = {h.SOURCE: letter.origin[:1000], h.RUN: job.run, h.PAYLOAD_HEADERS: name}
            if job.payload:
                headers[h.PAYLOAD] = job.payload
        body = job.body
        room = self._connection.max_payload - header_size(headers) - len(body)
        cause = _cause(letter, min(room - 1024, CAUSE_ROOM))
        if len(cause) + 1024 > room:
            # Not even a short cause fits beside this body: store the body as an object.
            if not job.payload:
                headers[h.PAYLOAD] = n.body_object(job.id, job.run)
                await self._payloads.put(headers[h.PAYLOAD], body, labels_of(job))
            body = b""
            cause = _cause(letter, CAUSE_ROOM)
        headers[h.CAUSE] = cause
        return self._names.dead(job.queue, _token(job.task), job.id), body, headers


def read_cause(headers: dict[str, str]) -> dict[str, Any]:
    """Reason, error type, text, traceback, worker and times of a dead letter."""
    return read_record(headers.get(h.CAUSE, "{}"))


def _cause(letter: NewDeadLetter, room: int) -> str:
    """The cause as one header value. To fit, first the traceback is cut, then the text."""
    error = letter.outcome.error
    cause = {
        "reason": str(letter.outcome.reason),
        "type": error.type,
        "text": error.text,
        "traceback": error.traceback,
        "worker": letter.worker,
        "at": round(letter.at, 6),
    }
    if letter.started_at:
        cause["started_at"] = round(letter.started_at, 6)
    for key, length in (("", 0), ("traceback", 1000), ("traceback", 0), ("text", 200), ("type", 100)):
        if key:
            cause[key] = cut(str(cause[key]), length) if key == "traceback" else str(cause[key])[:length]
        line = json.dumps(cause, separators=(",", ":"))
        if len(line) <= room:
            break
    return line


def _token(task: str) -> str:
    # The task in a subject published without jetjobs may be invalid in the subject of a letter.
    return task if is_id(task) else "unknown"


def read_letter(message: StoredMessage) -> DeadLetter:
    """The letter in a message of the dead-letter stream. Missing or invalid fields are empty."""
    _, queue, task, job_id = DeadSubject.parse(message.subject)
    # Headers that were instructions to the server are not part of the job.
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    cause = read_cause(headers)
    lane = headers.get(h.LANE, "")
    count, replays = read_replays(headers)
    return DeadLetter(
        job_id,
        queue,
        task,
        lane if lane in PRIORITIES else "normal",
        str(cause.get("reason", "")),
        str(cause.get("type", "")),
        str(cause.get("text", "")),
        str(cause.get("traceback", "")),
        str(cause.get("worker", "")),
        as_time(cause.get("at")) or as_time(message.stored_at),
        as_time(header_number(headers, h.ENQUEUED_AT, 0)),
        int(header_number(headers, h.ATTEMPT, 1)) or 1,
        message.data,
        tuple(read_history(headers)),
        replays,
        headers.get(h.RUN, ""),
        message.sequence,
        headers.get(h.PAYLOAD, ""),
        headers,
        count,
    )
