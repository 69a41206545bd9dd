"""The record of a worker in the registry: its identity, tasks, slots and running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from jetjobs.model.public import Record, json_value, public
from jetjobs.model.wire.lenient_json import as_int, as_seconds, as_time
from jetjobs.model.wire.validation import is_token


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class RunningJob(Record):
    """A job that a worker runs, and since when by the clock of the worker."""

    id: str
    task: str
    queue: str
    since: datetime | None


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class QueueSlots(Record):
    """How many slots of a worker the jobs of a queue use, and how many they may use."""

    busy: int
    total: int


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class WorkerRecord(Record):
    """One running worker, as it last described itself."""

    key: str
    """Its unique name in the registry: the name of the worker and a token."""
    name: str
    host: str
    pid: int
    version: str
    python: str
    phase: str
    queues: Mapping[str, QueueSlots]
    tasks: Mapping[str, str]
    """The fingerprint of the definition, by task and alias. `app.workers.tasks()` has the definitions."""
    busy: int
    total: int
    running: tuple[RunningJob, ...]
    """The longest running jobs, at most 100."""
    lag: timedelta
    """The longest time that its event loop was blocked since the last heartbeat."""
    memory_bytes: int
    started_at: datetime | None
    seen_at: datetime | None = None
    """When the server stored this record, by its clock."""
    lease: timedelta = timedelta(0)
    """The lease for which it sends heartbeats; zero if its version does not report that."""
    refused: tuple[str, ...] = ()
    """Why streams do not store what it publishes, one reason for each of them."""

    @property
    def takes_jobs(self) -> bool:
        """False if the worker only finishes its running jobs."""
        return self.phase not in ("quiet", "stopped")

    def can_run(self, queue: str, task: str) -> bool:
        """Whether the worker takes jobs of the queue, and knows the task."""
        slots = self.queues.get(queue)
        return slots is not None and slots.total > 0 and self.takes_jobs and task in self.tasks

    def to_wire(self) -> dict[str, Any]:
        """The value of the record; docs/reference/wire.md describes it."""
        return {
            "name": self.name,
            "host": self.host,
            "pid": self.pid,
            "version": self.version,
            "python": self.python,
            "phase": self.phase,
            "queues": {queue: slots.as_dict() for queue, slots in self.queues.items()},
            "tasks": dict(self.tasks),
            "slots": {"busy": self.busy, "total": self.total},
            "running": [{**job.as_dict(), "since": _seconds(job.since)} for job in self.running],
            "lag_s": round(self.lag.total_seconds(), 3),
            "memory_bytes": self.memory_bytes,
            "started_at": _seconds(self.started_at),
            "lease_s": self.lease.total_seconds(),
            "refused": list(self.refused),
        }

    def summary(self) -> dict[str, Any]:
        """The fields for lists, as JSON."""
        return {
            "worker": self.key,
            "name": self.name,
            "host": self.host,
            "pid": self.pid,
            "version": self.version,
            "python": self.python,
            "phase": self.phase,
            "queues": sorted(self.queues),
            "slots": {"busy": self.busy, "total": self.total},
            "lag_s": self.lag.total_seconds(),
            "memory_bytes": self.memory_bytes,
            "started_at": json_value(self.started_at),
            "seen_at": json_value(self.seen_at),
        }

    def as_dict(self) -> dict[str, Any]:
        """The summary with the lease, refused writes, tasks, running jobs and slots per queue."""
        return {
            **self.summary(),
            "lease_s": self.lease.total_seconds(),
            "refused": list(self.refused),
            "queue_slots": {queue: slots.as_dict() for queue, slots in sorted(self.queues.items())},
            "tasks": dict(sorted(self.tasks.items())),
            "running": [job.as_dict() for job in self.running],
        }


def read_worker(key: str, value: Mapping[str, Any], seen_at: float) -> WorkerRecord:
    """A record that another worker wrote, perhaps a newer one. Missing fields get defaults."""
    slots = value.get("slots") or {}
    return WorkerRecord(
        key=key,
        name=str(value.get("name", key)),
        host=str(value.get("host", "")),
        pid=as_int(value.get("pid")),
        version=str(value.get("version", "")),
        python=str(value.get("python", "")),
        phase=str(value.get("phase", "")),
        queues={
            queue: QueueSlots(as_int(of.get("busy")), as_int(of.get("total")))
            for queue, of in (value.get("queues") or {}).items()
            if is_token(queue)
        },
        tasks={str(task): str(digest) for task, digest in (value.get("tasks") or {}).items()},
        busy=as_int(slots.get("busy")),
        total=as_int(slots.get("total")),
        running=tuple(
            RunningJob(str(job["id"]), str(job["task"]), str(job.get("queue", "")), as_time(job["since"]))
            for job in value.get("running") or []
        ),
        lag=timedelta(seconds=as_seconds(value.get("lag_s"))),
        memory_bytes=as_int(value.get("memory_bytes")),
        started_at=as_time(value.get("started_at")),
        seen_at=as_time(seen_at),
        lease=timedelta(seconds=as_seconds(value.get("lease_s"))),
        refused=tuple(str(reason) for reason in value.get("refused") or ()),
    )


def _seconds(moment: datetime | None) -> float:
    return 0.0 if moment is None else round(moment.timestamp(), 3)
