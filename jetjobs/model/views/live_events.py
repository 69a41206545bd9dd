"""Live events of jobs and workers: their wire form and their subjects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

from jetjobs.model.errors import ConfigError
from jetjobs.model.events import Event, JobFinished, JobStarted, LeaseLostEvent, WorkerChanged
from jetjobs.model.public import Record, public
from jetjobs.model.wire.lenient_json import as_fraction, as_int, as_seconds, as_time, read_json
from jetjobs.model.wire.subjects import PROGRESS, Names
from jetjobs.model.wire.validation import check_token

KINDS = (
    "job.started", "job.progress", "job.succeeded", "job.retried", "job.snoozed", "job.parked", "job.released",
    "job.suspected", "job.cancelled", "job.dead_lettered", "job.lease_lost",
    "worker.started", "worker.ready", "worker.quiet", "worker.recycling", "worker.stopped",
)  # fmt: skip
WATCH = "watch"
"""The control request with which a watcher announces itself."""
ANNOUNCE_S = 2.0
WATCHED_S = 10.0
"""Workers publish events of jobs for this long after an announcement."""
_MAX_TEXT = 300
_TEXTS = ("worker", "queue", "task", "job_id", "reason", "error_type", "error", "message", "detail")
_SPANS = {"wait": "wait_s", "run_time": "run_s", "retry_in": "retry_in_s"}


@public("jetjobs.events")
@dataclass(frozen=True, slots=True)
class LiveEvent(Record):
    """Something that has just happened to a job or a worker."""

    kind: str
    """One of KINDS; a newer worker may publish others."""
    at: datetime
    """When it happened, by the clock of the worker."""
    worker: str
    queue: str = ""
    task: str = ""
    job_id: str = ""
    attempt: int = 0
    wait: timedelta | None = None
    run_time: timedelta | None = field(default=None, metadata={"key": "run_s"})
    retry_in: timedelta | None = None
    reason: str = ""
    error_type: str = ""
    error: str = ""
    progress: float | None = None
    message: str = ""
    detail: str = ""
    skipped: int = 0
    """How many events of this kind and task were left out before this one, because of the rate limit."""

    def to_wire(self) -> bytes:
        """As JSON, without empty fields and without the kind, which is in the subject."""
        fields = {key: value for key, value in self.as_dict().items() if value or isinstance(value, float)}
        del fields["kind"]
        return json.dumps(fields | {"at": round(self.at.timestamp(), 6)}).encode()


def event_subjects(names: Names, queue: str | None, task: str | None, kinds: Sequence[str] | str) -> list[str]:
    """The subjects that a watcher subscribes to. With a queue or a task, these are only those of jobs.

    ConfigError for a pattern that matches no kind, DefinitionError for an invalid name.
    """
    for what, token in (("queue", queue), ("task", task)):
        if token is not None:
            check_token(what, token)
    wanted = {"job.*", "worker.*"} if not kinds else set[str]()
    for pattern in (kinds,) if isinstance(kinds, str) else kinds:
        matching = {kind for kind in KINDS if fnmatchcase(kind, pattern)}
        if not matching:
            raise ConfigError(f"no kind of event matches {pattern!r}", hint=f"known kinds: {', '.join(KINDS)}")
        wanted |= matching
    words = [kind.split(".") for kind in sorted(wanted)]
    jobs = [names.job_event(word, queue or "*", task or "*", "*") for of, word in words if of == "job"]
    if queue or task:
        return jobs
    return [*jobs, *(names.worker_event(word, "*") for of, word in words if of == "worker")]


def live_event(event: Event, worker: str, now: float) -> LiveEvent | None:
    """The live event of an event; None if watchers do not get it."""
    at = datetime.fromtimestamp(now, UTC)
    if isinstance(event, JobFinished):
        error = event.error
        return LiveEvent(
            f"job.{event.outcome}", at, worker, event.queue, event.task, event.job_id, event.attempt,
            timedelta(seconds=event.wait_s), timedelta(seconds=event.run_s),
            timedelta(seconds=round(event.retry_in_s, 3))
            if event.outcome in ("retried", "snoozed", "parked")
            else None,
            event.reason, error.type if error else "", error.text[:_MAX_TEXT] if error else "",
        )  # fmt: skip
    if isinstance(event, JobStarted):
        where = (event.queue, event.task, event.job_id)
        return LiveEvent("job.started", at, worker, *where, event.attempt, timedelta(seconds=event.wait_s))
    if isinstance(event, LeaseLostEvent):
        return LiveEvent("job.lease_lost", at, worker, event.queue, event.task, event.job_id)
    if isinstance(event, WorkerChanged):
        return LiveEvent(f"worker.{event.phase}", at, worker, detail=event.detail)
    return None


def read_live(kind: str, data: bytes, now: float) -> LiveEvent | None:
    """An event from a worker, perhaps a newer one. None if it cannot be read."""
    try:
        record = read_json(data)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    if kind == f"job.{PROGRESS}":
        record["job_id"] = record.get("id")
    fields: dict[str, Any] = {key: str(record[key]) for key in _TEXTS if record.get(key) is not None}
    spans = {name: record[key] for name, key in _SPANS.items() if record.get(key) is not None}
    fields |= {name: timedelta(seconds=as_seconds(value)) for name, value in spans.items()}
    fields["progress"] = as_fraction(record.get("progress"))
    fields |= {key: as_int(record.get(key)) for key in ("attempt", "skipped")}
    at = as_time(record.get("at")) or datetime.fromtimestamp(now, UTC)
    return LiveEvent(kind, at, **{"worker": "", **fields})
