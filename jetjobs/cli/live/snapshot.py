"""What `jetjobs top` shows: queues, running jobs and workers of one moment, and the content of the open page."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jetjobs.admin.schedules import ScheduleInfo
    from jetjobs.cli.live.rate_history import RateHistory
    from jetjobs.model.job import JobStatus
    from jetjobs.model.views.dead_letter import DeadLetter
    from jetjobs.model.views.queue_info import QueueState
    from jetjobs.model.views.worker_info import WorkerRecord


class Counts(NamedTuple):
    """Jobs of a queue that wait and that run, and the slots for them."""

    queued: int
    running: int
    slots: int


@dataclass(frozen=True)
class Snapshot:
    """Queues, running jobs and workers, as of one moment of the local clock."""

    at: float
    queues: Sequence[QueueState] = ()
    running: Sequence[JobStatus] = ()
    workers: Sequence[WorkerRecord] = ()
    history: Mapping[str, RateHistory] = field(default_factory=dict)
    lost: Mapping[str, float] = field(default_factory=dict)
    """Ids of running jobs whose worker is gone, with the seconds until their lease has expired for certain."""

    def only(self, queue: str | None, task: str | None) -> Snapshot:
        """Only running jobs of this queue and this task, where given."""
        running = [j for j in self.running if queue in (None, j.queue) and task in (None, j.task)]
        return replace(self, running=running)

    def counts(self, queue: QueueState) -> Counts:
        """Jobs that run and slots in use are one number.

        The server counts every delivered job. Those of a lost worker, and those that a worker has requested ahead,
        have no slot: they are waiting.
        """
        slots = self._slots.get(queue.queue, 0)
        running = min(slots, max(0, queue.running - self._lost_of[queue.queue]))
        return Counts(queue.queued + queue.running - running, running, slots)

    @functools.cached_property
    def total(self) -> Counts:
        """The counts of all queues. A slot that several queues share counts once."""
        found = [self.counts(queue) for queue in self.queues]
        slots = sum(worker.total if worker.takes_jobs else worker.busy for worker in self.workers)
        return Counts(sum(c.queued for c in found), sum(c.running for c in found), slots)

    @functools.cached_property
    def slots_width(self) -> int:
        """The longest `running/slots` of a queue, in characters."""
        found = (self.counts(queue) for queue in self.queues)
        return max((len(f"{c.running:,}/{c.slots:,}") for c in found), default=3)

    @functools.cached_property
    def _slots(self) -> Counter[str]:
        """Slots by queue. A worker that takes no more jobs has those that it uses."""
        slots: Counter[str] = Counter()
        for worker in self.workers:
            for queue, of in worker.queues.items():
                slots[queue] += of.total if worker.takes_jobs else of.busy
        return slots

    @functools.cached_property
    def _lost_of(self) -> Counter[str]:
        return Counter(job.queue for job in self.running if job.id in self.lost)

    def to_json(self) -> dict[str, Any]:
        return {
            "queues": [queue.summary() for queue in self.queues],
            "running": [job.as_dict() for job in self.running],
            "workers": [worker.summary() for worker in self.workers],
        }


def has_worker(job: JobStatus, workers: Sequence[WorkerRecord]) -> bool:
    """Whether a live worker may run the job. One of the same name that started later does not."""
    return any(
        worker.name == job.worker
        and (worker.started_at is None or job.started_at is None or worker.started_at <= job.started_at)
        for worker in workers
    )


@dataclass(frozen=True)
class Content:
    """What was read for the open page."""

    jobs: Sequence[JobStatus] = ()
    more: bool = False
    """Whether there are more jobs or dead letters than were read."""
    job: JobStatus | None = None
    arguments: str = ""
    """As JSON with secrets masked, cut to a length that can be shown."""
    letters: Sequence[DeadLetter] = ()
    schedules: Sequence[ScheduleInfo] = ()
    error: str = ""
    """Why it could not be read."""


@dataclass(frozen=True)
class Data:
    """Everything that a frame shows, besides the state of the view."""

    snapshot: Snapshot
    content: Content | None = None
    """None until the open page has been read."""
    namespace: str = ""
    connected: bool = True
    """False until the server has answered for the first time."""
    silent_s: float | None = None
    """How long the server has not answered; None if it does."""
    note: str = ""
    """The outcome of the last action."""
    bad: bool = False
    """Whether `note` reports a failure."""
