"""Records of finished jobs: stored in the `done` buckets, and pushed to the inbox of the producer."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Mapping
from json.encoder import encode_basestring_ascii

from jetjobs.jetstream.messages.codec import header_number
from jetjobs.jetstream.messages.get import StoredMessage, last_on
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.nats_client import write_headers
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_json, read_record
from jetjobs.model.wire.subjects import Names, kv_stream, kv_subject

CANCELLED_TTL_S = 3600
"""How long the record of a cancelled job is kept. A process that cancels need not know the task's `result_ttl`."""
MAX_KEEP_S = 3650 * 86400
"""The longest time for which a job may have its record kept: ten years, the limit of `result_ttl`."""
FLOW_SPARE_S = 86400
"""How long the records and results of a flow's jobs are kept after its deadline."""
MARK_TTL_S = 86400
"""How long a cancel mark is kept: longer than a message of the job can reappear after a server failure."""
MAX_REPLY = 512
"""Longer subjects are ignored: one near the server's line limit of 4 KB would close the connection."""
# Only inboxes, so that a producer cannot make a worker publish elsewhere with the worker's permissions.
_INBOX = re.compile(r"_INBOX[\w-]*(\.[\w-]+)+", re.ASCII)


def success_record(
    job: Job,
    result: bytes | None,
    worker: str,
    started_at: float,
    ended_at: float,
    kept_as: str = "",
    secret: str = "",
    continued_as: bytes = b"",
) -> bytes:
    """The record of a success. Formatted without json.dumps, because this runs for every job.

    `kept_as` names the object with a result that is too large for the record. `secret` lists the secret fields.
    Without a result the record says that the task stores none. With `continued_as`, the result is a flow, which
    takes the place of the job.
    """
    kind = b"flow" if continued_as else b"result"
    replay = job.headers.get(h.REPLAY)
    return (
        b'{"state":"succeeded","id":%b,"run":%b,"attempt":%d,"worker":%b,"enqueued_at":%.6f,'
        b'"started_at":%.6f,"ended_at":%.6f,%b"%b":%b}'
    ) % (
        quote(job.id),
        quote(job.run),
        job.attempt,
        quote(worker),
        job.enqueued_at,
        started_at,
        ended_at,
        (b'"replay":%b,' % _embedded(replay) if replay else b"")
        + (_tick(job.headers) if h.OF_SCHEDULE in job.headers else b"")
        + (_line(job.headers) if h.PARENT in job.headers else b"")
        + (b'"secret":%b,' % quote(secret) if secret else b"")
        + (b'"continued_as":%b,' % continued_as if continued_as else b""),
        kind + b"_object" if kept_as else kind if result is not None else b"result_stored",
        quote(kept_as) if kept_as else result if result is not None else b"false",
    )


def cancelled_record(
    job: Job, by: str, why: str, worker: str, started_at: float, ended_at: float, how: str = ""
) -> bytes:
    """The record of a cancelled job. `worker` is empty if no worker had it, `how` if it was not running."""
    record = {
        "state": "cancelled",
        "id": job.id,
        "run": job.run,
        "attempt": job.attempt,
        "worker": worker,
        "enqueued_at": job.enqueued_at,
        "started_at": started_at,
        "ended_at": ended_at,
        "by": by,
        "reason": why,
    }
    if how:
        record["how"] = how
    if h.OF_SCHEDULE in job.headers:
        record |= {"schedule": job.headers[h.OF_SCHEDULE], "scheduled_time": job.headers.get(h.SCHEDULED_TIME, "")}
    parent, root = lineage_of(job.headers)
    if parent:
        record |= {"parent": parent, "root": root}
    return json.dumps(record).encode()


def kept_s(job: Job, ttl_s: int, now: float) -> int:
    """How long the record of the job is kept: `ttl_s`, or longer if the job requests that. That of a job of a flow
    is kept for longer than the flow can last, because a redelivery continues the flow from it."""
    wanted_s: float = header_number(job.headers, h.KEEP, 0)
    if h.FLOW_DEADLINE in job.headers:
        wanted_s = max(wanted_s, header_number(job.headers, h.FLOW_DEADLINE, 0.0) + FLOW_SPARE_S - now)
    return max(ttl_s, min(math.ceil(wanted_s), MAX_KEEP_S))


def cancelled_ttl_s(job: Job, now: float) -> int:
    """How long the record of a cancelled job is kept. One that may be sent again with the same id and run keeps it
    as long as its cancel mark, which would cancel it again."""
    return kept_s(job, MARK_TTL_S if h.KEEP in job.headers else CANCELLED_TTL_S, now)


def _tick(headers: Mapping[str, str]) -> bytes:
    """The schedule and scheduled time of the job."""
    return b'"schedule":%b,"scheduled_time":%b,' % (
        quote(headers[h.OF_SCHEDULE]),
        quote(headers.get(h.SCHEDULED_TIME, "")),
    )


def _line(headers: Mapping[str, str]) -> bytes:
    """The job that enqueued it, and the root of that chain."""
    parent, root = lineage_of(headers)
    return b'"parent":%b,"root":%b,' % (quote(parent), quote(root)) if parent and root else b""


def _embedded(text: str) -> bytes:
    """JSON from a header, checked, because a job published without jetjobs may contain anything."""
    try:
        return json.dumps(read_json(text)).encode()
    except (ValueError, RecursionError):  # RecursionError is raised by json.dumps
        return b"null"


def quote(text: str) -> bytes:
    """A JSON string."""
    return encode_basestring_ascii(text).encode()


class Results:
    """The `done` buckets, one per queue."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._places: dict[str, tuple[str, str]] = {}

    async def put(self, job: Job, record: bytes, ttl_s: int, timeout_s: float, owned: Callable[[], bool]) -> bytes:
        """Store the record, unless the run has one. Returns the record that is stored, confirmed."""
        stream, prefix = self._places.get(job.queue) or self._place(job.queue)
        subject = f"{prefix}{job.task}.{job.id}"
        headers = _first(ttl_s)
        while True:
            try:
                await self._publisher.store(
                    stream, Outgoing(subject, record, headers), timeout_s=timeout_s, owned=owned
                )
                return record
            except WrongLastSequence:
                there = await last_on(self._connection, stream, subject)
                if there is not None and read_record(there.data).get("run") == job.run:
                    return there.data
                # The record of an earlier run of this id: replace it, unless it has changed since it was read.
                headers = _guard(ttl_s, there.sequence if there is not None else 0)

    def _place(self, queue: str) -> tuple[str, str]:
        bucket = self._names.done_bucket(queue)
        self._places[queue] = place = (kv_stream(bucket), kv_subject(bucket, ""))
        return place

    async def get(self, queue: str, task: str, job_id: str) -> StoredMessage | None:
        bucket = self._names.done_bucket(queue)
        return await last_on(self._connection, kv_stream(bucket), kv_subject(bucket, f"{task}.{job_id}"))

    def notify_producer(self, job: Job, record: bytes) -> None:
        """Push the record to the inbox of the producer. It may be lost: the bucket is authoritative."""
        if (
            len(job.reply) <= MAX_REPLY
            and _INBOX.fullmatch(job.reply)
            and len(record) <= self._connection.max_payload
        ):
            self._connection.post(job.reply, record)


@functools.lru_cache(256)  # bounded, because the headers of a job may choose the time
def _first(ttl_s: int) -> bytes:
    """The headers of the first record of an id."""
    return _guard(ttl_s, 0)


def _guard(ttl_s: int, expected: int) -> bytes:
    return write_headers({h.TTL: f"{ttl_s}s", h.EXPECTED_LAST_SUBJECT_SEQ: str(expected)})
