"""What is told of jobs and workers while it happens, as it goes over the wire; and what a watcher wants of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from jetjobs.model.errors import ConfigError
from jetjobs.model.events import Event, JobFinished, JobStarted, LeaseLostEvent, WorkerChanged
from jetjobs.model.names import PROGRESS, check_token
from jetjobs.model.presence import iso
from jetjobs.model.reading import read_json

KINDS = (
    "job.started", "job.progress", "job.succeeded", "job.retried", "job.snoozed", "job.released", "job.suspected",
    "job.cancelled", "job.dead_lettered", "job.lease_lost",
    "worker.started", "worker.ready", "worker.quiet", "worker.recycling", "worker.stopped",
)  # fmt: skip
WATCH = "watch"
"""The control word by which a watcher announces itself."""
ANNOUNCE_S = 2.0
WATCHED_S = 10.0
"""Workers tell for so long after an announcement."""
_MOST_TEXT = 300
_LAST_MOMENT = 253_000_000_000.0
"""Beyond this a time has no date."""


class LiveEvent(NamedTuple):
    """Something that has just happened to a job or a worker."""

    kind: str
    """One of KINDS; a newer worker may tell others."""
    at: float
    """When, by the worker's clock."""
    worker: str
    queue: str = ""
    task: str = ""
    job_id: str = ""
    attempt: int = 0
    wait_s: float | None = None
    run_s: float | None = None
    retry_in_s: float | None = None
    reason: str = ""
    error_type: str = ""
    error: str = ""
    progress: float | None = None
    message: str = ""
    detail: str = ""
    skipped: int = 0
    """So many events of this worker were left out before this one, because there were too many a second."""

    def to_wire(self) -> bytes:
        """What has its default is left out, and the kind stands in the subject."""
        defaults = self._field_defaults
        told = {k: v for k, v in self._asdict().items() if k != "kind" and v != defaults.get(k, ())}
        return json.dumps(told).encode()

    def as_dict(self) -> dict[str, Any]:
        """For JSON lines: every key is always there."""
        return {**self._asdict(), "at": iso(self.at)}


class Wish(NamedTuple):
    """What a watcher wants to hear of. With a queue or a task it is of jobs only."""

    queue: str = ""
    task: str = ""
    kinds: tuple[str, ...] = ()
    """Patterns such as `job.*`; none for all."""

    def wants(self, kind: str, queue: str, task: str) -> bool:
        if (self.queue and queue != self.queue) or (self.task and task != self.task):
            return False
        return not self.kinds or any(fnmatchcase(kind, pattern) for pattern in self.kinds)


def make_wish(queue: str | None, task: str | None, kinds: Sequence[str] | str) -> Wish:
    """ConfigError for a pattern that matches no kind, DefinitionError for a name that is none."""
    patterns = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    for pattern in patterns:
        if not any(fnmatchcase(kind, pattern) for kind in KINDS):
            raise ConfigError(f"no kind of event matches {pattern!r}", hint=f"there are {', '.join(KINDS)}")
    for what, token in (("queue", queue), ("task", task)):
        if token is not None:
            check_token(what, token)
    return Wish(queue or "", task or "", patterns)


def read_wish(request: Mapping[str, Any]) -> tuple[Wish, float]:
    """The wish of an announcement, and for how long. ValueError for one that cannot be read."""
    kinds = request.get("kinds") or []
    lasting = request.get("for_s", WATCHED_S)
    if not isinstance(kinds, list) or len(kinds) > 50 or not isinstance(lasting, int | float):
        raise ValueError("kinds is a list, for_s a number")
    if not math.isfinite(lasting):
        raise ValueError("for_s is not finite")
    wish = Wish(str(request.get("queue") or ""), str(request.get("task") or ""), tuple(str(k) for k in kinds))
    return wish, min(float(lasting), 3 * WATCHED_S)


def live_event(event: Event, worker: str, at: float) -> LiveEvent | None:
    """What watchers are told of an event; None for those they are not."""
    if isinstance(event, JobFinished):
        error = event.error
        return LiveEvent(
            f"job.{event.outcome}", at, worker, event.queue, event.task, event.job_id, event.attempt,
            round(event.wait_s, 6), round(event.run_s, 6),
            round(event.retry_in_s, 3) if event.outcome in ("retried", "snoozed") else None,
            event.reason, error.type if error else "", error.text[:_MOST_TEXT] if error else "",
        )  # fmt: skip
    if isinstance(event, JobStarted):
        where = (event.queue, event.task, event.job_id)
        return LiveEvent("job.started", at, worker, *where, event.attempt, round(event.wait_s, 6))
    if isinstance(event, LeaseLostEvent):
        return LiveEvent("job.lease_lost", at, worker, event.queue, event.task, event.job_id)
    if isinstance(event, WorkerChanged):
        return LiveEvent(f"worker.{event.phase}", at, worker, detail=event.detail)
    return None


def read_live(kind: str, data: bytes, now: float) -> LiveEvent | None:
    """An event as it came, perhaps from a newer worker. None for what cannot be read."""
    try:
        told = read_json(data)
        if kind == f"job.{PROGRESS}":
            told = {**told, "job_id": told.get("id"), "at": now}
        event = LiveEvent(
            kind=kind, at=float(told.get("at") or now), worker=_text(told, "worker"), queue=_text(told, "queue"),
            task=_text(told, "task"), job_id=_text(told, "job_id"), attempt=int(told.get("attempt") or 0),
            wait_s=_number(told, "wait_s"), run_s=_number(told, "run_s"), retry_in_s=_number(told, "retry_in_s"),
            reason=_text(told, "reason"), error_type=_text(told, "error_type"), error=_text(told, "error"),
            progress=_number(told, "progress"), message=_text(told, "message"), detail=_text(told, "detail"),
            skipped=int(told.get("skipped") or 0),
        )  # fmt: skip
        if not 0 < event.at < _LAST_MOMENT:
            return None
    except (ValueError, TypeError, AttributeError, OverflowError, OSError):
        return None
    return event


def _text(told: Mapping[str, Any], key: str) -> str:
    value = told.get(key)
    return "" if value is None else str(value)


def _number(told: Mapping[str, Any], key: str) -> float | None:
    value = told.get(key)
    if value is None:
        return None
    if not abs(number := float(value)) < _LAST_MOMENT:  # NaN too: nothing takes that long
        raise ValueError(f"{key} is no number of seconds")
    return number
