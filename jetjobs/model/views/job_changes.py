"""The outcomes of changes to jobs: of a cancel, and of a move to another time or priority."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from jetjobs.model.job import JobState
from jetjobs.model.public import Record, public


@public("jetjobs.admin")
class CancelOutcome(StrEnum):
    """The result of a cancel."""

    CANCELLED = "cancelled"
    """The job was removed from its queue, or stopped. It will not run again."""
    ENDED = "ended"
    """The job had ended before it could be stopped. Nothing was changed."""
    STOPPING = "stopping"
    """The job was asked to stop and has not ended yet."""
    NOT_STOPPABLE = "not stoppable"
    """The job runs in a thread, which cannot be stopped. It will not run again."""
    UNCONFIRMED = "unconfirmed"
    """A worker that may hold the job does not answer. No other worker starts the job."""


@public("jetjobs.admin")
class MoveOutcome(StrEnum):
    """The result of a move."""

    MOVED = "moved"
    MAY_RUN_TWICE = "may run twice"
    """A worker took the job while it changed its lane: it may run from both lanes."""
    UNCHANGED = "unchanged"
    """The job was there already."""
    TOO_LATE = "too late"
    """The job is within two seconds of its due time, is running, or has moved since it was read.

    Nothing was changed. Also the outcome for the priority of a queued job that was published without jetjobs and
    has not moved yet.
    """
    WAITS = "waits"
    """The job waits for other steps of its flow, not for a time. Nothing was changed."""
    ENDED = "ended"
    """The job has ended or does not exist. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class _Answer(Record):
    job_id: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the keys of the command line."""
        answer = Record.as_dict(self)
        return {"id": answer.pop("job_id"), **answer}


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class CancelAnswer(_Answer):
    """The outcome of a cancel, and the last state the job was seen in."""

    outcome: CancelOutcome
    state: JobState | None
    detail: str = ""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class MoveAnswer(_Answer):
    """The outcome of a move, and the state the job was found in."""

    outcome: MoveOutcome
    state: JobState | None
    detail: str = ""
