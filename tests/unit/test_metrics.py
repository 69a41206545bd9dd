"""Metrics: closed sets of labels, and a page that Prometheus can read."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jetjobs.errors import JobTimeout
from jetjobs.model.events import (
    ConnectionRestored,
    EnqueueFailed,
    Event,
    JobEnqueued,
    JobFinished,
    JobStarted,
    LeaseLostEvent,
    PermissionDenied,
    Redelivered,
    SettleFailed,
)
from jetjobs.model.outcome import ErrorInfo
from jetjobs.model.views.error_text import type_name
from jetjobs.model.views.queue_info import LaneState, Pause, QueueState
from jetjobs.model.views.worker_info import QueueSlots
from jetjobs.observe.metrics import ENQUEUE_BUCKETS, ERRORS, RUN_BUCKETS, Metrics

Labels = dict[str, str]


NOW = datetime(2027, 1, 1, tzinfo=UTC)


class AWorker:
    """What a worker says of itself at a scrape."""

    def __init__(self) -> None:
        self.queue_slots = {"mail": QueueSlots(2, 10), "slow": QueueSlots(0, 3)}
        self.stuck_threads = 1
        self.queue_states: list[QueueState] = []
        self.count_errors = 0
        self.schedule_lateness: dict[str, float] = {}
        self.loop_lag_s = 0.25


def metrics_of(worker: AWorker | None = None, **options: Any) -> Metrics:
    return Metrics(
        {"greet", "pay"}, "1.2.3", declared=lambda: [("mail", "greet"), ("other", "pay")], worker=worker, **options
    )


def metrics_after(*events: Event) -> Metrics:
    metrics = metrics_of(AWorker())
    for event in events:
        metrics.observe(event)
    return metrics


def page(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample on the page, as a scraper reads it."""
    text = generate_latest(metrics.registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return page(metrics).get((name, frozenset(labels.items())))


def finished(task: str = "greet", outcome: str = "succeeded", run_s: float = 0.1, reason: str = "") -> JobFinished:
    return JobFinished("mail", task, "u1", 1, outcome, run_s, 0.5, reason)


def test_lateness_is_shown_by_schedule_and_the_latest_of_too_many() -> None:
    worker = AWorker()
    metrics = metrics_of(worker)
    assert not [name for name, _ in page(metrics) if name == "jetjobs_schedule_lateness_seconds"]
    worker.schedule_lateness = {"nightly": 0.0, "hourly": 61.5}
    assert value(metrics, "jetjobs_schedule_lateness_seconds", schedule="nightly") == 0
    assert value(metrics, "jetjobs_schedule_lateness_seconds", schedule="hourly") == 61.5
    worker.schedule_lateness = {f"s{number:05}": float(number >= 9_990) for number in range(10_000)}
    shown = {
        dict(labels)["schedule"]: late
        for (name, labels), late in page(metrics).items()
        if name == "jetjobs_schedule_lateness_seconds"
    }
    assert len(shown) == 1_000
    assert [name for name, late in sorted(shown.items()) if late] == [f"s{n:05}" for n in range(9_990, 10_000)]
    assert sorted(shown)[:3] == ["s00000", "s00001", "s00002"]


def test_attempts_are_counted_by_queue_task_and_outcome() -> None:
    metrics = metrics_after(finished(), finished(), finished("pay"), finished(outcome="retried"))
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="greet", outcome="succeeded") == 2
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="pay", outcome="succeeded") == 1
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="greet", outcome="retried") == 1


@given(st.lists(st.text(max_size=10), max_size=10))
def test_undeclared_tasks_count_as_unknown(names: list[str]) -> None:
    metrics = metrics_after(
        *(finished(name) for name in names), *(JobEnqueued("mail", n, "u", False, 0) for n in names)
    )
    seen = {dict(labels)["task"] for (_, labels) in page(metrics) if "task" in dict(labels)}
    assert seen <= {"greet", "pay", "unknown"}
    strange = sum(name not in ("greet", "pay") for name in names)
    counted = value(metrics, "jetjobs_attempts_total", queue="mail", task="unknown", outcome="succeeded")
    assert (counted or 0) == strange


@given(st.lists(st.text(max_size=10), max_size=10))
def test_the_types_of_errors_are_a_closed_set(names: list[str]) -> None:
    known = ["ValueError", type_name(JobTimeout), "shop.Declined"]
    metrics = metrics_of(AWorker(), declared_errors=lambda: ["shop.Declined"])
    for name in (*names, *known):
        metrics.observe(replace(finished(outcome="retried"), error=ErrorInfo(name, "text", "")))
    counts = {
        dict(labels)["error_type"]: count
        for (name, labels), count in page(metrics).items()
        if name == "jetjobs_attempt_errors_total"
    }
    assert set(known) <= counts.keys() <= {*known, *ERRORS, "other"}
    assert counts.get("other", 0) == sum(name not in {*ERRORS, "shop.Declined"} for name in names)


def test_errors_of_tasks_that_are_declared_later_are_labels_too() -> None:
    tasks = {"greet": 1}
    declared: list[str] = []
    metrics = Metrics(tasks.keys(), "1", declared_errors=lambda: declared)
    failed = replace(finished(outcome="retried"), error=ErrorInfo("shop.Declined", "", ""))
    metrics.observe(failed)
    tasks["pay"] = 2
    declared.append("shop.Declined")
    metrics.observe(failed)
    for label in ("other", "shop.Declined"):
        labels = {"queue": "mail", "task": "greet", "error_type": label}
        assert value(metrics, "jetjobs_attempt_errors_total", **labels) == 1


def test_the_last_success_of_each_schedule_is_shown_for_a_thousand_of_them() -> None:
    name = "jetjobs_schedule_last_success_timestamp_seconds"
    metrics = metrics_after(replace(finished(outcome="retried"), schedule="nightly"), finished())
    assert not [one for one, _ in page(metrics) if one == name]
    before = time.time()
    metrics.observe(replace(finished(), schedule="nightly"))
    assert before <= (value(metrics, name, schedule="nightly") or 0) <= time.time()
    for number in range(1_500):
        metrics.observe(replace(finished(), schedule=f"s{number}"))
    shown = [dict(labels)["schedule"] for one, labels in page(metrics) if one == name]
    assert sorted(shown) == sorted(f"s{number}" for number in range(500, 1_500))


def test_the_page_of_a_worker_has_the_metrics_of_its_process() -> None:
    metrics = metrics_of(AWorker())
    assert (value(metrics, "process_resident_memory_bytes") or 0) > 1_000_000
    assert (value(metrics, "process_start_time_seconds") or 0) > 1e9
    assert value(metrics, "process_cpu_seconds_total") is not None
    other = CollectorRegistry()
    ProcessCollector(registry=other)
    other.register(metrics)  # as a program with its own registry does: nothing is there twice


def test_dead_letters_are_counted_by_reason() -> None:
    metrics = metrics_after(
        finished(outcome="dead_lettered", reason="exhausted"),
        finished("nope", "dead_lettered", 0.0, "unknown_task"),
    )
    assert value(metrics, "jetjobs_dead_letters_total", queue="mail", task="greet", reason="exhausted") == 1
    assert value(metrics, "jetjobs_dead_letters_total", queue="mail", task="unknown", reason="unknown_task") == 1


def test_stored_jobs_and_duplicates_are_counted_separately() -> None:
    metrics = metrics_after(
        JobEnqueued("mail", "greet", "u1", False, 0.1),
        JobEnqueued("mail", "greet", "u1", True, 0.1),
        JobEnqueued("mail", "greet", "u2", True, 0.1),
    )
    assert value(metrics, "jetjobs_jobs_enqueued_total", queue="mail", task="greet", result="stored") == 1
    assert value(metrics, "jetjobs_jobs_enqueued_total", queue="mail", task="greet", result="duplicate") == 2


RUNS = st.lists(st.floats(1e-6, 100_000) | st.sampled_from(RUN_BUCKETS), min_size=1, max_size=30)


@given(RUNS)
def test_buckets_are_cumulative_and_count_what_is_at_most_their_limit(runs: list[float]) -> None:
    metrics = metrics_after(*(finished(run_s=run_s) for run_s in runs))
    name = "jetjobs_attempt_duration_seconds"
    samples = page(metrics)
    buckets = {
        float(dict(labels)["le"]): count
        for (sample, labels), count in samples.items()
        if sample == f"{name}_bucket"
    }
    assert sorted(buckets) == [*map(float, RUN_BUCKETS), float("inf")]
    for limit, count in buckets.items():
        assert count == sum(run_s <= limit for run_s in runs)
    assert value(metrics, f"{name}_count", queue="mail", task="greet") == len(runs)
    assert value(metrics, f"{name}_sum", queue="mail", task="greet") == pytest.approx(sum(runs))


def test_waiting_is_measured_by_queue_and_task() -> None:
    metrics = metrics_after(finished(), finished(), finished("pay"))
    assert value(metrics, "jetjobs_queue_wait_seconds_count", queue="mail", task="pay") == 1
    assert value(metrics, "jetjobs_queue_wait_seconds_count", queue="mail", task="greet") == 2
    assert value(metrics, "jetjobs_queue_wait_seconds_sum", queue="mail", task="greet") == pytest.approx(1.0)


def test_lost_leases_redeliveries_and_failed_settlements_are_counted() -> None:
    metrics = metrics_after(
        *[Redelivered("mail", "normal", 7, 2)] * 2,
        LeaseLostEvent("mail", "greet", "u1"),
        SettleFailed("mail", "greet", "u1", "x"),
        *[SettleFailed("mail", "greet", "u1", "full", "record")] * 2,
        LeaseLostEvent("b", "", ""),
    )
    assert value(metrics, "jetjobs_leases_lost_total", queue="mail") == 1
    assert value(metrics, "jetjobs_leases_lost_total", queue="b") == 1
    assert value(metrics, "jetjobs_settle_errors_total", queue="mail") == 1
    assert value(metrics, "jetjobs_records_dropped_total", queue="mail") == 2
    assert value(metrics, "jetjobs_unexpected_redeliveries_total", queue="mail") == 2


def test_what_alerts_ask_the_increase_of_is_there_from_zero_on() -> None:
    metrics = metrics_after()
    for name in ("leases_lost", "unexpected_redeliveries", "settle_errors"):
        assert value(metrics, f"jetjobs_{name}_total", queue="mail") == 0
    assert value(metrics, "jetjobs_dead_letters_total", queue="mail", task="greet", reason="exhausted") == 0
    assert value(metrics, "jetjobs_dead_letters_total", queue="mail", task="unknown", reason="unknown_task") == 0
    assert value(metrics, "jetjobs_dead_letters_total", queue="other", task="pay", reason="exhausted") is None


def test_the_connection_is_shown_and_reconnects_counted() -> None:
    connected = [True]
    metrics = metrics_of(connected=lambda: connected[0])
    assert value(metrics, "jetjobs_nats_connected") == 1
    connected[0] = False
    assert value(metrics, "jetjobs_nats_connected") == 0
    metrics.observe(ConnectionRestored(1.0, "nats://a:1"))
    assert value(metrics, "jetjobs_nats_reconnects_total") == 1


def test_violations_are_counted_by_kind_from_zero_on() -> None:
    metrics = metrics_after(PermissionDenied("publish", "a", False), PermissionDenied("publish", "b", True))
    assert value(metrics, "jetjobs_nats_denied_total", kind="publish") == 2
    assert value(metrics, "jetjobs_nats_denied_total", kind="subscribe") == 0


def test_slots_stuck_threads_lag_and_versions_are_shown() -> None:
    metrics = metrics_after()
    assert value(metrics, "jetjobs_stuck_threads") == 1
    assert value(metrics, "jetjobs_running_jobs", queue="mail") == 2
    assert value(metrics, "jetjobs_running_jobs", queue="slow") == 0
    assert value(metrics, "jetjobs_slots", queue="mail") == 10
    assert value(metrics, "jetjobs_slots", queue="slow") == 3
    assert value(metrics, "jetjobs_event_loop_lag_seconds") == 0.25
    info = next(dict(labels) for (name, labels) in page(metrics) if name == "jetjobs_build_info")
    assert set(info) == {"version", "python"}
    assert info["version"] == "1.2.3"


def test_a_process_without_a_worker_shows_none_of_a_workers_gauges() -> None:
    names = {name for name, _ in page(metrics_of())}
    assert names == {
        "jetjobs_nats_connected",
        "jetjobs_nats_reconnects_total",
        "jetjobs_nats_denied_total",
        "jetjobs_build_info",
    }


def test_jobs_that_were_not_stored_count_as_errors() -> None:
    metrics = metrics_after(EnqueueFailed("mail", "greet", "QueueNotFound", "none", 0.1))
    assert value(metrics, "jetjobs_jobs_enqueued_total", queue="mail", task="greet", result="error") == 1
    assert value(metrics, "jetjobs_enqueue_duration_seconds_count", queue="mail") == 1


@given(st.lists(st.text(max_size=10), max_size=50))
def test_failed_enqueues_to_undeclared_queues_make_no_label(queues: list[str]) -> None:
    metrics = metrics_after(*(EnqueueFailed(queue, "greet", "QueueNotFound", "none", 0.1) for queue in queues))
    seen = {dict(labels)["queue"] for (_, labels) in page(metrics) if "queue" in dict(labels)}
    assert seen <= {"mail", "slow", "other", "unknown"}


def test_storing_is_timed_by_queue_and_once_for_jobs_stored_together() -> None:
    metrics = metrics_after(
        JobEnqueued("mail", "greet", "u1", False, 0.002), *(JobEnqueued("mail", "pay", "u", False, 0.0),) * 9
    )
    name = "jetjobs_enqueue_duration_seconds"
    assert value(metrics, f"{name}_count", queue="mail") == 1
    buckets = {float(dict(k)["le"]): v for (n, k), v in page(metrics).items() if n == f"{name}_bucket"}
    assert sorted(buckets) == [*map(float, ENQUEUE_BUCKETS), float("inf")]
    assert [limit for limit, count in sorted(buckets.items()) if count] == [
        limit for limit in sorted(buckets) if limit >= 0.0025
    ]


def test_what_was_never_begun_counts_as_an_attempt_but_has_no_duration() -> None:
    metrics = metrics_after(finished(outcome="released", run_s=0.0))
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="greet", outcome="released") == 1
    assert value(metrics, "jetjobs_attempt_duration_seconds_count", queue="mail", task="greet") is None
    assert value(metrics, "jetjobs_queue_wait_seconds_count", queue="mail", task="greet") is None


def test_outcomes_are_a_closed_set() -> None:
    metrics = metrics_after(
        finished(outcome="suspected"), finished(outcome="released"), finished(outcome="cancelled")
    )
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="greet", outcome="released") == 2
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="greet", outcome="cancelled") == 1
    assert value(metrics, "jetjobs_attempts_total", queue="mail", task="greet", outcome="suspected") is None


def test_counts_of_queues_are_shown_while_there_are_any() -> None:
    worker = AWorker()
    metrics = metrics_of(worker)
    assert not [name for name, _ in page(metrics) if name.startswith("jetjobs_queue_")]
    lane = LaneState("normal", NOW, 5, 2, 0, 0, 0, None)
    mail = QueueState("mail", NOW, None, (lane,), 3, 1, 4, timedelta(seconds=12.5), 1000, 2, 2, 4)
    slow = replace(mail, queue="slow", pause=Pause(NOW), lanes=(replace(lane, paused_until=NOW),), workers=0)
    worker.queue_states = [mail, slow]
    worker.count_errors = 3
    states = {"queued": 5, "running": 2, "scheduled": 3, "retrying": 1, "dead": 4}
    for state, count in states.items():
        assert value(metrics, "jetjobs_queue_jobs", queue="mail", state=state) == count
    assert value(metrics, "jetjobs_queue_oldest_job_age_seconds", queue="mail") == 12.5
    assert value(metrics, "jetjobs_queue_paused", queue="mail") == 0
    assert value(metrics, "jetjobs_queue_paused", queue="slow") == 1
    assert value(metrics, "jetjobs_queue_demand", queue="mail") == 7
    assert value(metrics, "jetjobs_queue_demand", queue="slow") == 0
    assert value(metrics, "jetjobs_queue_bytes", queue="mail") == 1000
    assert value(metrics, "jetjobs_workers", queue="mail") == 2
    assert value(metrics, "jetjobs_workers", queue="slow") == 0
    assert value(metrics, "jetjobs_scrape_errors_total") == 3


def test_an_event_that_is_not_counted_changes_nothing() -> None:
    assert page(metrics_after(JobStarted("mail", "greet", "u1", 1, 1, 0.1))) == page(metrics_after())


def test_a_page_without_events_can_be_read_and_every_family_has_help() -> None:
    text = generate_latest(metrics_after().registry).decode()
    families = list(text_string_to_metric_families(text))
    assert families
    assert all(family.documentation for family in families)
    assert all(family.name.startswith(("jetjobs_", "process_")) for family in families)


@given(st.text(max_size=20))
def test_a_page_can_be_read_whatever_the_queue_is_called(queue: str) -> None:
    metrics = metrics_after(JobFinished(queue, "greet", "u1", 1, "succeeded", 0.1, 0.1))
    assert value(metrics, "jetjobs_attempts_total", queue=queue, task="greet", outcome="succeeded") == 1
