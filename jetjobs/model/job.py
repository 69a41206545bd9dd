"""What a job is, which states it may be in, and which moves there are. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from jetjobs.model.public import public
from jetjobs.model.wire.headers import OWN_PREFIXES, PARENT, ROOT
from jetjobs.model.wire.ids import NO_KEY, is_id
from jetjobs.model.wire.lenient_json import as_time


@public("jetjobs")
class JobState(StrEnum):
    """Where a job stands. Only the final states are ever written down; the others are places."""

    SCHEDULED = "scheduled"
    """In lane `later`, waiting for its first attempt. The server's clock moves it on to queued."""
    QUEUED = "queued"
    """In its lane, for the next worker with a free scheduled time."""
    RUNNING = "running"
    """Delivered to a worker that holds the lease; still in its lane."""
    RETRYING = "retrying"
    """In lane `later` after a failed attempt, waiting for the backoff to pass."""
    SUCCEEDED = "succeeded"
    """In the queue's `done` bucket until its TTL passes."""
    DEAD = "dead"
    """In the dead stream with its cause. Only a replay moves it."""
    CANCELLED = "cancelled"
    """In the queue's `done` bucket, marked so."""


FINAL = frozenset({JobState.SUCCEEDED, JobState.DEAD, JobState.CANCELLED})

TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.SCHEDULED: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.CANCELLED}),
    JobState.RUNNING: frozenset(
        {JobState.SUCCEEDED, JobState.RETRYING, JobState.QUEUED, JobState.DEAD, JobState.CANCELLED}
    ),
    JobState.RETRYING: frozenset({JobState.QUEUED, JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.DEAD: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset(),
}


@public("jetjobs")
class Job(NamedTuple):
    """One request to run a task. A tuple, because one is made for every delivery.

    Times are seconds since the epoch; 0 stands for "not set".
    """

    id: str
    task: str
    queue: str
    lane: str
    body: bytes
    key: str = NO_KEY
    """The key token, which is also the beginning of the id of a job that has a key."""
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
    """Workers that died with it in hand, as far as earlier messages of it knew; see Delivery.delivered."""
    headers: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task}@{self.queue}>"  # the body may hold secrets

    @property
    def uid(self) -> str:
        """What stands behind the key token in the subject."""
        return self.id if self.key == NO_KEY else self.id[len(self.key) + 1 :]

    @property
    def message_id(self) -> str:
        """The `Nats-Msg-Id` of this hop: never repeats in a job's life, so no move is taken for a duplicate."""
        return f"{self.id}.{self.run}.{self.hop}"

    @property
    def carried(self) -> dict[str, str]:
        """Headers of the caller's own, which every move keeps."""
        return {k: v for k, v in self.headers.items() if not k.lower().startswith(OWN_PREFIXES)}


@public("jetjobs")
class JobStatus(NamedTuple):
    """What is known of a job at one moment."""

    id: str
    state: JobState | None
    """None: it is not found by this id, or its record has expired or cannot be read."""
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
    """Which life of the id this is; empty where that is not known."""
    crashes: int = 0
    """Deliveries of earlier messages that ended without a word from their worker."""
    history: tuple[dict[str, Any], ...] = ()
    """The failures so far, oldest first."""
    replays: tuple[dict[str, Any], ...] = ()
    """The replays so far, oldest first."""
    result: Any = None
    """What the task returned, as JSON; None also where it is kept elsewhere or not at all."""
    progress: float | None = None
    """How far a running job says it is, from 0 to 1; None when it says nothing."""
    message: str | None = None
    schedule: str | None = None
    """The schedule that it is a tick of."""
    scheduled_time: datetime | None = None
    """Which of its scheduled times."""
    priority: str | None = None
    """The lane it is for; it stands in another while it waits for its time, or was given back."""
    cancel: dict[str, str] | None = None
    """Who has asked for its cancelling and why, of a job that was cancelled or is to be."""
    how: str | None = None
    """How a cancelled job was ended while it ran: `stopped` or `killed`."""
    parent: str | None = None
    """The job from whose task it was enqueued."""
    root: str | None = None
    """The first job of that line: the parent's parent, and so on."""

    def as_dict(self) -> dict[str, Any]:
        return {k: v.isoformat() if isinstance(v, datetime) else v for k, v in self._asdict().items()}


def lineage_of(headers: Mapping[str, str]) -> tuple[str | None, str | None]:
    """The job that enqueued the one with these headers, and the first of that line; None twice for most. What is
    no id counts as none: anybody may write a header."""
    parent = headers.get(PARENT)
    if parent is None or not is_id(parent):
        return None, None
    root = headers.get(ROOT, "")
    return parent, root if is_id(root) else parent


NEVER = datetime.max.replace(tzinfo=UTC)


def running_status(job_id: str, record: Mapping[str, Any]) -> JobStatus:
    """What the running record of a job tells, as `read_running` gives it."""
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
