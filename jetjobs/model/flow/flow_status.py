"""The status of a flow: its state and the progress of its steps, and the answers to changes of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from jetjobs.model.flow.failed import Failed
from jetjobs.model.public import Record, public


@public("jetjobs")
class FlowState(StrEnum):
    """The state of a flow. None is stored: each follows from the ledger, the cancel mark and the time."""

    RUNNING = "running"
    """Jobs of it run or wait, and none that others wait for is dead."""
    FAILED = "failed"
    """A job is dead, and others wait for it. Replaying it continues the flow."""
    SUCCEEDED = "succeeded"
    """The step with its result has ended; without one, all steps have."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """It has not ended by its deadline."""


@public("jetjobs")
@dataclass(frozen=True, slots=True)
class StepStatus(Record):
    """The progress of one step."""

    name: str
    task: str
    queue: str
    count: int | None
    """The number of its jobs; None while the list that it maps over is not known."""
    ended: int
    """Jobs that have succeeded, or failed in a settled step."""
    dead: int
    """Jobs that others wait for and that are dead or cancelled."""
    after: tuple[str, ...]
    """The steps that it waits for."""


@public("jetjobs")
@dataclass(frozen=True, slots=True)
class FlowStatus(Record):
    """Where a flow is."""

    id: str
    name: str
    state: FlowState
    enqueued_at: datetime | None
    deadline: datetime | None
    steps: tuple[StepStatus, ...]
    failures: tuple[Failed, ...] = ()
    """Jobs that are dead or cancelled. Of many, the first ones."""


@public("jetjobs.admin")
class FlowCancelOutcome(StrEnum):
    """The result of cancelling a flow."""

    CANCELLED = "cancelled"
    """No job of it starts any more."""
    ENDED = "ended"
    """The flow had ended. Nothing was changed."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class FlowCancelAnswer(Record):
    """The outcome of cancelling a flow."""

    id: str
    outcome: FlowCancelOutcome
    removed: int = 0
    """Waiting jobs that were removed. Workers drop the others when they get them."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class FlowRetryAnswer(Record):
    """The dead jobs of a flow that were replayed."""

    id: str
    replayed: tuple[str, ...] = ()
    """Ids of jobs."""
