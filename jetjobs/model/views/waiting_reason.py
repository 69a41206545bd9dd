"""Why a job has not ended, in one sentence, from what the server knows about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jetjobs.model.durations import show_duration
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.views.queue_info import Pause
from jetjobs.model.views.worker_info import WorkerRecord

_MAX_TEXT = 200


class WaitingReason(NamedTuple):
    """Why a job has not ended, and what to do about it. The text contains times that pass; `key` changes only with
    the reason."""

    key: tuple[object, ...]
    text: str
    hint: str | None = None


class Surroundings(NamedTuple):
    """What decides when a job runs, besides the job. None stands for what is not known or was not read."""

    now: float
    """The time by the clock of the server."""
    pause: Pause | None = None
    workers: Sequence[WorkerRecord] | None = None
    """All running workers."""
    queued: int = 0
    """Jobs that are ready in the queue."""
    max_attempts: int = 0
    """Of the job; 0 if unknown."""


def waiting_reason(status: JobStatus, around: Surroundings) -> WaitingReason | None:
    """None for a job that has ended or is not found."""
    if status.state is JobState.SCHEDULED:
        return _scheduled(status, around)
    if status.state is JobState.RETRYING:
        return _retrying(status, around)
    if status.state is JobState.RUNNING:
        since = "" if status.started_at is None else f" for {_lasting(around.now - status.started_at.timestamp())}"
        text = f"it has been running{since} on worker {status.worker or 'unknown'}"
        return WaitingReason(("running", status.attempt), text)
    if status.state is JobState.WAITING:
        return WaitingReason(("waiting",), "it waits for other steps of its flow")
    return _queued(status, around) if status.state is JobState.QUEUED else None


def _scheduled(status: JobStatus, around: Surroundings) -> WaitingReason:
    due = f"due at {_moment(status.due_at)}, in {_until(status.due_at, around.now)}"
    return WaitingReason(("scheduled", status.due_at), f"it is {due}", _run_now(status))


def _retrying(status: JobStatus, around: Surroundings) -> WaitingReason:
    key = ("retrying", status.attempt, status.due_at)
    after = _until(status.due_at, around.now)
    if status.reason:
        return WaitingReason(key, f"{one_line(status.reason)}; it is tried again in {after}", _run_now(status))
    last: dict[str, Any] = status.history[-1] if status.history else {}
    limit = f" of {around.max_attempts}" if around.max_attempts else ""
    if last.get("attempt") != status.attempt - 1:  # it asked for another time itself, and spent no attempt
        return WaitingReason(key, f"it was snoozed and runs again in {after}", _run_now(status))
    error = one_line(f"{last.get('type')}: {last.get('text')}")
    text = f"it is retried in {after} (attempt {status.attempt}{limit}); attempt {last['attempt']} failed: {error}"
    return WaitingReason(key, text, _run_now(status))


def _queued(status: JobStatus, around: Surroundings) -> WaitingReason:
    queue, pause = status.queue, around.pause
    if pause is not None:
        until = f" until {_moment(pause.until)}" if pause.until else ""
        by = f" by {pause.by}" if pause.by else ""
        text = f"queue {queue!r} is paused{until}{by}: {one_line(pause.reason) or 'no reason given'}"
        hint = f"resume it with `jetjobs queues resume {queue}`"
        return WaitingReason(("paused", pause.until, pause.reason), text, hint)
    if around.workers is None:
        return WaitingReason(("queued",), f"it is queued on {queue!r}")
    start = f"start one with `jetjobs worker --queue {queue}`"
    ours = [worker for worker in around.workers if queue in worker.queues and worker.total]
    taking = [worker for worker in ours if worker.takes_jobs]
    if not ours:
        return WaitingReason(("no worker",), f"no running worker takes queue {queue!r}", start)
    if not taking:
        return WaitingReason(("quiet",), f"all workers of queue {queue!r} are quiet and take no new jobs", start)
    # A worker that reports no tasks is of a version that does not.
    able = [worker for worker in taking if not worker.tasks or status.task in worker.tasks]
    if not able:
        text = f"no running worker of queue {queue!r} has task {status.task!r}"
        return WaitingReason(("unknown task",), text, "start a worker with the app that declares it")
    where = "the running worker" if len(able) == 1 else f"one of the {len(able)} running workers"
    text = f"it waits for a free slot in {where} of queue {queue!r} ({around.queued:,} queued)"
    return WaitingReason(("slots",), text, f"start another worker with `jetjobs worker --queue {queue}`")


def _run_now(status: JobStatus) -> str:
    return f"run it now with `jetjobs jobs reschedule {status.id} --now`"


def _moment(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _until(due_at: datetime | None, now: float) -> str:
    return "a moment" if due_at is None else _lasting(due_at.timestamp() - now)


def _lasting(seconds: float) -> str:
    return show_duration(max(0.0, seconds)) if seconds >= 1 else "a moment"


def one_line(text: str) -> str:
    """Text of others as a part of a sentence."""
    return " ".join(text[: 5 * _MAX_TEXT].split())[:_MAX_TEXT]
