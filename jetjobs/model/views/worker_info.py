"""The record of a worker in the registry: its identity, tasks, slots and running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from jetjobs.model.public import public
from jetjobs.model.wire.lenient_json import as_int, as_seconds
from jetjobs.model.wire.validation import is_token


@public("jetjobs.admin")
class RunningJob(NamedTuple):
    """A job that a worker runs, and since when by the clock of the worker."""

    id: str
    task: str
    queue: str
    since: float


@public("jetjobs.admin")
class QueueSlots(NamedTuple):
    """How many slots of a worker the jobs of a queue use, and how many they may use."""

    busy: int
    total: int


@public("jetjobs.admin")
class WorkerRecord(NamedTuple):
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
    """The hash of the JSON schema of the arguments, by task; empty for a task without a schema."""
    busy: int
    total: int
    running: tuple[RunningJob, ...]
    """The longest running jobs, at most 100."""
    lag_s: float
    """The longest time that its event loop was blocked since the last heartbeat."""
    memory_bytes: int
    started_at: float
    seen_at: float = 0.0
    """When the server stored this record, by its clock."""
    lease_s: float = 0.0
    """The lease for which it sends heartbeats; 0 if its version does not report that."""
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
            "queues": {queue: slots._asdict() for queue, slots in self.queues.items()},
            "tasks": dict(self.tasks),
            "slots": {"busy": self.busy, "total": self.total},
            "running": [job._asdict() for job in self.running],
            "lag_s": round(self.lag_s, 3),
            "memory_bytes": self.memory_bytes,
            "started_at": round(self.started_at, 3),
            "lease_s": self.lease_s,
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
            "lag_s": self.lag_s,
            "memory_bytes": self.memory_bytes,
            "started_at": iso(self.started_at),
            "seen_at": iso(self.seen_at),
        }

    def details(self) -> dict[str, Any]:
        """The summary with the lease, refused writes, tasks, running jobs and slots per queue."""
        return {
            **self.summary(),
            "lease_s": self.lease_s,
            "refused": list(self.refused),
            "queue_slots": {queue: slots._asdict() for queue, slots in sorted(self.queues.items())},
            "tasks": dict(sorted(self.tasks.items())),
            "running": [{**job._asdict(), "since": iso(job.since)} for job in self.running],
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
            RunningJob(str(job["id"]), str(job["task"]), str(job.get("queue", "")), as_seconds(job["since"]))
            for job in value.get("running") or []
        ),
        lag_s=as_seconds(value.get("lag_s")),
        memory_bytes=as_int(value.get("memory_bytes")),
        started_at=as_seconds(value.get("started_at")),
        seen_at=seen_at,
        lease_s=as_seconds(value.get("lease_s")),
        refused=tuple(str(reason) for reason in value.get("refused") or ()),
    )


def iso(moment: float) -> str | None:
    """The time in ISO 8601, UTC; None for 0."""
    return datetime.fromtimestamp(moment, UTC).isoformat() if moment else None
