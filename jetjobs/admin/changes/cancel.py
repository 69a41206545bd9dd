"""Cancel a job in any state: mark it, ask the workers, remove it from its queue, write its record.

The mark comes first. From then on no worker starts the job, so what remains is to find out whether one has
started it already. Deleting the message does not answer that: the server also deletes messages it has delivered.
So the lane is checked before, and again afterwards if a worker does not answer. ADR 19.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.flows.gates import Delivered
from jetjobs.jetstream.jobs.cancel_marks import CancelMark
from jetjobs.jetstream.jobs.results import cancelled_record, cancelled_ttl_s
from jetjobs.jetstream.messages.codec import decode, run_of
from jetjobs.jetstream.messages.get import StoredMessage, delete_message
from jetjobs.jetstream.workers.control_client import WorkerAnswers, ask_all
from jetjobs.model.errors import BrokerError, MalformedJob
from jetjobs.model.job import FINAL, Job, JobState, JobStatus
from jetjobs.model.views.job_changes import CancelAnswer, CancelOutcome
from jetjobs.model.wire.lenient_json import read_record
from jetjobs.model.wire.subjects import WAITING, JobSubject

_HOW = {"stopped": "it was stopped while it ran", "killed": "it did not stop; its child process was killed"}
_POLL_S = 0.05
_ASK_AGAIN_S = 0.5


class Canceller:
    """Cancels jobs of one namespace."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    async def cancel(
        self, queue: str, task: str, job_id: str, *, by: str, reason: str, timeout_s: float
    ) -> CancelAnswer:
        """Cancel the job; wait up to `timeout_s` for a running one to end. Repeating it changes nothing."""
        give_up = time.monotonic() + timeout_s
        status = await self._jetstream.locator.status(queue, task, job_id)
        if status.state in FINAL or status.state is None:
            return _ended(status)
        mark = CancelMark(status.run, by[:200], reason[:500])
        await self._jetstream.cancel_marks.put(job_id, mark)
        answers = WorkerAnswers({}, [])
        asked_at = 0.0
        taken = False
        while True:
            status = await self._jetstream.locator.status(queue, task, job_id, mark.run)
            if _is_over(status, mark, taken):
                return _ended(status)
            taken = taken and status.state is None
            if time.monotonic() - asked_at >= _ASK_AGAIN_S:
                answers = await self._ask(job_id, mark)
                asked_at = time.monotonic()
            removal = await self._remove(queue, task, job_id, mark, answers, status)
            if removal is CancelOutcome.CANCELLED:
                return CancelAnswer(job_id, removal, JobState.CANCELLED)
            taken |= removal is CancelOutcome.UNCONFIRMED
            answer = _running(job_id, status, answers)
            if answer is None and time.monotonic() >= give_up:
                answer = _unconfirmed(job_id, status, answers, taken)
            if answer is not None and _is_last(answer, give_up):
                # Asking may have taken seconds: check once more whether the job has ended.
                status = await self._jetstream.locator.status(queue, task, job_id, mark.run)
                return _ended(status) if _is_over(status, mark, taken) else answer
            await asyncio.sleep(_POLL_S)

    async def _ask(self, job_id: str, mark: CancelMark) -> WorkerAnswers:
        jetstream = self._jetstream
        return await ask_all(jetstream.connection, jetstream.names, "cancel", {"id": job_id, **mark._asdict()})

    async def _remove(
        self, queue: str, task: str, job_id: str, mark: CancelMark, answers: WorkerAnswers, status: JobStatus
    ) -> CancelOutcome | None:
        """Remove the job from its queue unless a worker may have started it.

        CANCELLED when it was removed. UNCONFIRMED when it was removed and a worker that does not answer may have
        taken it before: that worker writes its record. None when it was not removed.
        """
        if any(answer.get("holds") for answer in answers.by_worker.values()):
            return None
        locator, connection = self._jetstream.locator, self._jetstream.connection
        reconnects = connection.reconnects
        live = await locator.find_live(queue, task, job_id, mark.run)
        if live is None or run_of(live) != mark.run:
            return None
        # A worker that does not answer may have started the job before the mark. A worker shown to run it has,
        # even if the registry no longer lists it: a frozen worker can resume within its lease.
        waits = JobSubject.parse(live.subject).lane in WAITING
        uncertain = (answers.silent or status.state is JobState.RUNNING) and not waits
        if uncertain and await locator.was_delivered(queue, live.subject, live.sequence):
            return None
        # Without its new place, a job whose old place is acked next would be gone without a record.
        if await locator.is_moving(queue, task, job_id):
            return None
        stream = self._jetstream.names.work_stream(queue)
        if not await delete_message(connection, stream, live.sequence, erase=False, reconnects=reconnects):
            return None  # it has ended or moved: look again
        if uncertain and await self._may_be_delivered(queue, live):
            return CancelOutcome.UNCONFIRMED
        job = _read(live, job_id)
        after = await locator.find_live(queue, task, job_id, mark.run)
        if after is not None and run_of(after) == mark.run:
            return None  # the server has moved the due job in the meantime: look again
        record = cancelled_record(job, mark.by, mark.why, "", 0.0, time.time())
        ttl_s = cancelled_ttl_s(job, time.time())
        stands = await self._jetstream.results.put(job, record, ttl_s, 15.0, lambda: True)
        if job.reply:
            self._jetstream.results.notify_producer(job, stands)
        await self._jetstream.follow_up(job, read_record(stands), Delivered(queue, live.sequence))
        with contextlib.suppress(BrokerError):  # what remains expires, or maintenance removes it
            if job.payload:
                await self._jetstream.locator.delete_unreferenced(queue, task, job_id, job.payload)
            await self._jetstream.checkpoints.forget(job_id, job.run)
        return CancelOutcome.CANCELLED if stands == record else None

    async def _may_be_delivered(self, queue: str, removed: StoredMessage) -> bool:
        """Whether the lane may have delivered the message before it was removed. Also true when the lane has
        delivered a later one, or does not answer."""
        try:
            return await self._jetstream.locator.was_delivered(queue, removed.subject, removed.sequence)
        except BrokerError:
            return True


def _read(live: StoredMessage, job_id: str) -> Job:
    try:
        return decode(live)
    except MalformedJob:
        subject = JobSubject.parse(live.subject)
        return Job(
            job_id, subject.task, subject.queue, subject.lane, live.data, run=run_of(live), headers=live.headers
        )


def _is_over(status: JobStatus, mark: CancelMark, taken: bool) -> bool:
    """Whether the run has ended. One that a worker has `taken` while its message was removed is nowhere until that
    worker writes its record or moves it."""
    if status.state is None:
        return not taken
    return status.state in FINAL or status.run != mark.run


def _ended(status: JobStatus) -> CancelAnswer:
    if status.state is JobState.CANCELLED:
        return CancelAnswer(status.id, CancelOutcome.CANCELLED, status.state, _HOW.get(status.how or "", ""))
    if status.state is None:
        return CancelAnswer(status.id, CancelOutcome.ENDED, None, "it has ended and left no record")
    return CancelAnswer(status.id, CancelOutcome.ENDED, status.state, f"it is already {status.state}")


def _running(job_id: str, status: JobStatus, answers: WorkerAnswers) -> CancelAnswer | None:
    """The answer for a job that a worker holds; None when no worker does."""
    for worker, answer in answers.by_worker.items():
        if answer.get("runs") and not answer.get("stops"):
            detail = f"it runs in a thread of {worker}, which cannot be stopped"
            return CancelAnswer(job_id, CancelOutcome.NOT_STOPPABLE, JobState.RUNNING, detail)
        if answer.get("holds"):
            # The running record may not exist yet; the worker's answer is newer.
            state = JobState.RUNNING if answer.get("runs") else status.state
            return CancelAnswer(job_id, CancelOutcome.STOPPING, state, f"{worker} was asked to stop it")
    return None


def _unconfirmed(job_id: str, status: JobStatus, answers: WorkerAnswers, taken: bool) -> CancelAnswer:
    silent = ", ".join(answers.silent) or (status.worker if status.state is JobState.RUNNING else "")
    detail = f"no answer from {silent}" if silent else "it is moving between two lanes"
    if taken:
        detail = f"it was removed, but {silent or 'a worker'} may have taken it just before"
    return CancelAnswer(job_id, CancelOutcome.UNCONFIRMED, status.state, detail)


def _is_last(answer: CancelAnswer, give_up: float) -> bool:
    return answer.outcome is CancelOutcome.NOT_STOPPABLE or time.monotonic() >= give_up
