"""The gauges that a scrape reads from a worker: its slots, and as the leader its queues and schedules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.views.worker_info import QueueSlots

MAX_SCHEDULES = 1000
"""Series of schedules, the latest first. There may be ten thousand schedules, but only late ones matter."""
_STATES = ("queued", "running", "scheduled", "retrying", "dead")
_AGE = "How long the oldest queued job has been due"
_QUEUE_GAUGES: tuple[tuple[str, str, Callable[[QueueState], float]], ...] = (
    ("queue_oldest_job_age_seconds", _AGE, lambda q: 0.0 if q.oldest is None else q.oldest.total_seconds()),
    ("queue_paused", "Whether the queue is paused", lambda q: q.pause is not None),
    ("queue_demand", "Queued and running jobs; 0 while paused", lambda q: q.demand),
    ("queue_bytes", "Bytes of the queue's stream", lambda q: q.bytes),
    ("workers", "Workers that take jobs from the queue", lambda q: q.workers),
)


class WorkerState(Protocol):
    """What a scrape reads from a worker, in another thread than that of its event loop."""

    @property
    def queue_slots(self) -> Mapping[str, QueueSlots]: ...
    @property
    def stuck_threads(self) -> int: ...
    @property
    def queue_states(self) -> Collection[QueueState]: ...
    @property
    def count_errors(self) -> int: ...
    @property
    def schedule_lateness(self) -> Mapping[str, float]: ...
    @property
    def loop_lag_s(self) -> float: ...


def worker_families(worker: WorkerState) -> Iterator[Metric]:
    running = GaugeMetricFamily("jetjobs_running_jobs", "Jobs running now", labels=("queue",))
    slots = GaugeMetricFamily("jetjobs_slots", "Jobs of the queue that can run at once", labels=("queue",))
    for queue, of in worker.queue_slots.items():
        running.add_metric((queue,), of.busy)
        slots.add_metric((queue,), of.total)
    yield running
    yield slots
    text = "Threads that are running past their time limit"
    yield GaugeMetricFamily("jetjobs_stuck_threads", text, worker.stuck_threads)
    yield from _queue_families(worker.queue_states)
    text = "Queues that the leader could not count"
    yield CounterMetricFamily("jetjobs_scrape_errors", text, worker.count_errors)
    yield _schedule_family(worker.schedule_lateness)
    text = "Longest delay of the event loop in the last 10 s"
    yield GaugeMetricFamily("jetjobs_event_loop_lag_seconds", text, worker.loop_lag_s)


def _queue_families(queues: Collection[QueueState]) -> Iterator[Metric]:
    """Only the leader has counts. On other workers the metrics are present but have no samples."""
    jobs = GaugeMetricFamily("jetjobs_queue_jobs", "Jobs by state", labels=("queue", "state"))
    for queue in queues:
        for state in _STATES:
            jobs.add_metric((queue.queue, state), getattr(queue, state))
    yield jobs
    for name, text, value in _QUEUE_GAUGES:
        family = GaugeMetricFamily(f"jetjobs_{name}", text, labels=("queue",))
        for queue in queues:
            family.add_metric((queue.queue,), value(queue))
        yield family


def _schedule_family(lateness: Mapping[str, float]) -> GaugeMetricFamily:
    text = "For how long a scheduled time has been due without being placed"
    family = GaugeMetricFamily("jetjobs_schedule_lateness_seconds", text, labels=("schedule",))
    # Sort equals by name, so that each scrape shows the same ones.
    for name, late_s in sorted(lateness.items(), key=lambda one: (-one[1], one[0]))[:MAX_SCHEDULES]:
        family.add_metric((name,), late_s)
    return family
