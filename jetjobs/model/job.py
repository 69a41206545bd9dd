"""Jobs, their states, and the transitions between states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from jetjobs.model.public import Record, public
from jetjobs.model.wire.headers import OWN_PREFIXES, PARENT, ROOT
from jetjobs.model.wire.ids import NO_KEY, is_id
from jetjobs.model.wire.lenient_json import as_time


@public("jetjobs")
class JobState(StrEnum):
    """The state of a job. Only final states are stored; the others follow from where the message is."""

    SCHEDULED = "scheduled"
    """In lane `later`, waiting for its first attempt. The server moves it to its lane when it is due."""
    QUEUED = "queued"
    """In its lane, waiting for a worker with a free slot."""
    RUNNING = "running"
    """Delivered to a worker that holds the lease; still in its lane."""
    RETRYING = "retrying"
    """In lane `retry`, waiting for its next attempt."""
    WAITING = "waiting"
    """In lane `gate`, waiting for other steps of its flow."""
    SUCCEEDED = "succeeded"
    """In the `done` bucket of the queue until its TTL expires."""
    DEAD = "dead"
    """In the dead stream with its cause, until it is replayed or deleted."""
    CANCELLED = "cancelled"
    """In the `done` bucket of the queue, recorded as cancelled."""


FINAL = frozenset({JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED})

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.SCHEDULED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.RETRYING, JobState.QUEUED, JobState.DEAD, JobState.CANCELLED}
    ),
    JobState.RETRYING: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.WAITING: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.DEAD: frozenset({JobState.QUEUED, JobState.WAITING}),
    JobState.CANCELLED: frozenset(),
}


@public("jetjobs")
class Job(NamedTuple):
    """One request to run a task. A tuple for speed: one is created for every delivery.

    Times are seconds since the epoch; 0 means "not set".
    """

    id: str
    task: str
    queue: str
    lane: str
    body: bytes
    key: str = NO_KEY
    """The key token. The id of a job with a key starts with it."""
    run: str = ""
    hop: int = 0
    attempt: int = 1
    max_attempts: int = 0
    enqueued_at: float = 0.0
    due_at: float = 0.0
    deadline: float = 0.0
    reply: str = ""
    payload: str = ""
    crashes: int = 0
    """How many workers crashed or lost the lease, according to earlier messages; see Delivery.delivered."""
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task}@{self.queue}>"  # the body may contain secrets

    @property
    def uid(self) -> str:
        """The last token of the subject."""
        return self.id if self.key == NO_KEY else self.id[len(self.key) + 1 :]

    @property
    def message_id(self) -> str:
        """The `Nats-Msg-Id` of this hop. It never repeats, so that the server takes no move for a duplicate."""
        return f"{self.id}.{self.run}.{self.hop}"

    @property
    def carried(self) -> dict[str, str]:
        """The headers that the caller set. Every move keeps them."""
        return {k: v for k, v in self.headers.items() if not k.lower().startswith(OWN_PREFIXES)}


@public("jetjobs")
@dataclass(frozen=True, slots=True)
class JobStatus(Record):
    """The status of a job at one moment."""

    id: str
    state: JobState | None
    """None if no job has this id, or its record has expired or cannot be read."""
    queue: str
    task: str
    attempt: int = 0
    due_at: datetime | None = None
    enqueued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    worker: str | None = None
    reason: str | None = None
    error: str | None = None
    lane: str | None = None
    run: str = ""
    """Distinguishes jobs that had the same id; empty if unknown."""
    crashes: int = 0
    """Deliveries of earlier messages during which the worker crashed or lost its lease."""
    history: tuple[dict[str, Any], ...] = ()
    """The failures so far, oldest first."""
    replays: tuple[dict[str, Any], ...] = ()
    """The replays so far, oldest first."""
    result: Any = None
    """The result as JSON; None if it is stored elsewhere or not at all."""
    progress: float | None = None
    """The progress that a running job reported, from 0 to 1; None without a report."""
    message: str | None = None
    schedule: str | None = None
    """The schedule that produced the job."""
    scheduled_time: datetime | None = None
    """The scheduled time that the job belongs to."""
    priority: str | None = None
    """The lane that the job belongs to; it is in another lane while it waits for its time or was returned."""
    cancel: dict[str, str] | None = None
    """Who requested the cancellation of the job and why, if it was or will be cancelled."""
    how: str | None = None
    """How a running job was cancelled: `stopped` or `killed`."""
    parent: str | None = None
    """The job whose task enqueued this one."""
    root: str | None = None
    """The first job in the chain of parents."""
    traceback: str | None = None
    """The traceback of the last failed attempt of a live or dead job. Lists leave it out."""
    key: str | None = None
    """The token of the job's key, a hash; its id begins with it."""
    headers: dict[str, str] | None = None
    """The headers that the caller set, of a live or dead job. Lists leave them out."""
    arguments: Any = None
    """The arguments of a live or dead job as JSON, secrets masked; text if they are stored elsewhere."""
    callback: str | None = None
    """The URL that is called when the job has ended, of a live or dead job. Lists leave it out."""


def lineage_of(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The parent of the job with these headers and the first job in the chain of parents; None for a job without a
    parent. Invalid ids are ignored, because any producer can write headers.
    """
    parent = headers.get(PARENT)
    if parent is None or not is_id(parent):
        return None, None
    root = headers.get(ROOT, "")
    return parent, root if is_id(root) else parent


NEVER = datetime.max.replace(tzinfo=UTC)


def running_status(job_id: str, record: Mapping[str, Any]) -> JobStatus:
    """The status in a running record that `read_running` has returned."""
    return JobStatus(
        job_id,
        JobState.RUNNING,
        str(record.get("queue", "")),
        str(record.get("task", "")),
        attempt=record.get("attempt", 0),
        started_at=as_time(record.get("started_at")),
        worker=record.get("worker"),
        run=str(record.get("run", "")),
        progress=record.get("progress"),
        message=record.get("message"),
    )
