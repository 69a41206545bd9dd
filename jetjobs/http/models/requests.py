"""What requests about jobs carry: the models of their bodies and queries."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AwareDatetime, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from jetjobs.define.options import MAX_KEY_LENGTH
from jetjobs.http.models.fields import (
    Body,
    Count,
    Cursor,
    DurationText,
    Pair,
    Priority,
    Query,
    Reason,
    Span,
    Token,
    Wait,
    given,
    since,
)
from jetjobs.model.job import JobState
from jetjobs.model.views.job_query import JobQuery

MAX_BATCH = 1_000


class NewJob(Body):
    """A job to enqueue."""

    model_config = ConfigDict(json_schema_extra={"not": given("delay", "run_at")})

    task: Token
    args: Annotated[dict[str, Any], Field(default_factory=dict, description="The arguments of the task.")]
    queue: Annotated[Token | None, Field(description="Another queue than that of the task.")] = None
    priority: Priority | None = None
    delay: Annotated[Span, Field(description="Run after this time.")] = None
    run_at: Annotated[AwareDatetime | None, Field(description="Run at this time.")] = None
    key: Annotated[
        str | None,
        Field(min_length=1, max_length=MAX_KEY_LENGTH, description="At most one live job of the task has it."),
    ] = None
    deadline: Annotated[AwareDatetime | None, Field(description="Not started or repeated after this time.")] = None
    max_attempts: Annotated[int | None, Field(ge=1, le=1_000_000)] = None
    callback: Annotated[
        str | None, Field(max_length=2_000, description="URL that gets a webhook when the job has ended.")
    ] = None

    @model_validator(mode="after")
    def _check_times(self) -> Self:
        if self.delay is not None and self.run_at is not None:
            raise PydanticCustomError("both", "give delay or run_at, not both")
        return self

    def options(self) -> dict[str, Any]:
        """The options that were given."""
        names = ("queue", "priority", "delay", "run_at", "key", "deadline", "max_attempts", "callback")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Batch(Body):
    """Jobs to enqueue together."""

    jobs: Annotated[list[NewJob], Field(min_length=1, max_length=MAX_BATCH)]


class EnqueueQuery(Query):
    wait: Wait | None = None


class Place(Query):
    """Selects among jobs of the same id."""

    queue: Token | None = None
    task: Token | None = None


class JobLookup(Place):
    wait: Wait | None = None


class CancelQuery(Place):
    reason: Reason = ""
    wait: Wait | None = None


class JobFilters(Query):
    """Selects jobs. Without a state, all live jobs match."""

    state: JobState | None = None
    queue: Token | None = None
    task: Token | None = None
    since: Annotated[
        DurationText | None, Field(description="Only jobs that entered their state within this time.")
    ] = None
    where: Annotated[
        list[Pair],
        Field(default_factory=list, max_length=10, description="Only jobs with this argument; may be repeated."),
    ]

    def job_query(self, key: str | None = None) -> JobQuery:
        where = tuple((path, value) for path, _, value in (one.partition("=") for one in self.where))
        return JobQuery(self.state, self.queue, self.task, since(self.since), where, key)


class JobListQuery(JobFilters):
    key: Annotated[str | None, Field(min_length=1, max_length=MAX_KEY_LENGTH)] = None
    limit: Count = 50
    cursor: Cursor | None = None


class Cancellation(Body):
    """Cancels all live jobs that match."""

    state: Literal["queued", "running", "scheduled", "retrying"] | None = None
    queue: Token | None = None
    task: Token | None = None
    since: DurationText | None = None
    where: Annotated[list[Pair], Field(default_factory=list, max_length=10)]
    reason: Reason = ""
    dry_run: Annotated[bool, Field(description="Only count what would be cancelled.")] = False

    def job_query(self) -> JobQuery:
        filters = self.model_dump(include={"state", "queue", "task", "since", "where"})
        return JobFilters.model_validate(filters).job_query()


class RetryBody(Body):
    """How to retry a job. `args` and `queue` are for a dead job."""

    reason: Reason = ""
    args: Annotated[dict[str, Any] | None, Field(description="Other arguments for a dead job.")] = None
    queue: Annotated[Token | None, Field(description="Another queue for a dead job.")] = None


class JobChange(Body):
    """Exactly one of `run_at`, `delay` and `priority`."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [given("run_at"), given("delay"), given("priority")]})

    run_at: AwareDatetime | None = None
    delay: Span = None
    priority: Priority | None = None
    reason: Reason = ""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(one is not None for one in (self.run_at, self.delay, self.priority)) != 1:
            raise PydanticCustomError("one", "give exactly one of run_at, delay and priority")
        return self
