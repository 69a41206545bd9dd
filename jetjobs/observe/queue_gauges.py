"""The gauges of the queues themselves. Only the leader has counts to show; all others show none."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from prometheus_client.core import GaugeMetricFamily, Metric

from jetjobs.model.queue_counts import QueueCounts

STATES = ("queued", "running", "scheduled", "retrying", "dead")


def queue_families(counts: Collection[QueueCounts], workers: Mapping[str, int]) -> Iterator[Metric]:
    """One sample a queue in each family. Without counts the families are there, and empty."""
    jobs = GaugeMetricFamily("jetjobs_queue_jobs", "Jobs by state", labels=("queue", "state"))
    for one in counts:
        for state in STATES:
            jobs.add_metric((one.queue, state), getattr(one, state))
    yield jobs
    for name, text, value in (
        ("queue_oldest_job_age_seconds", "How long the oldest queued job has been due", _oldest),
        ("queue_paused", "Whether the queue is paused", _paused),
        ("queue_demand", "Queued and running jobs; 0 while paused", _demand),
        ("queue_bytes", "Bytes of the queue's stream", _bytes),
        ("queue_limit_bytes", "Byte limit of the queue's stream; 0 for none", _limit),
    ):
        family = GaugeMetricFamily(f"jetjobs_{name}", text, labels=("queue",))
        for one in counts:
            family.add_metric((one.queue,), value(one))
        yield family
    at_work = GaugeMetricFamily("jetjobs_workers", "Workers that take jobs of the queue", labels=("queue",))
    for one in counts:
        at_work.add_metric((one.queue,), workers.get(one.queue, 0))
    yield at_work


def _oldest(counts: QueueCounts) -> float:
    return counts.oldest_s


def _paused(counts: QueueCounts) -> float:
    return counts.paused


def _demand(counts: QueueCounts) -> float:
    return counts.demand


def _bytes(counts: QueueCounts) -> float:
    return counts.bytes


def _limit(counts: QueueCounts) -> float:
    return counts.limit_bytes
