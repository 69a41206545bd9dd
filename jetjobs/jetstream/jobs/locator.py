"""Find a job on the server: the stream or bucket that contains it is its state."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jetjobs.jetstream.jobs.dead_letters import DeadLetters, read_cause
from jetjobs.jetstream.jobs.results import Results
from jetjobs.jetstream.jobs.status import dead_status, done_status, live_status, with_sent
from jetjobs.jetstream.messages.codec import header_number, identify, read_replays, run_of
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence, last_on, look_twice
from jetjobs.jetstream.messages.payloads import Payloads
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerError, TopologyMissing
from jetjobs.model.job import Job, JobStatus, running_status
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import anonymous_sequence, parse_id
from jetjobs.model.wire.lenient_json import read_record, read_running
from jetjobs.model.wire.subjects import DeadSubject, JobSubject, Names, kv_key_tokens, kv_stream, kv_subject


class JobLocator:
    """Finds jobs in the streams and buckets of their queues."""

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

    async def was_settled(self, job: Job) -> bool:
        """Whether this hop of the job was settled already and only its ack was lost.

        Also true when the run became a dead letter that was replayed: the letter is gone then, but the new run
        names the run it was replayed from.
        """
        done, dead, live = await asyncio.gather(
            self._results.get(job.queue, job.task, job.id),
            self._dead.get(job.queue, job.task, job.id),
            self.find_live(job.queue, job.task, job.id),
        )
        record = done_status(read_record(done.data), job.queue, job.task, job.id) if done is not None else None
        if record is not None and (record.run == job.run or _came_from(record.replays, job.run)):
            return True
        if dead is not None and dead.headers.get(h.RUN) == job.run:
            return True
        if any(_came_from(read_replays(there.headers)[1], job.run) for there in (dead, live) if there is not None):
            return True
        return (
            live is not None
            and live.headers.get(h.RUN) == job.run
            and header_number(live.headers, h.HOP, 0) > job.hop
        )

    async def end_of(self, job: Job) -> dict[str, Any] | None:
        """How this run of the job ended: its done record, or the cause of its dead letter with `"state": "dead"`.
        None if it has neither."""
        done, dead = await asyncio.gather(
            self._results.get(job.queue, job.task, job.id), self._dead.get(job.queue, job.task, job.id)
        )
        record = read_record(done.data) if done is not None else {}
        if record.get("run") == job.run:
            return record
        if dead is not None and dead.headers.get(h.RUN) == job.run:
            return {"state": "dead", **read_cause(dead.headers)}
        return None

    async def mark_alone(self, job: Job) -> None:
        """Record that no other job starts while this message runs: if its worker dies, this job is the cause."""
        bucket = self._names.running_bucket
        note = json.dumps({"run": job.run, "hop": job.hop}).encode()
        message = Outgoing(kv_subject(bucket, f"alone.{job.id}"), note, {h.TTL: "1h"})
        # Without the record the job is not blamed for a crash; the delivery limit of the server still applies.
        with contextlib.suppress(BrokerError):
            await self._publisher.store(kv_stream(bucket), message, timeout_s=5.0)

    async def ran_alone(self, job: Job) -> bool:
        """Whether this message was run alone before."""
        bucket = self._names.running_bucket
        note = await self._record(kv_stream(bucket), kv_subject(bucket, f"alone.{job.id}"))
        return note.get("run") == job.run and note.get("hop") == job.hop

    async def find_live(self, queue: str, task: str, job_id: str, run: str = "") -> StoredMessage | None:
        """The newest message of the job in its work stream.

        Before its first move, a job published without jetjobs with a `Nats-Msg-Id` cannot be found by that id.
        It is found by its `run`, if the caller knows it.
        """
        subject = self._names.job_anywhere(queue, task, parse_id(job_id))
        live = await last_on(self._connection, self._names.work_stream(queue), subject)
        return live or await self._first_message(queue, task, job_id, run)

    async def _first_message(self, queue: str, task: str, job_id: str, run: str = "") -> StoredMessage | None:
        """The message of an anonymous job, whose id or run contains its sequence. The task may be `*`."""
        sequence = anonymous_sequence(job_id) or anonymous_sequence(run)
        if sequence is None:
            return None
        try:
            found = await at_sequence(self._connection, self._names.work_stream(queue), sequence)
        except TopologyMissing:
            return None
        if found is None or identify(found) != job_id:
            return None
        try:
            subject = JobSubject.parse(found.subject)
        except ValueError:
            return None
        fits = not subject.uid and subject.lane in (*n.PULLED, *n.WAITING) and task in ("*", subject.task)
        return found if fits else None

    async def is_moving(self, queue: str, task: str, job_id: str) -> bool:
        """Whether the job is in two places of its work stream: its worker has not removed the first one yet."""
        stream, subject = self._names.work_stream(queue), self._names.job_anywhere(queue, task, parse_id(job_id))
        info = await self._connection.api(api.stream_info(stream), {"subjects_filter": subject})
        copies = int(sum((info["state"].get("subjects") or {}).values()))
        return copies > 1

    async def was_delivered(self, queue: str, subject: str, sequence: int) -> bool:
        """Whether the lane of that subject has delivered the message at least once."""
        stream, lane = self._names.work_stream(queue), JobSubject.parse_any(subject).lane
        info = await self._connection.api(api.consumer_info(stream, lane))
        return int(info["delivered"]["stream_seq"]) >= sequence

    async def is_referenced(self, queue: str, task: str, job_id: str, name: str) -> bool:
        """Whether the job, its dead letter or its done record references the object."""
        # In the order of a job's life, so that a job that moves in the meantime is found in a later place.
        # Only a replay goes the other way, so the first check is repeated at the end.
        if await self._live_references(queue, task, job_id, name):
            return True
        dead = await self._dead.get(queue, task, job_id)
        if dead is not None and name in (dead.headers.get(h.PAYLOAD), dead.headers.get(h.PAYLOAD_HEADERS)):
            return True
        done = await self._results.get(queue, task, job_id)
        if done is not None and read_record(done.data).get("result_object") == name:
            return True
        return await self._live_references(queue, task, job_id, name)

    async def _live_references(self, queue: str, task: str, job_id: str, name: str) -> bool:
        live = await self.find_live(queue, task, job_id)
        return live is not None and live.headers.get(h.PAYLOAD) == name

    async def delete_unreferenced(self, queue: str, task: str, job_id: str, name: str) -> None:
        """Delete an object of a job unless something references it."""
        if not await self.is_referenced(queue, task, job_id, name):
            await self._payloads.delete(name)

    async def locate(self, job_id: str, queues: Sequence[str]) -> set[tuple[str, str]]:
        """Queue and task of every job with that id. Searches all queues at once."""
        places = await asyncio.gather(*(self._locate_in(queue, job_id) for queue in queues))
        found = set().union(*places)
        for subject in await self._subjects(self._names.dead_stream, self._names.dead("*", "*", job_id)):
            dead = DeadSubject.parse(subject)
            found.add((dead.queue, dead.task))
        if not found and (record := await self._running(job_id)):
            # The id of a job published without jetjobs is in no subject before its first move.
            found.add((record["queue"], record["task"]))
        return found

    async def _locate_in(self, queue: str, job_id: str) -> set[tuple[str, str]]:
        names = self._names
        bucket = names.done_bucket(queue)
        live, done, first = await asyncio.gather(
            self._subjects(names.work_stream(queue), names.id_anywhere(queue, parse_id(job_id))),
            self._subjects(kv_stream(bucket), kv_subject(bucket, f"*.{job_id}")),
            self._first_message(queue, "*", job_id),
        )
        if first is not None:
            live.append(first.subject)
        return {(queue, JobSubject.parse_any(subject).task) for subject in live} | {
            (queue, kv_key_tokens(subject)[0]) for subject in done
        }

    async def _subjects(self, stream: str, pattern: str) -> list[str]:
        """Subjects with messages that match; none if the stream does not exist."""
        try:
            info = await self._connection.api(api.stream_info(stream), {"subjects_filter": pattern})
        except TopologyMissing:
            return []
        return list(info["state"].get("subjects") or {})

    async def status(self, queue: str, task: str, job_id: str, run: str = "") -> JobStatus:
        """The status of the job now. Its state is None if it is not found by this id or its record is unreadable.

        `run` is that of an earlier status; see `find_live`.
        """
        return await look_twice(
            lambda: self._status(queue, task, job_id, run), lambda status: status.state is not None
        )

    async def _status(self, queue: str, task: str, job_id: str, run: str) -> JobStatus:
        # A move stores the job in the next place before it is removed from the old one. While it is in both, the
        # record of its own run decides. If it moves during the search, the search is repeated once.
        for _ in range(2):
            live, done, dead = await asyncio.gather(
                self.find_live(queue, task, job_id, run),
                self._results.get(queue, task, job_id),
                self._dead.get(queue, task, job_id),
            )
            record = done_status(read_record(done.data), queue, task, job_id) if done is not None else None
            alive = run_of(live) if live is not None else None
            if record is not None and record.state is not None and alive in (None, record.run):
                return record
            if dead is not None and alive in (None, dead.headers.get(h.RUN)):
                return with_sent(dead_status(dead, queue, task, job_id), dead)
            if live is not None:
                return await self._live_status(live, queue, task, job_id)
        running = await self.running_without_id(queue, task, job_id)
        return running_status(job_id, running) if running else JobStatus(job_id, None, queue, task)

    async def running_without_id(self, queue: str, task: str, job_id: str) -> dict[str, Any]:
        """The running record of a job published without jetjobs, whose id is in no subject yet."""
        record = await self._running(job_id)
        unmoved = (
            record and (record["queue"], record["task"]) == (queue, task) and anonymous_sequence(record["run"])
        )
        return record if unmoved else {}

    async def _live_status(self, live: StoredMessage, queue: str, task: str, job_id: str) -> JobStatus:
        running = {} if JobSubject.parse_any(live.subject).lane in n.WAITING else await self._running(job_id)
        return with_sent(live_status(live, queue, task, job_id, running), live)

    async def _running(self, job_id: str) -> dict[str, Any]:
        bucket = self._names.running_bucket
        return read_running(await self._record(kv_stream(bucket), kv_subject(bucket, job_id)))

    async def _record(self, stream: str, subject: str) -> dict[str, Any]:
        try:
            found = await last_on(self._connection, stream, subject)
        except TopologyMissing:
            return {}
        return read_record(found.data) if found is not None else {}


def _came_from(replays: Iterable[Mapping[str, Any]], run: str) -> bool:
    """Whether one of these replays was of that run."""
    return any(entry.get("run") == run for entry in replays)
