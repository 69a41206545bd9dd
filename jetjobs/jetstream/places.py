"""Where a job stands: its state is the place it is found in, asked of the streams themselves."""

from __future__ import annotations

import asyncio
from typing import Any

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.dead_letters import DeadLetters, read_cause
from jetjobs.jetstream.reads import StoredMessage, last_on
from jetjobs.jetstream.results import Results, read_record
from jetjobs.model import names as n
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.ids import parse_id
from jetjobs.model.job import Job, JobState, JobStatus, at
from jetjobs.model.names import Names, kv_stream, kv_subject


class Places:
    """Looks a job up in the streams and buckets of its queue."""

    def __init__(self, connection: Connection, results: Results, dead: DeadLetters, names: Names) -> None:
        self._connection = connection
        self._results = results
        self._dead = dead
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
        return live is not None and live.headers.get(n.RUN) == job.run and _hop(live) > job.hop

    async def find_live(self, queue: str, task: str, job_id: str) -> StoredMessage | None:
        """The newest message of the job in its work stream. A hand-made job is not found before its first move."""
        subject = self._names.job_anywhere(queue, task, parse_id(job_id))
        return await last_on(self._connection, self._names.work_stream(queue), subject)

    async def status(self, queue: str, task: str, job_id: str) -> JobStatus:
        """Where the job stands now. State None: it never existed, or its record has expired."""
        # A job is published to its next place before it leaves the old one. Looking in the order of its
        # life therefore finds it, unless a replay runs against that order: hence once more.
        for _ in range(2):
            live = await self.find_live(queue, task, job_id)
            if live is not None:
                return await self._live_status(live, queue, task, job_id)
            for found in (
                await self._done_status(queue, task, job_id),
                await self._dead_status(queue, task, job_id),
            ):
                if found is not None:
                    return found
        return JobStatus(job_id, None, queue, task)

    async def _live_status(self, live: StoredMessage, queue: str, task: str, job_id: str) -> JobStatus:
        lane = live.subject.split(".")[3]
        attempt = int(live.headers.get(n.ATTEMPT, "1"))
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
            due_at=at(float(live.headers.get(n.DUE_AT, "0"))),
            enqueued_at=at(float(live.headers.get(n.ENQUEUED_AT, "0")) or live.stored_at),
            started_at=at(running.get("started_at", 0.0)),
            worker=running.get("worker"),
            lane=lane,
        )

    async def _running(self, job_id: str) -> dict[str, Any]:
        bucket = self._names.running_bucket
        try:
            found = await last_on(self._connection, kv_stream(bucket), kv_subject(bucket, job_id))
        except TopologyMissing:
            return {}
        return read_record(found.data) if found is not None else {}

    async def _done_status(self, queue: str, task: str, job_id: str) -> JobStatus | None:
        found = await self._results.get(queue, task, job_id)
        record = read_record(found.data) if found is not None else {}
        if not record:
            return None
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

    async def _dead_status(self, queue: str, task: str, job_id: str) -> JobStatus | None:
        found = await self._dead.get(queue, task, job_id)
        if found is None:
            return None
        cause = read_cause(found.headers)
        return JobStatus(
            job_id,
            JobState.DEAD,
            queue,
            task,
            int(found.headers.get(n.ATTEMPT, "1")),
            enqueued_at=at(float(found.headers.get(n.ENQUEUED_AT, "0"))),
            ended_at=at(cause.get("at", 0.0)),
            worker=cause.get("worker"),
            reason=cause.get("reason"),
            error=f"{cause.get('type')}: {cause.get('text')}",
        )


def _hop(message: StoredMessage) -> int:
    text = message.headers.get(n.HOP, "0")
    return int(text) if text.isdigit() else 0
