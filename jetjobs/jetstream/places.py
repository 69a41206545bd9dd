"""Where a job stands: its state is the place it is found in, asked of the streams themselves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.dead_letters import DeadLetters, read_cause
from jetjobs.jetstream.payloads import Payloads
from jetjobs.jetstream.publisher import Outgoing, Publisher
from jetjobs.jetstream.reads import StoredMessage, last_on
from jetjobs.jetstream.results import Results, read_record
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError, TopologyMissing
from jetjobs.model.ids import parse_id
from jetjobs.model.job import Job, JobState, JobStatus, at
from jetjobs.model.names import Names, kv_stream, kv_subject


class Places:
    """Looks a job up in the streams and buckets of its queue."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        results: Results,
        dead: DeadLetters,
        payloads: Payloads,
        names: Names,
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._results = results
        self._dead = dead
        self._payloads = payloads
        self._names = names

    async def has_moved_on(self, job: Job) -> bool:
        """Whether this hop of the job was settled already, and only its ack was lost."""
        done, dead, live = await asyncio.gather(
            self._results.get(job.queue, job.task, job.id),
            self._dead.get(job.queue, job.task, job.id),
            self.find_live(job.queue, job.task, job.id),
        )
        if done is not None and read_record(done.data).get("run") == job.run:
            return True
        if dead is not None and dead.headers.get(n.RUN) == job.run:
            return True
        return (
            live is not None and live.headers.get(n.RUN) == job.run and _number(live.headers, n.HOP, 0) > job.hop
        )

    async def mark_alone(self, job: Job) -> None:
        """Note that this message is now run with nothing new beside it: if its worker dies, it was the cause."""
        bucket = self._names.running_bucket
        note = json.dumps({"run": job.run, "hop": job.hop}).encode()
        message = Outgoing(kv_subject(bucket, f"alone.{job.id}"), note, {n.TTL: "1h"})
        # Without the note it is only not charged for a crash; the server's own limit stands behind that.
        with contextlib.suppress(BrokerError):
            await self._publisher.store(kv_stream(bucket), message, timeout_s=5.0)

    async def ran_alone(self, job: Job) -> bool:
        """Whether this very message was run alone before."""
        bucket = self._names.running_bucket
        note = await self._record(kv_stream(bucket), kv_subject(bucket, f"alone.{job.id}"))
        return note.get("run") == job.run and note.get("hop") == job.hop

    async def find_live(self, queue: str, task: str, job_id: str) -> StoredMessage | None:
        """The newest message of the job in its work stream. A hand-made job is not found before its first move."""
        subject = self._names.job_anywhere(queue, task, parse_id(job_id))
        return await last_on(self._connection, self._names.work_stream(queue), subject)

    async def needs(self, queue: str, task: str, job_id: str, name: str) -> bool:
        """Whether the job, its dead letter or its done record refers to that object."""
        # One after another, in the order of a job's life: one that moves on meanwhile is found further on. Only a
        # replay goes the other way, so the first place is also the last one looked at.
        if await self._live_needs(queue, task, job_id, name):
            return True
        dead = await self._dead.get(queue, task, job_id)
        if dead is not None and name in (dead.headers.get(n.PAYLOAD), dead.headers.get(n.PAYLOAD_HEADERS)):
            return True
        done = await self._results.get(queue, task, job_id)
        if done is not None and read_record(done.data).get("result_object") == name:
            return True
        return await self._live_needs(queue, task, job_id, name)

    async def _live_needs(self, queue: str, task: str, job_id: str, name: str) -> bool:
        live = await self.find_live(queue, task, job_id)
        return live is not None and live.headers.get(n.PAYLOAD) == name

    async def discard(self, queue: str, task: str, job_id: str, name: str) -> None:
        """Remove an object of a job, unless something refers to it still."""
        if not await self.needs(queue, task, job_id, name):
            await self._payloads.delete(name)

    async def status(self, queue: str, task: str, job_id: str) -> JobStatus:
        """Where the job stands now. State None: it never existed, or its record has expired."""
        # A job is published to its next place before it leaves the old one, so for a moment it stands in
        # both: the record of its own run decides. And it may move while we look: then we look once more.
        for _ in range(2):
            live, done, dead = await asyncio.gather(
                self.find_live(queue, task, job_id),
                self._results.get(queue, task, job_id),
                self._dead.get(queue, task, job_id),
            )
            record = read_record(done.data) if done is not None else {}
            run = live.headers.get(n.RUN) if live is not None else None
            if record and run in (None, record.get("run")):
                return _done_status(record, queue, task, job_id)
            if dead is not None and run in (None, dead.headers.get(n.RUN)):
                return _dead_status(dead, queue, task, job_id)
            if live is not None:
                return await self._live_status(live, queue, task, job_id)
        return JobStatus(job_id, None, queue, task)

    async def _live_status(self, live: StoredMessage, queue: str, task: str, job_id: str) -> JobStatus:
        lane = live.subject.split(".")[3]
        attempt = _number(live.headers, n.ATTEMPT, 1)
        running: dict[str, Any] = {}
        if lane == n.LATER:
            state = JobState.RETRYING if attempt > 1 else JobState.SCHEDULED
        else:
            running = await self._running(job_id)
            ours = bool(running) and running.get("run") == live.headers.get(n.RUN)
            state = JobState.RUNNING if ours else JobState.QUEUED
            running = running if ours else {}
        return JobStatus(
            job_id,
            state,
            queue,
            task,
            attempt,
            due_at=at(_number(live.headers, n.DUE_AT, 0)),
            enqueued_at=at(_number(live.headers, n.ENQUEUED_AT, 0) or live.stored_at),
            started_at=at(running.get("started_at", 0.0)),
            worker=running.get("worker"),
            lane=lane,
            progress=running.get("progress"),
            message=running.get("message"),
        )

    async def _running(self, job_id: str) -> dict[str, Any]:
        bucket = self._names.running_bucket
        return await self._record(kv_stream(bucket), kv_subject(bucket, job_id))

    async def _record(self, stream: str, subject: str) -> dict[str, Any]:
        try:
            found = await last_on(self._connection, stream, subject)
        except TopologyMissing:
            return {}
        return read_record(found.data) if found is not None else {}


def _done_status(record: dict[str, Any], queue: str, task: str, job_id: str) -> JobStatus:
    return JobStatus(
        job_id,
        JobState(record["state"]),
        queue,
        task,
        int(record.get("attempt", 0)),
        enqueued_at=at(record.get("enqueued_at", 0.0)),
        started_at=at(record.get("started_at", 0.0)),
        ended_at=at(record.get("ended_at", 0.0)),
        worker=record.get("worker"),
    )


def _dead_status(letter: StoredMessage, queue: str, task: str, job_id: str) -> JobStatus:
    cause = read_cause(letter.headers)
    return JobStatus(
        job_id,
        JobState.DEAD,
        queue,
        task,
        _number(letter.headers, n.ATTEMPT, 1),
        enqueued_at=at(_number(letter.headers, n.ENQUEUED_AT, 0)),
        ended_at=at(cause.get("at", 0.0)),
        worker=cause.get("worker"),
        reason=cause.get("reason"),
        error=f"{cause.get('type')}: {cause.get('text')}",
    )


def _number(headers: dict[str, str], name: str, default: float) -> Any:
    """A header as a number, or its default: a hand-made job may say anything, and is still to be shown."""
    try:
        value = float(headers[name])
    except (KeyError, ValueError):
        return default
    if not 0 <= value < 253402300800:
        return default
    return int(value) if value.is_integer() else value
