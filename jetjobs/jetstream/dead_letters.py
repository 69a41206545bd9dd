"""The dead-letter stream: a job that will not run again by itself, whole, with its cause."""

from __future__ import annotations

import json
from typing import Any

from jetjobs.jetstream.codec import encode_headers, header_size
from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.payloads import Payloads
from jetjobs.jetstream.publisher import Outgoing, Publisher, Taken
from jetjobs.jetstream.reads import StoredMessage, last_on
from jetjobs.model import names as n
from jetjobs.model.ids import is_id
from jetjobs.model.job import Job
from jetjobs.model.names import Names
from jetjobs.model.outcome import DeadLettered

_CAUSE_ROOM = 48 * 1024


class DeadLetters:
    """The dead stream of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, payloads: Payloads, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._payloads = payloads
        self._names = names

    async def add(
        self, job: Job, outcome: DeadLettered, origin: str, worker: str, now: float, timeout_s: float
    ) -> None:
        """Bury `job`. Exactly one letter a run, whatever is repeated; an earlier life's is written over."""
        subject, body, headers = await self._letter(job, outcome, origin, worker, now)
        stream = self._names.dead_stream
        expected = 0
        while True:
            headers[n.EXPECTED_LAST_SUBJECT_SEQ] = str(expected)
            try:
                await self._publisher.store(stream, Outgoing(subject, body, headers), timeout_s=timeout_s)
                return
            except Taken:
                there = await last_on(self._connection, stream, subject)
                if there is not None and there.headers.get(n.RUN) == job.run:
                    return
                expected = there.sequence if there is not None else 0

    async def get(self, queue: str, task: str, job_id: str) -> StoredMessage | None:
        return await last_on(self._connection, self._names.dead_stream, self._names.dead(queue, task, job_id))

    async def _letter(
        self, job: Job, outcome: DeadLettered, origin: str, worker: str, now: float
    ) -> tuple[str, bytes, dict[str, str]]:
        headers = encode_headers(job)
        del headers[n.MSG_ID]  # the guard on the subject does its work, with no window
        headers[n.SOURCE] = origin
        if header_size(headers) > _CAUSE_ROOM:
            headers.pop(n.ERRORS, None)
        body = job.body
        room = self._connection.max_payload - header_size(headers) - len(body)
        cause = _cause(outcome, worker, now, min(room - 2048, HEADER_LIMIT - header_size(headers)))
        if room < len(cause) + 2048:
            # Not even a bare cause fits beside this body: keep it whole, in the object store.
            headers[n.PAYLOAD] = job.id
            await self._payloads.put(job.id, body)
            body = b""
        headers[n.CAUSE] = cause
        subject = self._names.dead(job.queue, _token(job.task), job.id)
        return subject, body, headers


HEADER_LIMIT = 60 * 1024
"""The server takes 64 KB of headers."""


def read_cause(headers: dict[str, str]) -> dict[str, Any]:
    """Reason, error type, text, traceback, worker and time of a dead letter."""
    try:
        cause = json.loads(headers.get(n.CAUSE, "{}"))
    except ValueError:
        return {}
    return cause if isinstance(cause, dict) else {}


def _cause(outcome: DeadLettered, worker: str, now: float, room: int) -> str:
    """The cause as one header value; the traceback is the first thing to go, then the text."""
    cause = {
        "reason": str(outcome.reason),
        "type": outcome.error.type,
        "text": outcome.error.text,
        "traceback": outcome.error.traceback,
        "worker": worker,
        "at": round(now, 6),
    }
    for cut, length in (("", 0), ("traceback", 1000), ("traceback", 0), ("text", 200), ("type", 100)):
        if cut:
            cause[cut] = str(cause[cut])[:length]
        line = json.dumps(cause, separators=(",", ":"))
        if len(line) <= room:
            break
    return line


def _token(task: str) -> str:
    # A hand-made subject may hold anything as its task; the dead letter's own subject must stay readable.
    return task if is_id(task) else "unknown"
