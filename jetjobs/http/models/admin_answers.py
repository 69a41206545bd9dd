"""What the API answers about queues, workers, schedules, tasks and dead letters."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime

from jetjobs.http.models.answers import Object, Shape, shape_of
from jetjobs.model.job import JobState
from jetjobs.model.views.dead_letter import DeadLetterGroup, ReplayOutcome
from jetjobs.model.views.task_info import TaskDefinition
from jetjobs.model.views.worker_info import RunningJob


class Slots(Shape):
    busy: int
    total: int


# Queues


class QueueSummary(Shape):
    """A queue. `oldest_s` is null if no job waits."""

    queue: str
    state: Literal["running", "paused"]
    activity: Literal["paused", "no worker", "running", "idle"]
    paused_until: AwareDatetime | None
    queued: int
    running: int
    scheduled: int
    retrying: int
    dead: int
    oldest_s: float | None
    in_per_s: float | None
    out_per_s: float | None
    workers: int
    slots: Slots


class Pause(Shape):
    until: AwareDatetime | None
    reason: str
    by: str
    since: AwareDatetime | None


class Lane(Shape):
    lane: str
    queued: int
    running: int
    waiting_pulls: int


class QueueDetails(QueueSummary):
    """A queue with its lanes and its pause. `starts_in_s` is when a job enqueued now would start."""

    starts_in_s: float | None
    pause: Pause | None
    lanes: list[Lane]


class QueueList(Shape):
    items: list[QueueSummary]
    cursor: None


class QueueResumed(Shape):
    """`resumed` is false if the queue was not paused."""

    queue: str
    resumed: bool


class QueuePurged(Shape):
    queue: str
    purged: int
    purged_scheduled: int


class QueueDeleted(Shape):
    """`jobs` and `dead` were deleted with the queue."""

    queue: str
    jobs: int
    dead: int


# Workers

RunningJobShape = shape_of(RunningJob, "RunningJob")


class WorkerSummary(Shape):
    worker: str
    name: str
    host: str
    pid: int
    version: str
    python: str
    phase: str
    queues: list[str]
    slots: Slots
    lag_s: float
    memory_bytes: int
    started_at: AwareDatetime | None
    seen_at: AwareDatetime | None


class WorkerDetails(WorkerSummary):
    lease_s: float
    refused: list[str]
    queue_slots: dict[str, Slots]
    tasks: dict[str, str]
    running: list[RunningJobShape]  # type: ignore[valid-type]


class WorkerList(Shape):
    items: list[WorkerSummary]
    cursor: None


class WorkerAnswer(Shape):
    """The answer of a worker, which it sends before it has stopped."""

    worker: str
    ok: bool
    phase: str


# Schedules


class Schedule(Shape):
    """A schedule and its state. Secret arguments are masked."""

    name: str
    task: str
    queue: str
    args: Object
    priority: str
    cron: str | None
    tz: str
    start: AwareDatetime | None
    end: AwareDatetime | None
    misfire: str
    overlap: str
    paused: bool
    declared_by: str
    every_s: float | None
    jitter_s: float
    revision: int
    planned_by: int | None
    last: AwareDatetime | None
    last_job: str | None
    next: AwareDatetime | None
    late_s: float
    missed: int
    state: Literal["on", "paused", "ended", "late"]


class ScheduleDetails(Schedule):
    """A schedule with the state of its last job and its next scheduled times."""

    last_job_state: JobState | None
    last_started_late_s: float | None
    upcoming: list[AwareDatetime]


class ScheduleList(Shape):
    items: list[Schedule]
    cursor: None


class ScheduledTime(Shape):
    """`local` is the time in the zone of the list."""

    scheduled_time: AwareDatetime
    local: AwareDatetime


class ScheduledTimes(Shape):
    schedule: str | None
    tz: str
    items: list[ScheduledTime]


class ScheduleRun(Shape):
    """The extra job of a schedule."""

    schedule: str
    id: str
    queue: str
    task: str


class ScheduleDeleted(Shape):
    name: str
    deleted: bool


# Tasks


class TaskSummary(Shape):
    """A task. Its fields are null if no worker could publish its definition."""

    task: str
    queue: str | None
    priority: str | None
    signature: str | None
    description: str | None
    aliases: list[str] | None
    secret: list[str] | None
    timeout_s: float | None
    max_attempts: int | None
    workers: int
    fingerprints: list[str]
    schedules: list[str]


class TaskList(Shape):
    items: list[TaskSummary]
    cursor: None


Definition = shape_of(TaskDefinition, "TaskDefinition", retry=Object, schema=Object | None)


class TaskVersion(Shape):
    fingerprint: str
    workers: list[str]
    in_app: bool
    definition: Definition | None  # type: ignore[valid-type]


class TaskSchedule(Shape):
    name: str
    rule: str
    paused: bool


class TaskDetails(Shape):
    """A task: the version of the most workers first, and the fields in which versions differ."""

    task: str
    versions: list[TaskVersion]
    differences: list[str]
    schedules: list[TaskSchedule]


# Dead letters


class DeadLetterSummary(Shape):
    id: str
    queue: str
    task: str
    lane: str
    reason: str
    error_type: str
    text: str
    attempts: int
    died_at: AwareDatetime | None
    enqueued_at: AwareDatetime | None
    worker: str
    replay_count: int
    replays: list[Object]


class DeadLetter(DeadLetterSummary):
    """`arguments` is a text if they are not JSON or are in the object store. Secrets are masked."""

    traceback: str
    history: list[Object]
    headers: dict[str, str]
    arguments: Any


class DeadLetterList(Shape):
    items: list[DeadLetterSummary]
    cursor: int | None


Group = shape_of(DeadLetterGroup, "DeadLetterGroup")


class DeadLetterGroups(Shape):
    """Dead letters by queue, task, reason and error type; the group with the newest letter first."""

    items: list[Group]  # type: ignore[valid-type]
    cursor: None


class RefusedReplay(Shape):
    id: str
    queue: str
    task: str
    outcome: ReplayOutcome
    why: str


class Replayed(Shape):
    """The outcomes by number, and the letters that were refused or whose job is alive."""

    counts: dict[str, int]
    refused: list[RefusedReplay]
    complete: bool


class DeadLetterDryRun(Shape):
    dry_run: Literal[True]
    matching: int
    first: list[str]
    refused: list[RefusedReplay]


class DeadLettersDeleted(Shape):
    deleted: int
