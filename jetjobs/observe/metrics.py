"""The Prometheus metrics: counters of events, with the gauges of the worker, its queues and schedules.

Events are counted in plain dicts and rendered at each scrape, which is cheap for each job.
"""

from __future__ import annotations

import platform
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from jetjobs.model import errors
from jetjobs.model.events import (
    ConnectionRestored,
    EnqueueFailed,
    Event,
    JobEnqueued,
    JobFinished,
    LeaseLostEvent,
    PermissionDenied,
    Redelivered,
    SettleFailed,
)
from jetjobs.model.outcome import DeadReason, Reject, Retry
from jetjobs.model.public import public
from jetjobs.model.views.error_text import type_name
from jetjobs.observe.worker_gauges import MAX_SCHEDULES, WorkerState, worker_families

_RUN = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 21600)
RUN_BUCKETS = tuple(map(float, _RUN))
"""Only floats: every job is compared with some of them, and comparing with an int takes twice as long."""
ENQUEUE_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
UNKNOWN = "unknown"
OTHER = "other"
ERRORS = frozenset(
    {
        "ArithmeticError", "AssertionError", "AttributeError", "BrokenPipeError", "ConnectionAbortedError",
        "ConnectionError", "ConnectionRefusedError", "ConnectionResetError", "Exception", "ExceptionGroup",
        "FileNotFoundError", "ImportError", "IndexError", "KeyError", "LookupError", "MemoryError",
        "ModuleNotFoundError", "NameError", "NotImplementedError", "OSError", "OverflowError", "PermissionError",
        "RecursionError", "RuntimeError", "TimeoutError", "TypeError", "UnicodeDecodeError", "ValueError",
        "ZeroDivisionError", *map(type_name, (Reject, Retry)),
        *(type_name(one) for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)),
    }
)  # fmt: skip
"""Types of errors that are always labels. Others are if a task declares them in `retry_on` or `dead_on`."""
_OUTCOMES = {"suspected": "released"}
"""Outcomes that are counted as another: a suspected job is released to run alone."""


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = RUN_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def merge(self, counts: Iterable[int], total: float) -> None:
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, counts, strict=True)]
        self.total += total

    def buckets(self) -> list[tuple[str, float]]:
        rows, seen = [], 0
        for limit, count in zip((*(f"{bound:g}" for bound in self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            rows.append((limit, float(seen)))
        return rows


class _Attempts:
    """Finished attempts of one task in one queue with one outcome: histograms of run and wait times."""

    __slots__ = ("ran", "ran_s", "unrun", "waited", "waited_s")

    def __init__(self) -> None:
        self.ran = [0] * (len(RUN_BUCKETS) + 1)
        self.ran_s = 0.0
        self.waited = [0] * (len(RUN_BUCKETS) + 1)
        self.waited_s = 0.0
        self.unrun = 0
        """Attempts whose task never started: released or rejected."""


@public("jetjobs")
class Metrics:
    """An Observer and a collector. Label values are closed sets: an undeclared task counts as `unknown`."""

    def __init__(
        self,
        tasks: Collection[str],
        version: str,
        *,
        declared: Callable[[], Collection[tuple[str, str]]] = tuple,
        declared_errors: Callable[[], Collection[str]] = tuple,
        connected: Callable[[], bool] = lambda: True,
        worker: WorkerState | None = None,
    ) -> None:
        """`declared` returns queues and tasks. A failed enqueue to any other queue counts as queue `unknown`."""
        self._tasks = tasks
        self._declared = declared
        self._version = version
        self._declared_errors = declared_errors
        self._known, self._known_of = ERRORS, 0
        """The types of errors that are labels, and how many tasks there were when they were collected."""
        self._connected = connected
        self._worker = worker
        self._enqueued: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._enqueue_s: defaultdict[str, _Histogram] = defaultdict(lambda: _Histogram(ENQUEUE_BUCKETS))
        self._ended: dict[str, dict[str, dict[str, _Attempts]]] = {}
        """By queue, label of the task and outcome."""
        self._dead: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._errors: defaultdict[tuple[str, str, str], int] = defaultdict(int)
        self._succeeded_at: dict[str, float] = {}
        """By schedule, the latest at the end."""
        self._by_queue: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
        """By metric, then by queue."""
        self._reconnects = 0
        self._denied = {"publish": 0, "subscribe": 0}
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            JobEnqueued: self._on_enqueued,
            EnqueueFailed: self._on_enqueue_failed,
            ConnectionRestored: self._on_restored,
            PermissionDenied: self._on_denied,
            LeaseLostEvent: lambda event: self._count("leases_lost", event.queue),
            Redelivered: lambda event: self._count("unexpected_redeliveries", event.queue),
            SettleFailed: lambda event: self._count(_SETTLE_FAILED[event.kind], event.queue),
        }
        self.registry = CollectorRegistry()
        self.registry.register(self)
        if worker is not None:
            # Not part of `collect`: the default registry of a program that registers this collector has them.
            ProcessCollector(registry=self.registry)

    # Counting

    @property
    def kinds(self) -> Collection[type[Event]]:
        """The events that `observe` counts. Not JobStarted: JobFinished contains the wait time too."""
        return {JobFinished, *self._handlers}

    def observe(self, event: Event) -> None:
        """Count an event. JobFinished occurs for every job, so it is counted inline, in few steps. ADR 16."""
        if type(event) is not JobFinished:
            if (handler := self._handlers.get(type(event))) is not None:
                handler(event)
            return
        try:
            ended = self._ended[event.queue][event.task][event.outcome]
        except KeyError:
            ended = self._entry(event.queue, event.task, event.outcome)
        run_s = event.run_s
        if run_s:
            ended.ran[bisect_left(RUN_BUCKETS, run_s)] += 1
            ended.ran_s += run_s
            wait_s = event.wait_s
            ended.waited[bisect_left(RUN_BUCKETS, wait_s)] += 1
            ended.waited_s += wait_s
        else:
            ended.unrun += 1
        if event.reason:
            self._dead[event.queue, self._label(event.task), event.reason] += 1
        if event.error is not None:
            self._errors[event.queue, self._label(event.task), self._error_label(event.error.type)] += 1
        elif event.schedule and event.outcome == "succeeded":
            self._on_tick(event.schedule)

    def _entry(self, queue: str, task: str, outcome: str) -> _Attempts:
        """Add the entry under the label of the task: undeclared tasks share one entry."""
        outcomes = self._ended.setdefault(queue, {}).setdefault(self._label(task), {})
        return outcomes.setdefault(outcome, _Attempts())

    def _on_enqueued(self, event: JobEnqueued) -> None:
        result = "duplicate" if event.duplicate else "stored"
        self._enqueued[event.queue, self._label(event.task), result] += 1
        if event.took_s:
            self._enqueue_s[event.queue].add(event.took_s)

    def _on_enqueue_failed(self, event: EnqueueFailed) -> None:
        known = event.queue in self._enqueue_s or event.queue in {queue for queue, _ in self._declared()}
        queue = event.queue if known else UNKNOWN
        self._enqueued[queue, self._label(event.task), "error"] += 1
        if event.took_s:
            self._enqueue_s[queue].add(event.took_s)

    def _count(self, name: str, queue: str) -> None:
        self._by_queue[name][queue] += 1

    def _on_restored(self, event: ConnectionRestored) -> None:
        self._reconnects += 1

    def _on_denied(self, event: PermissionDenied) -> None:
        self._denied[event.kind] += 1

    def _on_tick(self, schedule: str) -> None:
        """Remember the success of a schedule. A header of a job names it, so their number is limited here."""
        self._succeeded_at.pop(schedule, None)
        self._succeeded_at[schedule] = time.time()
        if len(self._succeeded_at) > MAX_SCHEDULES:
            del self._succeeded_at[next(iter(self._succeeded_at))]

    def _error_label(self, name: str) -> str:
        if self._known_of != len(self._tasks):
            self._known_of, self._known = len(self._tasks), ERRORS.union(self._declared_errors())
        return name if name in self._known else OTHER

    def _label(self, task: str) -> str:
        return task if task in self._tasks else UNKNOWN

    # Rendering

    def collect(self) -> Iterator[Metric]:
        """Called in the HTTP thread at each scrape. Reads copies."""
        labels = ("queue", "task", "result")
        yield _counter("jobs_enqueued", "Jobs stored by this process", labels, self._enqueued.copy().items())
        by_queue = [((queue,), seconds) for queue, seconds in self._enqueue_s.copy().items()]
        yield _histogram("enqueue_duration_seconds", "How long storing a job took", ("queue",), by_queue)
        yield from self._collect_attempts()
        queues = self._worker.queue_slots if self._worker is not None else {}
        # Start at zero: Prometheus sees no increase in a series whose first value is one.
        dead = dict.fromkeys(self._dead_series(queues), 0) | self._dead.copy()
        yield _counter("dead_letters", "Jobs dead-lettered", ("queue", "task", "reason"), dead.items())
        labels = ("queue", "task", "error_type")
        yield _counter("attempt_errors", "Attempts that ended with an error", labels, self._errors.copy().items())
        for name, text in _BY_QUEUE:
            rows = dict.fromkeys(queues, 0) | self._by_queue[name].copy()
            yield _counter(name, text, ("queue",), [((queue,), count) for queue, count in rows.items()])
        succeeded = GaugeMetricFamily(
            "jetjobs_schedule_last_success_timestamp_seconds", "When a job succeeded", labels=("schedule",)
        )
        for schedule, moment in self._succeeded_at.copy().items():
            succeeded.add_metric((schedule,), moment)
        yield succeeded
        if self._worker is not None:
            yield from worker_families(self._worker)
        yield GaugeMetricFamily("jetjobs_nats_connected", "Whether NATS is connected", self._connected())
        yield CounterMetricFamily("jetjobs_nats_reconnects", "Reconnects to NATS", self._reconnects)
        denied = [((kind,), count) for kind, count in self._denied.items()]
        yield _counter("nats_denied", "Messages and subscriptions that NATS refused", ("kind",), denied)
        versions = {"version": self._version, "python": platform.python_version()}
        yield InfoMetricFamily("jetjobs_build", "Versions", versions)

    def _dead_series(self, queues: Collection[str]) -> Iterator[tuple[str, str, str]]:
        """All series of dead letters that a worker for these queues can produce."""
        for queue, task in self._declared():
            if queue in queues:
                yield from ((queue, task, str(reason)) for reason in DeadReason)
        for queue in queues:
            yield from (
                (queue, UNKNOWN, str(reason)) for reason in (DeadReason.UNKNOWN_TASK, DeadReason.MALFORMED)
            )

    def _collect_attempts(self) -> Iterator[Metric]:
        counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        ran: defaultdict[tuple[str, ...], _Histogram] = defaultdict(_Histogram)
        waited: defaultdict[tuple[str, ...], _Histogram] = defaultdict(_Histogram)
        for queue, tasks in self._ended.copy().items():
            for task, outcomes in tasks.copy().items():
                for outcome, ended in outcomes.copy().items():
                    counts[queue, task, _OUTCOMES.get(outcome, outcome)] += sum(ended.ran) + ended.unrun
                    ran[queue, task].merge(ended.ran, ended.ran_s)
                    waited[queue, task].merge(ended.waited, ended.waited_s)
        yield _counter("attempts", "Finished attempts", ("queue", "task", "outcome"), counts.items())
        yield _histogram("attempt_duration_seconds", "How long attempts ran", ("queue", "task"), ran.items())
        yield _histogram("queue_wait_seconds", "Time from due to start", ("queue", "task"), waited.items())


_BY_QUEUE = (
    ("leases_lost", "Leases that expired while a job was running"),
    ("unexpected_redeliveries", "Deliveries of a job that was already delivered"),
    ("settle_errors", "Outcomes that could not be stored"),
    ("records_dropped", "Successful jobs whose record was not stored"),
    ("webhooks_dropped", "Jobs whose webhook this user may not store"),
)
_SETTLE_FAILED = {"outcome": "settle_errors", "record": "records_dropped", "webhook": "webhooks_dropped"}


def _histogram(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], _Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(f"jetjobs_{name}", text, labels=labels)
    for values, histogram in rows:
        if any(histogram.counts):
            family.add_metric(values, histogram.buckets(), histogram.total)
    return family


def _counter(
    name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], int]]
) -> CounterMetricFamily:
    family = CounterMetricFamily(f"jetjobs_{name}", text, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family
