"""Move a waiting job to another time or another lane, if it has not moved since it was read.

When the server stores a message with `Nats-Scheduler` and `Nats-Schedule-Next: purge`, it removes the scheduled
message named there. Within two seconds of its due time the server may be firing a job, which a compare-and-set
cannot prevent: then nothing is changed. A job that is overdue by more was passed over by the server and can be
moved. A queued job has no scheduled message: it is copied to its
new lane, then the original is deleted. ADR 30.
"""

from __future__ import annotations

import json

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.codec import decode_waiting
from jetjobs.jetstream.messages.get import StoredMessage, delete_message
from jetjobs.jetstream.messages.publisher import Outgoing, WrongLastSequence
from jetjobs.model.errors import MalformedJob
from jetjobs.model.job import Job, JobState, JobStatus
from jetjobs.model.views.job_changes import MoveAnswer, MoveOutcome
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_run, parse_id
from jetjobs.model.wire.subjects import WAITING, JobSubject

CLOSE_S = 2.0
"""A job this close to its due time may be firing."""


class Rescheduler:
    """Moves waiting jobs of one namespace."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    async def reschedule(self, queue: str, task: str, job_id: str, due_at: float | None) -> MoveAnswer:
        """Change the time at which a waiting job is due; None for now."""
        live, early = await self._waiting(queue, task, job_id)
        if live is None:
            return early
        job = decode_waiting(live)
        if due_at is None:
            now = self._jetstream.server_clock.time()
            message = self._jetstream.publisher.outgoing(job._replace(hop=job.hop + 1, due_at=now))
            headers = _headers(message, live)
            headers[h.SCHEDULER], headers[h.SCHEDULE_NEXT] = live.subject, "purge"
        else:
            message = self._waiting_message(live, job._replace(hop=job.hop + 1, due_at=due_at), due_at)
            headers = _headers(message, live)
        return await self._store(queue, job_id, early.state, message._replace(headers=headers))

    async def set_priority(self, queue: str, task: str, job_id: str, lane: str) -> MoveAnswer:
        """Move a job that waits for its due time or for a worker to another lane."""
        status = await self._jetstream.locator.status(queue, task, job_id)
        if status.state in (JobState.SCHEDULED, JobState.RETRYING):
            return await self._retarget(queue, task, job_id, lane)
        if status.state is not JobState.QUEUED:
            return _found(job_id, status)
        live = await self._jetstream.locator.find_live(queue, task, job_id)
        if live is None:
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it has just moved")
        if not JobSubject.parse(live.subject).uid:
            detail = "it was published without jetjobs and has not moved yet, so its priority cannot be changed"
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, detail)
        job = decode_waiting(live)
        if job.lane == lane:
            return MoveAnswer(job_id, MoveOutcome.UNCHANGED, status.state)
        if await self._jetstream.locator.was_delivered(queue, live.subject, live.sequence):
            return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "a worker has taken it already")
        return await self._change_lane(queue, live, job, lane)

    async def _change_lane(self, queue: str, live: StoredMessage, job: Job, lane: str) -> MoveAnswer:
        """Copy the job, check whether the original was delivered, delete one of the two, check that one too.

        The copy keeps the hop of the original. Otherwise a worker that gets the original again would take the copy
        for the job's next place and ack, while the copy is deleted here.
        """
        jetstream = self._jetstream
        reconnects = jetstream.connection.reconnects
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
        stream = jetstream.names.work_stream(queue)
        await delete_message(jetstream.connection, stream, sequence, erase=False, reconnects=reconnects)
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
        job = decode_waiting(live)
        if job.lane == lane:
            return MoveAnswer(job_id, MoveOutcome.UNCHANGED, early.state)
        due_at = due_time(live.headers)
        assert due_at is not None  # checked by _waiting
        message = self._waiting_message(live, job._replace(hop=job.hop + 1, lane=lane), due_at)
        return await self._store(queue, job_id, early.state, message._replace(headers=_headers(message, live)))

    # Parts

    async def _waiting(self, queue: str, task: str, job_id: str) -> tuple[StoredMessage | None, MoveAnswer]:
        """The message of a job that waits for its due time, if there is time to move it; otherwise the answer."""
        status = await self._jetstream.locator.status(queue, task, job_id)
        if status.state not in (JobState.SCHEDULED, JobState.RETRYING):
            return None, _found(job_id, status)
        live = await self._jetstream.locator.find_live(queue, task, job_id)
        if live is None or JobSubject.parse(live.subject).lane not in WAITING:
            return None, MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "it has just moved")
        stream = self._jetstream.names.work_stream(queue)
        await self._jetstream.server_clock.refresh(stream)
        now = self._jetstream.server_clock.time()
        if (due_at := due_time(live.headers)) is None:
            raise MalformedJob(f"its schedule has no time: {live.headers.get(h.SCHEDULE, '')[:100]!r}")
        if abs(due_at - now) < CLOSE_S:
            return None, MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, "the server may be firing it now")
        return live, MoveAnswer(job_id, MoveOutcome.MOVED, status.state)

    def _waiting_message(self, live: StoredMessage, job: Job, due_at: float) -> Outgoing:
        """The message of a job that keeps waiting in its current lane."""
        return self._jetstream.publisher.outgoing(job, due_at, lane=JobSubject.parse(live.subject).lane)

    async def _store(self, queue: str, job_id: str, state: JobState | None, message: Outgoing) -> MoveAnswer:
        if await self._stored(queue, message):
            return MoveAnswer(job_id, MoveOutcome.MOVED, state)
        return MoveAnswer(job_id, MoveOutcome.TOO_LATE, state, "it has moved in the meantime")

    async def _stored(self, queue: str, message: Outgoing) -> int:
        """The sequence of the stored message; 0 when the job has moved since it was read."""
        jetstream, stream = self._jetstream, self._jetstream.names.work_stream(queue)
        jetstream.publisher.check_size(message, jetstream.connection.max_payload)
        try:
            return int(json.loads(await jetstream.publisher.confirm(stream, message))["seq"])
        except WrongLastSequence:
            return 0


def _headers(message: Outgoing, live: StoredMessage) -> dict[str, str]:
    """Headers that make the server store the message only if the old one has not changed."""
    assert isinstance(message.headers, dict)
    return {
        **message.headers,
        # Operators who move the job at once have the same hop. With the same id, all would be answered "moved".
        h.MSG_ID: f"{message.headers[h.MSG_ID]}.{new_run()}",
        h.EXPECTED_LAST_SUBJECT_SEQ: str(live.sequence),
        h.EXPECTED_LAST_SUBJECT: live.subject,
    }


def _found(job_id: str, status: JobStatus) -> MoveAnswer:
    if status.state in (JobState.RUNNING, JobState.QUEUED):
        return MoveAnswer(job_id, MoveOutcome.TOO_LATE, status.state, f"it is {status.state}")
    if status.state is JobState.WAITING:
        return MoveAnswer(job_id, MoveOutcome.WAITS, status.state, "it waits for other steps of its flow")
    return MoveAnswer(
        job_id, MoveOutcome.ENDED, status.state, f"it is {status.state}" if status.state else "it does not exist"
    )
