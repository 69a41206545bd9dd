"""What requests about queues, workers, schedules, dead letters and events carry."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from jetjobs.http.models.fields import (
    Body,
    Count,
    DurationText,
    Flag,
    PositiveSpan,
    Priority,
    Query,
    Reason,
    Span,
    Token,
    given,
    since,
    whole_number,
)
from jetjobs.model.outcome import DeadReason
from jetjobs.model.schedule.schedule import Misfire, Overlap
from jetjobs.model.views.dead_letter import DeadLetterFilter
from jetjobs.model.views.live_events import KINDS


class ReasonBody(Body):
    reason: Reason = ""


class PauseBody(ReasonBody):
    """`for` ends the pause after a time; without it, the pause lasts until the queue is resumed."""

    model_config = ConfigDict(validate_by_alias=True)
    for_: Annotated[PositiveSpan, Field(alias="for")] = None


class PurgeBody(ReasonBody):
    scheduled: Annotated[bool, Field(description="Also delete scheduled and retrying jobs.")] = False


class DeleteQuery(Query):
    force: Flag = False
    reason: Reason = ""


class WorkerQuery(Query):
    queue: Token | None = None


class StopBody(ReasonBody):
    now: Annotated[bool, Field(description="Release running jobs instead of waiting for them.")] = False


class NewSchedule(ReasonBody):
    """A schedule with its rule: either `cron` or `every`."""

    task: Token
    args: Annotated[dict[str, Any], Field(default_factory=dict)]
    cron: Annotated[str | None, Field(max_length=200, examples=["0 9 * * 1-5"])] = None
    every: Span = None
    tz: Annotated[str | None, Field(max_length=100, examples=["Europe/Berlin"])] = None
    queue: Token | None = None
    priority: Priority | None = None
    start: AwareDatetime | None = None
    end: AwareDatetime | None = None
    jitter: Span = None
    misfire: Misfire | None = None
    overlap: Overlap | None = None
    paused: bool = False
    revision: Annotated[
        int | None, Field(ge=0, le=2**63 - 1, description="Replace only this revision; 0 only creates.")
    ] = None

    def options(self) -> dict[str, Any]:
        given = self.model_dump(exclude={"task", "revision", "reason"})
        return {name: value for name, value in given.items() if value is not None}


class NextQuery(Query):
    count: Count = 5
    tz: Annotated[str | None, Field(max_length=100)] = None


class RuleQuery(NextQuery):
    """A rule: either `cron` or `every`."""

    cron: Annotated[str | None, Field(max_length=200)] = None
    every: DurationText | None = None


class DeadFilters(Query):
    queue: Token | None = None
    task: Token | None = None
    died_of: DeadReason | None = None
    error_type: Annotated[str | None, Field(max_length=200)] = None
    since: DurationText | None = None

    def letters(self) -> DeadLetterFilter:
        return DeadLetterFilter(self.queue, self.task, self.died_of, self.error_type, since(self.since))


class DeadListQuery(DeadFilters):
    limit: Count = 50
    cursor: Annotated[int, Field(ge=1, le=2**63 - 1), BeforeValidator(whole_number)] | None = None


_OTHERS = ("died_of", "error_type", "since")
_ALL: dict[str, Any] = {"required": ["all"], "properties": {"all": {"const": True}}}


class Letters(Body):
    """Ids, filters, or `all`."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {**given("ids"), "not": {"anyOf": [*map(given, _OTHERS), _ALL]}},
                {"not": given("ids"), "anyOf": [*map(given, ("queue", "task", *_OTHERS)), _ALL]},
            ]
        }
    )

    ids: Annotated[
        list[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]] | None,
        Field(min_length=1, max_length=1_000),
    ] = None
    queue: Token | None = None
    task: Token | None = None
    died_of: DeadReason | None = None
    error_type: Annotated[str | None, Field(max_length=200)] = None
    since: DurationText | None = None
    all: bool = False
    reason: Reason = ""
    dry_run: bool = False

    def letters(self) -> DeadLetterFilter:
        names = {"queue", "task", "died_of", "error_type", "since"}
        return DeadFilters.model_validate(self.model_dump(include=names)).letters()

    @model_validator(mode="after")
    def _check_selection(self) -> Self:
        others = any(one is not None for one in (self.died_of, self.error_type, self.since))
        if self.ids is not None and (self.all or others):
            raise PydanticCustomError("ids", "ids can be combined only with queue and task")
        if self.ids is None and not self.all and not others and self.queue is None and self.task is None:
            raise PydanticCustomError("nothing", "give ids, a filter or all")
        return self


class ReplayBody(Letters):
    to_queue: Token | None = None


class EventQuery(Query):
    queue: Token | None = None
    task: Token | None = None
    kind: Annotated[
        list[Annotated[str, Field(max_length=40)]],
        Field(
            default_factory=list,
            max_length=20,
            description="A kind or pattern, such as job.*; may be repeated.",
            examples=[list(KINDS[:2])],
        ),
    ]
