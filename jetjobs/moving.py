"""Move a job that waits: to another time, to now, to another lane. Atomic, and only if it stands as it was read.

A message that carries `Nats-Scheduler` and `Nats-Schedule-Next: purge` takes the one named there out of the stream
as it is stored itself. In the last two seconds before a job is due the clock may be firing it already, and a
compare-and-set does not help against that: then nothing is changed.
"""

from __future__ import annotations

import time
from enum import StrEnum
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.codec import decode
from jetjobs.jetstream.control import ask_all
from jetjobs.jetstream.publisher import Outgoing, Taken
from jetjobs.jetstream.reads import StoredMessage
from jetjobs.jetstream.statuses import number
from jetjobs.model import names as n
from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import Job, JobState, JobStatus

ASIDE_S = 4.0
"""How long a queued job is set aside while it changes its lane: long enough to hear from all workers."""
CLOSE_S = 2.0
"""So near to its time a job may be under way already."""


class MoveOutcome(StrEnum):
    """What became of a move."""

    MOVED = "moved"
    UNCHANGED = "unchanged"
    """It stood there already."""
    TOO_LATE = "too late"
    """It is due within two seconds, is running, or has moved on meanwhile; nothing was changed."""
    ENDED = "ended"
    """It has come to its end, or is nowhere; nothing was changed."""


class MoveAnswer(NamedTuple):
    """The outcome, with the state the job was found in."""

    job_id: str
    outcome: MoveOutcome
    state: JobState | None
    detail: str = ""


class Mover:
    """Moves waiting jobs of one namespace."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    async def reschedule(self, queue: str, task: str, job_id: str, due_at: float | None) -> MoveAnswer:
        """Let a job that waits in lane `later` run at another time; None for now."""
        live, early = await self._waiting(queue, task, job_id)
        if live is None:
            return early
        job = self._read(live)
        if due_at is None:
            message = self._jetstream.publisher.outgoing(job._replace(hop=job.hop + 1, due_at=time.time()))
            headers = _headers(message, live)
            headers[n.SCHEDULER], headers[n.SCHEDULE_NEXT] = live.subject, "purge"
        else:
            message = self._jetstream.publisher.outgoing(job._replace(hop=job.hop + 1, due_at=due_at), due_at)
            headers = _waiting_headers(message, live)
        return await self._store(queue, job_id, early.state, message._replace(headers=headers))

    async def reprioritise(self, queue: str, task: str, job_id: str, lane: str) -> MoveAnswer:
        """Put a job that waits, for its time or for a worker, into another lane."""
        status = await self._jetstream.places.status(queue, task, job_id, by_hand=True)
        if status.state in (JobState.SCHEDULED, JobState.RETRYING):
            return await self._retarget(queue, task, job_id, lane)
        if status.state is not JobState.QUEUED:
            return _found(job_id, status)
        live = await self._jetstream.places.find_live(queue, task, job_id)
        if live is None:
            detail = "it has moved, or was published by hand and has not"
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, detail)
        job = self._read(live)
        if job.lane == lane:
            return MoveAnswer(job_id, MoveOutcome.UNCHANGED, status.state)
        if await self._was_delivered(queue, live):
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "a worker has it already")
        return await self._change_lane(queue, live, job, lane)

    async def _change_lane(self, queue: str, live: StoredMessage, job: Job, lane: str) -> MoveAnswer:
        """A queued message cannot be replaced atomically. Its copy is put where nobody takes it for some seconds,
        the old one is taken out, and if a worker was handed that one in the same moment the copy goes again."""
        jetstream = self._jetstream
        stream = jetstream.names.work_stream(queue)
        fires_at = await jetstream.publisher.server_now(stream, time.time()) + ASIDE_S
        message = jetstream.publisher.outgoing(job._replace(hop=job.hop + 1, lane=lane), fires_at)
        message = message._replace(headers=_headers(message, live))
        answer = await self._store(queue, job.id, JobState.QUEUED, message)
        if answer.outcome is not MoveOutcome.MOVED:
            return answer
        await jetstream.connection.api(f"STREAM.PURGE.{stream}", {"filter": live.subject})
        request = {"id": job.id, "run": job.run, "hop": job.hop}
        answers = await ask_all(jetstream.connection, jetstream.names, "holds", request)
        if not any(one.get("holds") for one in answers.by_worker.values()):
            return answer
        await jetstream.connection.api(f"STREAM.PURGE.{stream}", {"filter": message.subject})
        return MoveAnswer(job.id, MoveOutcome.TOO_LATE, JobState.RUNNING, "a worker has just taken it")

    async def _retarget(self, queue: str, task: str, job_id: str, lane: str) -> MoveAnswer:
        live, early = await self._waiting(queue, task, job_id)
        if live is None:
            return early
        job = self._read(live)
        target = live.headers.get(n.SCHEDULE_TARGET, "").split(".")
        if len(target) > 3 and target[3] == lane:
            return MoveAnswer(job_id, MoveOutcome.UNCHANGED, early.state)
        due_at = number(live.headers, n.DUE_AT, 0) or time.time()
        message = self._jetstream.publisher.outgoing(job._replace(hop=job.hop + 1, lane=lane), due_at)
        return await self._store(
            queue, job_id, early.state, message._replace(headers=_waiting_headers(message, live))
        )

    # Parts

    async def _waiting(self, queue: str, task: str, job_id: str) -> tuple[StoredMessage | None, MoveAnswer]:
        """The job's message in lane `later` if there is time to move it; else what to answer."""
        status = await self._jetstream.places.status(queue, task, job_id, by_hand=True)
        if status.state not in (JobState.SCHEDULED, JobState.RETRYING):
            return None, _found(job_id, status)
        live = await self._jetstream.places.find_live(queue, task, job_id)
        if live is None or live.subject.split(".")[3] != n.LATER:
            return None, MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it has just moved")
        stream = self._jetstream.names.work_stream(queue)
        now = await self._jetstream.publisher.server_now(stream, time.time())
        if number(live.headers, n.DUE_AT, 0) < now + CLOSE_S:
            return None, MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it is due within two seconds")
        return live, MoveAnswer(job_id, MoveOutcome.MOVED, status.state)

    async def _store(self, queue: str, job_id: str, state: JobState | None, message: Outgoing) -> MoveAnswer:
        stream = self._jetstream.names.work_stream(queue)
        try:
            await self._jetstream.publisher.store(stream, message)
        except Taken:
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, state, "it has moved meanwhile")
        return MoveAnswer(job_id, MoveOutcome.MOVED, state)

    async def _was_delivered(self, queue: str, live: StoredMessage) -> bool:
        stream, lane = self._jetstream.names.work_stream(queue), live.subject.split(".")[3]
        info = await self._jetstream.connection.api(f"CONSUMER.INFO.{stream}.{lane}")
        return int(info["delivered"]["stream_seq"]) >= live.sequence

    def _read(self, live: StoredMessage) -> Job:
        job = decode(live, "")
        if live.subject.split(".")[3] != n.LATER:
            return job
        # On lane `later` the lane it is for stands in its target.
        target = live.headers.get(n.SCHEDULE_TARGET, "").split(".")
        if len(target) != 7 or target[3] not in n.PRIORITIES:
            raise MalformedJob(f"its schedule has no usable target: {'.'.join(target)[:100]!r}")
        return job._replace(lane=target[3])


def _headers(message: Outgoing, live: StoredMessage) -> dict[str, str]:
    """The headers of the new message, stored only if the old one stands as it was read."""
    assert isinstance(message.headers, dict)
    return {
        **message.headers,
        n.EXPECTED_LAST_SUBJECT_SEQ: str(live.sequence),
        n.EXPECTED_LAST_SUBJECT: live.subject,
    }


def _waiting_headers(message: Outgoing, live: StoredMessage) -> dict[str, str]:
    """Of one that waits on. The tick of a schedule stays one: an edit, a pause or a delete takes it back."""
    generation = live.headers.get(n.GENERATION)
    return _headers(message, live) | ({n.GENERATION: generation} if generation is not None else {})


def _found(job_id: str, status: JobStatus) -> MoveAnswer:
    if status.state in (JobState.RUNNING, JobState.QUEUED):
        return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, f"it is {status.state}")
    return MoveAnswer(job_id, MoveOutcome.ENDED, status.state, f"it is {status.state or 'nowhere'}")
