"""Move a job that waits: to another time, to now, to another lane. Only if it is where it was read.

A message that carries `Nats-Scheduler` and `Nats-Schedule-Next: purge` takes the one named there out of the stream
as it is stored itself. In the last two seconds before a job is due the clock may be firing it already, and a
compare-and-set does not help against that: then nothing is changed. A queued job has no such message: it is copied
to its new lane, then the original is deleted. ADR 30.
"""

from __future__ import annotations

import json
import time
from enum import StrEnum
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.codec import decode
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence, delete_message
from jetjobs.jetstream.messages.publisher import Outgoing, WrongLastSequence
from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import Job, JobState, JobStatus
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import new_run, parse_id

CLOSE_S = 2.0
"""So near to its time a job may be under way already."""


@public("jetjobs.admin")
class MoveOutcome(StrEnum):
    """What became of a move."""

    MOVED = "moved"
    MAY_RUN_TWICE = "may run twice"
    """It changed its lane just as a worker took it: it may run in both."""
    UNCHANGED = "unchanged"
    """It stood there already."""
    TOO_LATE = "too late"
    """It is due within two seconds, is running, or has moved on meanwhile; nothing was changed. Also said of the
    priority of a queued job that was published without jetjobs and has not moved yet."""
    ENDED = "ended"
    """It has come to its end, or is nowhere; nothing was changed."""


@public("jetjobs.admin")
class MoveAnswer(NamedTuple):
    """The outcome, with the state the job was found in."""

    job_id: str
    outcome: MoveOutcome
    state: JobState | None
    detail: str = ""


class Rescheduler:
    """Moves waiting jobs of one namespace."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    async def reschedule(self, queue: str, task: str, job_id: str, due_at: float | None) -> MoveAnswer:
        """Let a job that waits for its time run at another time; None for now."""
        live, early = await self._waiting(queue, task, job_id)
        if live is None:
            return early
        job = self._read(live)
        if due_at is None:
            message = self._jetstream.publisher.outgoing(job._replace(hop=job.hop + 1, due_at=time.time()))
            headers = _headers(message, live)
            headers[h.SCHEDULER], headers[h.SCHEDULE_NEXT] = live.subject, "purge"
        else:
            message = self._stay(live, job._replace(hop=job.hop + 1, due_at=due_at), due_at)
            headers = _headers(message, live)
        return await self._store(queue, job_id, early.state, message._replace(headers=headers))

    async def set_priority(self, queue: str, task: str, job_id: str, lane: str) -> MoveAnswer:
        """Put a job that waits, for its time or for a worker, into another lane."""
        status = await self._jetstream.locator.status(queue, task, job_id)
        if status.state in (JobState.SCHEDULED, JobState.RETRYING):
            return await self._retarget(queue, task, job_id, lane)
        if status.state is not JobState.QUEUED:
            return _found(job_id, status)
        live = await self._jetstream.locator.find_live(queue, task, job_id)
        if live is None:
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it has just moved")
        if live.subject.count(".") == 4:
            detail = "it was published without jetjobs and has not moved yet: its priority cannot be changed"
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, detail)
        job = self._read(live)
        if job.lane == lane:
            return MoveAnswer(job_id, MoveOutcome.UNCHANGED, status.state)
        if await self._jetstream.locator.was_delivered(queue, live.subject, live.sequence):
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "a worker has it already")
        return await self._change_lane(queue, live, job, lane)

    async def _change_lane(self, queue: str, live: StoredMessage, job: Job, lane: str) -> MoveAnswer:
        """Copy it, check whether the original was delivered, delete one of the two, check whether that one was.

        The copy has the hop of the original: a worker that gets the original again must not take the copy for the
        job's next place and ack, while the copy is deleted here.
        """
        jetstream = self._jetstream
        message = jetstream.publisher.outgoing(job._replace(lane=lane))
        assert isinstance(message.headers, dict)
        guard = jetstream.names.job_anywhere(queue, job.task, parse_id(job.id))
        message.headers[h.MSG_ID] = f"{job.message_id}.{new_run()}"
        message.headers[h.EXPECTED_LAST_SUBJECT_SEQ] = str(live.sequence)
        message.headers[h.EXPECTED_LAST_SUBJECT] = guard
        copied = await self._stored(queue, message)
        if not copied:
            return MoveAnswer(job.id, MoveOutcome.TOO_LATE, JobState.QUEUED, "it has just moved")
        late = await jetstream.locator.was_delivered(queue, live.subject, live.sequence)
        subject, sequence = (message.subject, copied) if late else (live.subject, live.sequence)
        await delete_message(jetstream.connection, jetstream.names.work_stream(queue), sequence, erase=False)
        if await jetstream.locator.was_delivered(queue, subject, sequence):
            detail = "workers have just taken it from both lanes"
            return MoveAnswer(job.id, MoveOutcome.MAY_RUN_TWICE, JobState.QUEUED, detail)
        if late:
            return MoveAnswer(job.id, MoveOutcome.TOO_LATE, JobState.RUNNING, "a worker has just taken it")
        return MoveAnswer(job.id, MoveOutcome.MOVED, JobState.QUEUED)

    async def _retarget(self, queue: str, task: str, job_id: str, lane: str) -> MoveAnswer:
        live, early = await self._waiting(queue, task, job_id)
        if live is None:
            return early
        job = self._read(live)
        target = live.headers.get(h.SCHEDULE_TARGET, "").split(".")
        if len(target) > 3 and target[3] == lane:
            return MoveAnswer(job_id, MoveOutcome.UNCHANGED, early.state)
        due_at = due_time(live.headers) or time.time()
        message = self._stay(live, job._replace(hop=job.hop + 1, lane=lane), due_at)
        return await self._store(queue, job_id, early.state, message._replace(headers=_headers(message, live)))

    # Parts

    async def _waiting(self, queue: str, task: str, job_id: str) -> tuple[StoredMessage | None, MoveAnswer]:
        """The job's message in the lane where it waits, if there is time to move it; else what to answer."""
        status = await self._jetstream.locator.status(queue, task, job_id)
        if status.state not in (JobState.SCHEDULED, JobState.RETRYING):
            return None, _found(job_id, status)
        live = await self._jetstream.locator.find_live(queue, task, job_id)
        if live is None or live.subject.split(".")[3] not in n.WAITING:
            return None, MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it has just moved")
        stream = self._jetstream.names.work_stream(queue)
        now = await self._jetstream.server_clock.seconds(stream)
        if (due_at := due_time(live.headers)) is None:
            raise MalformedJob(f"its schedule has no time: {live.headers.get(h.SCHEDULE, '')[:100]!r}")
        if due_at < now + CLOSE_S:
            return None, MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it is due within two seconds")
        return live, MoveAnswer(job_id, MoveOutcome.MOVED, status.state)

    def _stay(self, live: StoredMessage, job: Job, due_at: float) -> Outgoing:
        """The job as it waits on, in the lane where it waits now."""
        return self._jetstream.publisher.outgoing(job, due_at, lane=live.subject.split(".")[3])

    async def _store(self, queue: str, job_id: str, state: JobState | None, message: Outgoing) -> MoveAnswer:
        if await self._stored(queue, message):
            return MoveAnswer(job_id, MoveOutcome.MOVED, state)
        return MoveAnswer(job_id, MoveOutcome.TOO_LATE, state, "it has moved meanwhile")

    async def _stored(self, queue: str, message: Outgoing) -> int:
        """The sequence the message has got; 0 when the job is not where it was read."""
        jetstream, stream = self._jetstream, self._jetstream.names.work_stream(queue)
        jetstream.publisher.check_size(message, jetstream.connection.max_payload)
        try:
            return int(json.loads(await jetstream.publisher.confirm(stream, message))["seq"])
        except WrongLastSequence as taken:
            # By our own message, if only the answer to it was lost.
            there = await at_sequence(jetstream.connection, stream, taken.sequence) if taken.sequence else None
            assert isinstance(message.headers, dict)
            ours = there is not None and there.headers.get(h.MSG_ID) == message.headers[h.MSG_ID]
            return taken.sequence if ours else 0

    def _read(self, live: StoredMessage) -> Job:
        job = decode(live)
        if live.subject.split(".")[3] not in n.WAITING:
            return job
        # While it waits, the lane it is for stands in its target.
        target = live.headers.get(h.SCHEDULE_TARGET, "").split(".")
        if len(target) != 7 or target[3] not in n.PRIORITIES:
            raise MalformedJob(f"its schedule has no usable target: {'.'.join(target)[:100]!r}")
        return job._replace(lane=target[3])


def _headers(message: Outgoing, live: StoredMessage) -> dict[str, str]:
    """The headers of the new message, stored only if the old one stands as it was read."""
    assert isinstance(message.headers, dict)
    return {
        **message.headers,
        h.EXPECTED_LAST_SUBJECT_SEQ: str(live.sequence),
        h.EXPECTED_LAST_SUBJECT: live.subject,
    }


def _found(job_id: str, status: JobStatus) -> MoveAnswer:
    if status.state in (JobState.RUNNING, JobState.QUEUED):
        return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, f"it is {status.state}")
    return MoveAnswer(job_id, MoveOutcome.ENDED, status.state, f"it is {status.state or 'nowhere'}")
