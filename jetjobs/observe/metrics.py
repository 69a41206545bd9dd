"""Prometheus metrics from events. Counted in plain dicts, rendered at the scrape: cheap for each job."""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from jetjobs.model.events import (
    ConnectionLost,
    ConnectionRestored,
    Event,
    JobEnqueued,
    JobFinished,
    JobLost,
    LeaseLostEvent,
    RecordDropped,
    SettleFailed,
)

RUN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600)


class _Histogram:
    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(RUN_BUCKETS) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(RUN_BUCKETS, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        rows, seen = [], 0
        for limit, count in zip((*map(str, RUN_BUCKETS), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((limit, float(seen)))
        return rows


class Metrics:
    """An Observer and a collector. Labels are closed sets: a task nobody declared counts as `unknown`."""

    def __init__(
        self,
        tasks: Collection[str],
        version: str,
        slots: Callable[[], tuple[int, int]],
        stuck_threads: Callable[[], int] = lambda: 0,
    ) -> None:
        self._tasks = tasks
        self._stuck_threads = stuck_threads
        self._version = version
        self._slots = slots
        self._enqueued: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._attempts: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._dead: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._ran: defaultdict[tuple[str, str], _Histogram] = defaultdict(_Histogram)
        self._waited: defaultdict[str, _Histogram] = defaultdict(_Histogram)
        self._leases_lost: defaultdict[str, int] = defaultdict(int)
        self._settle_errors: defaultdict[str, int] = defaultdict(int)
        self._records_dropped: defaultdict[str, int] = defaultdict(int)
        self._connected = 1
        self._reconnects = 0
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def observe(self, event: Event) -> None:
        """Count an event."""
        if isinstance(event, JobFinished):
            task = self._label(event.task)
            self._attempts[event.queue, task, event.outcome] += 1
            self._ran[event.queue, task].add(event.run_s)
            self._waited[event.queue].add(event.wait_s)
            if event.reason:
                self._dead[event.queue, task, event.reason] += 1
        elif isinstance(event, JobEnqueued):
            result = "duplicate" if event.duplicate else "stored"
            self._enqueued[event.queue, self._label(event.task), result] += 1
        elif isinstance(event, LeaseLostEvent):
            self._leases_lost[event.queue] += 1
        elif isinstance(event, SettleFailed):
            self._settle_errors[event.queue] += 1
        elif isinstance(event, RecordDropped):
            self._records_dropped[event.queue] += 1
        elif isinstance(event, JobLost):
            self._dead[event.queue, self._label(event.task), "crashed"] += 1
        elif isinstance(event, ConnectionLost):
            self._connected = 0
        elif isinstance(event, ConnectionRestored):
            self._connected = 1
            self._reconnects += 1

    def _label(self, task: str) -> str:
        return task if task in self._tasks else "unknown"

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape, from the HTTP thread: it reads copies."""
        yield _counter(
            "jobs_enqueued",
            "Jobs stored by this process",
            ("queue", "task", "result"),
            self._enqueued.copy().items(),
        )
        yield _counter(
            "attempts", "Attempts that ended", ("queue", "task", "outcome"), self._attempts.copy().items()
        )
        yield _counter(
            "dead_letters", "Jobs dead-lettered", ("queue", "task", "reason"), self._dead.copy().items()
        )
        ran = HistogramMetricFamily(
            "jetjobs_attempt_duration_seconds", "How long attempts ran", labels=("queue", "task")
        )
        for labels, histogram in self._ran.copy().items():
            ran.add_metric(labels, histogram.buckets(), histogram.total)
        yield ran
        waited = HistogramMetricFamily("jetjobs_queue_wait_seconds", "From due to start", labels=("queue",))
        for queue, histogram in self._waited.copy().items():
            waited.add_metric((queue,), histogram.buckets(), histogram.total)
        yield waited
        yield _counter("leases_lost", "Leases that ran out", ("queue",), _one(self._leases_lost))
        yield _counter("settle_errors", "Outcomes that could not be stored", ("queue",), _one(self._settle_errors))
        yield _counter(
            "records_dropped", "Successes acked without a record", ("queue",), _one(self._records_dropped)
        )
        busy, total = self._slots()
        yield GaugeMetricFamily("jetjobs_running_jobs", "Jobs running now", busy)
        yield GaugeMetricFamily("jetjobs_slots", "Slots of this worker", total)
        yield GaugeMetricFamily(
            "jetjobs_stuck_threads", "Threads that run on past their time limit", self._stuck_threads()
        )
        yield GaugeMetricFamily("jetjobs_nats_connected", "Whether NATS is connected", self._connected)
        yield CounterMetricFamily("jetjobs_nats_reconnects", "Reconnects to NATS", self._reconnects)
        yield InfoMetricFamily(
            "jetjobs_build", "Versions", {"version": self._version, "python": platform.python_version()}
        )


def _one(counts: dict[str, int]) -> Iterable[tuple[tuple[str, ...], int]]:
    return [((queue,), count) for queue, count in counts.copy().items()]


def _counter(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"jetjobs_{name}", text, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family
