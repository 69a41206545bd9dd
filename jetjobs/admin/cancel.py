"""Cancel a job wherever it stands: mark it, ask the workers, take it out of the queue, leave a record.

The mark comes first. From then on no worker starts the job, so all that is left is to find out whether one has
begun. To delete the message proves nothing about that: the server also deletes what is being delivered.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from enum import StrEnum
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.cancel_marks import CancelMark
from jetjobs.jetstream.jobs.results import CANCELLED_TTL_S, cancelled_record
from jetjobs.jetstream.messages.codec import decode, run_of
from jetjobs.jetstream.messages.get import StoredMessage, delete_message
from jetjobs.jetstream.workers.control_client import WorkerAnswers, ask_all
from jetjobs.model.errors import BrokerError, MalformedJob
from jetjobs.model.job import FINAL, Job, JobState, JobStatus
from jetjobs.model.public import public
from jetjobs.model.wire import subjects as n

_HOW = {"stopped": "it was stopped while it ran", "killed": "it did not stop, and its child process was killed"}
_LOOK_S = 0.05
_ASK_AGAIN_S = 0.5


@public("jetjobs.admin")
class CancelOutcome(StrEnum):
    """What became of a job that was to be cancelled."""

    CANCELLED = "cancelled"
    """It will not run: it was taken from the queue, or stopped."""
    ENDED = "ended"
    """It had come to another end before it could be stopped; nothing was changed."""
    STOPPING = "stopping"
    """It was told to stop and has not ended yet."""
    NOT_STOPPABLE = "not stoppable"
    """It runs in a thread, which cannot be stopped. It will not run again."""
    UNCONFIRMED = "unconfirmed"
    """A worker that may have it does not answer. If it has not begun by now, it will not."""


@public("jetjobs.admin")
class CancelAnswer(NamedTuple):
    """The outcome, with the state the job was found in at the end."""

    job_id: str
    outcome: CancelOutcome
    state: JobState | None
    detail: str = ""


class Canceller:
    """Cancels jobs of one namespace."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    async def cancel(
        self, queue: str, task: str, job_id: str, *, by: str, reason: str, timeout_s: float
    ) -> CancelAnswer:
        """Cancel the job; wait up to `timeout_s` for one that runs to end. Repeating it changes nothing."""
        give_up = time.monotonic() + timeout_s
        status = await self._jetstream.locator.status(queue, task, job_id)
        if status.state in FINAL or status.state is None:
            return _ended(status)
        mark = CancelMark(status.run, by[:200], reason[:500])
        await self._jetstream.cancel_marks.put(job_id, mark)
        answers = WorkerAnswers({}, [])
        asked_at = 0.0
        while True:
            status = await self._jetstream.locator.status(queue, task, job_id, mark.run)
            if status.state in FINAL or status.state is None or status.run != mark.run:
                return _ended(status)
            if time.monotonic() - asked_at >= _ASK_AGAIN_S:
                answers = await self._ask(job_id, mark.run)
                asked_at = time.monotonic()
            if await self._removed(queue, task, job_id, mark, answers, status):
                return CancelAnswer(job_id, CancelOutcome.CANCELLED, JobState.CANCELLED)
            answer = _running(job_id, status, answers)
            if answer is None and time.monotonic() >= give_up:
                answer = _unconfirmed(job_id, status, answers)
            if answer is not None and _is_last(answer, give_up):
                # To ask may have taken seconds: has it ended in them?
                status = await self._jetstream.locator.status(queue, task, job_id, mark.run)
                return _ended(status) if status.state in FINAL or status.run != mark.run else answer
            await asyncio.sleep(_LOOK_S)

    async def _ask(self, job_id: str, run: str) -> WorkerAnswers:
        jetstream = self._jetstream
        return await ask_all(jetstream.connection, jetstream.names, "cancel", {"id": job_id, "run": run})

    async def _removed(
        self, queue: str, task: str, job_id: str, mark: CancelMark, answers: WorkerAnswers, status: JobStatus
    ) -> bool:
        """Take the job out of the queue if nobody can have begun it. Whether that was done."""
        if any(answer.get("holds") for answer in answers.by_worker.values()):
            return False
        live = await self._jetstream.locator.find_live(queue, task, job_id, mark.run)
        if live is None or run_of(live) != mark.run:
            return False
        lane = live.subject.split(".")[3]
        # A worker that does not answer may have begun before the mark. One that is shown to run the job has, also
        # if the registry has given it up: it may only stand still, and go on within its lease.
        unheard = answers.silent or status.state is JobState.RUNNING
        locator = self._jetstream.locator
        if unheard and lane not in n.WAITING and await locator.was_delivered(queue, live.subject, live.sequence):
            return False
        stream = self._jetstream.names.work_stream(queue)
        await delete_message(self._jetstream.connection, stream, live.sequence, erase=False)
        job = self._read(live, job_id)
        after = await self._jetstream.locator.find_live(queue, task, job_id, mark.run)
        if after is not None and run_of(after) == mark.run:
            return False  # the clock has fired it meanwhile: look again
        record = cancelled_record(job, mark.by, mark.why, "", 0.0, time.time())
        stands = await self._jetstream.results.put(job, record, CANCELLED_TTL_S, 15.0, lambda: True)
        if job.reply:
            self._jetstream.results.notify_producer(job, stands)
        with contextlib.suppress(BrokerError):  # what is left over goes by its TTL or the sweep
            if job.payload:
                await self._jetstream.locator.delete_unreferenced(queue, task, job_id, job.payload)
            await self._jetstream.checkpoints.forget(job_id, job.run)
        return stands == record

    def _read(self, live: StoredMessage, job_id: str) -> Job:
        try:
            return decode(live)
        except MalformedJob:
            tokens = live.subject.split(".")
            return Job(job_id, tokens[4], tokens[2], tokens[3], live.data, run=run_of(live))


def _ended(status: JobStatus) -> CancelAnswer:
    if status.state is JobState.CANCELLED:
        return CancelAnswer(status.id, CancelOutcome.CANCELLED, status.state, _HOW.get(status.how or "", ""))
    if status.state is None:
        return CancelAnswer(status.id, CancelOutcome.ENDED, None, "it has ended and left no record")
    return CancelAnswer(status.id, CancelOutcome.ENDED, status.state, f"it is {status.state} already")


def _running(job_id: str, status: JobStatus, answers: WorkerAnswers) -> CancelAnswer | None:
    """What the workers say of a job that has begun; None when none of them has."""
    for worker, answer in answers.by_worker.items():
        if answer.get("runs") and not answer.get("stops"):
            detail = f"it runs in a thread of {worker}, which cannot be stopped"
            return CancelAnswer(job_id, CancelOutcome.NOT_STOPPABLE, JobState.RUNNING, detail)
        if answer.get("holds"):
            # It may not be shown as running yet; whoever has it knows better.
            state = JobState.RUNNING if answer.get("runs") else status.state
            return CancelAnswer(job_id, CancelOutcome.STOPPING, state, f"{worker} was told to stop it")
    return None


def _unconfirmed(job_id: str, status: JobStatus, answers: WorkerAnswers) -> CancelAnswer:
    silent = ", ".join(answers.silent) or (status.worker if status.state is JobState.RUNNING else "")
    detail = f"no answer from {silent}" if silent else "it is on its way between two places"
    return CancelAnswer(job_id, CancelOutcome.UNCONFIRMED, status.state, detail)


def _is_last(answer: CancelAnswer, give_up: float) -> bool:
    return answer.outcome is CancelOutcome.NOT_STOPPABLE or time.monotonic() >= give_up
