"""Pages of several processes as one."""

from __future__ import annotations

import json

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jetjobs.model.events import JobFinished
from jetjobs.observe.metrics import Metrics
from jetjobs.observe.pages import Page, PageCollector, merge, write_page
from tests.unit.test_metrics import AWorker

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def a_page(
    attempts: int, *, running: int = 0, connected: bool = True, lag: float = 0.0, task: str = "greet"
) -> Page:
    worker = AWorker()
    worker.running_jobs = {"mail": running}
    metrics = Metrics({"greet", "pay"}, "1", connected=lambda: connected, worker=worker, loop_lag=lambda: lag)
    for _ in range(attempts):
        metrics.observe(JobFinished("mail", task, "u1", 1, "succeeded", 0.02, 0.5))
    crossed: Page = json.loads(json.dumps(write_page(metrics.collect())))
    return crossed


def shown(page: Page) -> Samples:
    text = generate_latest(PageCollector(lambda: page).registry).decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(page: Page, name: str, **labels: str) -> float | None:
    return shown(page).get((name, frozenset(labels.items())))


def test_one_page_comes_out_as_it_went_in() -> None:
    page = a_page(3, running=1)
    assert shown(merge([page], [])) == shown(page)


def test_counters_and_histograms_are_summed() -> None:
    merged = merge([a_page(3), a_page(4), a_page(2, task="pay")], [])
    assert value(merged, "jetjobs_attempts_total", queue="mail", task="greet", outcome="succeeded") == 7
    assert value(merged, "jetjobs_attempts_total", queue="mail", task="pay", outcome="succeeded") == 2
    name = "jetjobs_attempt_duration_seconds"
    assert value(merged, f"{name}_count", queue="mail", task="greet") == 7
    assert value(merged, f"{name}_bucket", queue="mail", task="greet", le="0.01") == 0
    assert value(merged, f"{name}_bucket", queue="mail", task="greet", le="0.025") == 7
    assert value(merged, f"{name}_bucket", queue="mail", task="greet", le="+Inf") == 7


def test_gauges_are_combined_as_fits_each() -> None:
    merged = merge([a_page(0, running=2, lag=0.5), a_page(0, running=3, lag=0.1, connected=False)], [])
    assert value(merged, "jetjobs_running_jobs", queue="mail") == 5
    assert value(merged, "jetjobs_slots", queue="mail") == 20
    assert value(merged, "jetjobs_event_loop_lag_seconds") == 0.5
    assert value(merged, "jetjobs_nats_connected") == 0
    assert [count for (name, _), count in shown(merged).items() if name == "jetjobs_build_info"] == [1]


def test_of_processes_that_have_ended_only_what_grows_is_kept() -> None:
    merged = merge([a_page(3, running=2)], [a_page(4, running=3)])
    assert value(merged, "jetjobs_attempts_total", queue="mail", task="greet", outcome="succeeded") == 7
    assert value(merged, "jetjobs_running_jobs", queue="mail") == 2
    ended = merge([], [a_page(3, running=2), a_page(4, running=3)])
    assert value(ended, "jetjobs_attempts_total", queue="mail", task="greet", outcome="succeeded") == 7
    assert value(ended, "jetjobs_running_jobs", queue="mail") is None
    assert shown(merge([], [ended])) == shown(ended)
