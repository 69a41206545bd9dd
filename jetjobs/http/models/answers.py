"""What the API answers about jobs and errors: one definition of the JSON shapes, also of `--json`."""

from __future__ import annotations

import typing
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, create_model

from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.public import Record
from jetjobs.model.views.dead_letter import ReplayOutcome
from jetjobs.model.views.job_changes import CancelOutcome, MoveOutcome
from jetjobs.model.views.live_events import LiveEvent


class Shape(BaseModel):
    """A JSON object with exactly these members."""

    model_config = ConfigDict(extra="forbid")


def shape_of(record: type[Record], name: str, *, base: type[Shape] = Shape, **different: Any) -> type[Any]:
    """The shape of `Record.as_dict`, from the fields of the record. `different` has narrower types."""
    hints = typing.get_type_hints(record)
    members: dict[str, Any] = {}
    for one in fields(record):  # type: ignore[arg-type]
        hint = hints[one.name]
        span = timedelta in (hint, *typing.get_args(hint))
        key = one.metadata.get("key") or (f"{one.name}_s" if span else one.name)
        # A field may not have the name of a method of pydantic, such as `schema`.
        member = f"{key}_" if hasattr(BaseModel, key) else key
        members[member] = (different.get(key, _in_json(hint)), Field(alias=key))
    return create_model(name, __base__=base, __doc__=record.__doc__, **members)


def _in_json(hint: Any) -> Any:
    """The type of a value in JSON: durations are numbers, times have a zone."""
    optional = type(None) in typing.get_args(hint)
    if timedelta in (hint, *typing.get_args(hint)):
        return float | None if optional else float
    if datetime in (hint, *typing.get_args(hint)):
        return AwareDatetime | None if optional else AwareDatetime
    if typing.get_origin(hint) is tuple:
        item: Any = typing.get_args(hint)[0]
        return list[item]
    return hint


# Jobs

Object = dict[str, Any]
Job = shape_of(
    JobStatus,
    "Job",
    state=JobState,
    history=list[Object],
    replays=list[Object],
    cancel=dict[str, str] | None,
)
ListedJob = shape_of(
    JobStatus,
    "ListedJob",
    state=JobState,
    history=list[Object],
    replays=list[Object],
    cancel=dict[str, str] | None,
    arguments=Object | None,
)


class Enqueued(Shape):
    """A stored job. `duplicate` is true if it existed already."""

    id: str
    queue: str
    task: str
    duplicate: bool


class EnqueuedJob(Enqueued):
    """A stored job with its state and the time at which it is expected to start; null if that is not known."""

    state: JobState
    estimated_start: AwareDatetime | None


Found = Job | EnqueuedJob
"""A job that existed already, or has ended in time. Without the scope `read`, it is the shorter shape."""


class Refused(Shape):
    """Why a job of a batch is not stored, or not confirmed: the members of a problem."""

    code: str
    detail: str
    hint: str | None


class BatchJob(Shape):
    """The answer for one job of a batch. `id` is null if it was not sent."""

    id: str | None
    queue: str
    task: str
    duplicate: bool
    error: Refused | None


class BatchReport(Shape):
    """One answer per job, in the order of the request."""

    stored: int
    duplicates: int
    refused: int
    items: list[BatchJob]


class JobList(Shape):
    """A page of jobs. At most 10,000 messages are read for one page: with a cursor and fewer items than the limit,
    the list was cut there and continues at the cursor."""

    items: list[ListedJob]  # type: ignore[valid-type]
    cursor: str | None
    scanned: int


class Change(Shape):
    """The outcome of a change, and the last state in which the job was seen."""

    id: str
    outcome: CancelOutcome | MoveOutcome | ReplayOutcome
    state: JobState | None
    detail: str


class FailedChange(Change):
    outcome: str  # type: ignore[assignment]
    """Also `refused`, for a job that cannot be read."""


class BulkChange(Shape):
    """The outcomes for all jobs that matched, by number, and the jobs that were not changed."""

    matching: int
    counts: dict[str, int]
    failed: list[FailedChange]
    complete: bool


class DryRun(Shape):
    """What would be changed: the jobs by state, and the first few ids."""

    dry_run: Literal[True]
    matching: int
    states: dict[str, int]
    first: list[str]


class Changes(Shape):
    """What commands of the command line print that take several ids."""

    items: list[Change]
    cursor: None


# Events and errors

Event = shape_of(LiveEvent, "Event")


class Gap(Shape):
    """Events were missed: the data of an event `gap`."""


class FieldError(Shape):
    field: str
    message: str


class ProblemDetails(BaseModel):
    """An error, as RFC 9457 describes it. `code` is stable; `hint` says what to do."""

    type: Annotated[str, Field(examples=["about:blank"])]
    title: str
    status: int
    detail: str
    code: Annotated[str, Field(examples=["queue_not_found"])]
    hint: str | None
    errors: list[FieldError] = []
    job_id: Annotated[str | None, Field(description="The job to ask for, if its enqueue was not confirmed.")] = (
        None
    )
