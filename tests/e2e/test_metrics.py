"""Metrics and probes of real workers: every series, correct values, one port for several processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, JobRequest
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import metric_tasks
from tests.support.pages import Page, Port
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.promtool import check_metrics
from tests.support.server import Truth, server_settings
from tests.support.workers import provisioned

ROOT = Path(__file__).parent.parent.parent
SOON = timedelta(seconds=30)
pytestmark = pytest.mark.timeout(150)
TASKS = {"succeed", "retry", "exhaust", "reject", "snooze", "wait", "block", "die_once", "stay"}

FROM_EACH_PROCESS = {
    "jetjobs_jobs_enqueued_total",
    "jetjobs_enqueue_duration_seconds_bucket",
    "jetjobs_attempts_total",
    "jetjobs_attempt_duration_seconds_bucket",
    "jetjobs_queue_wait_seconds_bucket",
    "jetjobs_dead_letters_total",
    "jetjobs_attempt_errors_total",
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "jetjobs_running_jobs",
    "jetjobs_slots",
    "jetjobs_leases_lost_total",
    "jetjobs_unexpected_redeliveries_total",
    "jetjobs_settle_errors_total",
    "jetjobs_event_loop_lag_seconds",
    "jetjobs_nats_connected",
    "jetjobs_nats_reconnects_total",
    "jetjobs_build_info",
}
FROM_THE_LEADER = {
    "jetjobs_queue_jobs",
    "jetjobs_queue_oldest_job_age_seconds",
    "jetjobs_queue_paused",
    "jetjobs_queue_demand",
    "jetjobs_queue_bytes",
    "jetjobs_workers",
    "jetjobs_scrape_errors_total",
}


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    metric_tasks.app.configure(server_settings(server.url))
    async with provisioned(metric_tasks.app) as opened:
        yield opened


@pytest.fixture
def port(unused_tcp_port: int) -> Port:
    return Port(unused_tcp_port)


def worker(server: EmbeddedServer, port: Port, *options: str) -> Process:
    arguments = f"worker tests.e2e.metric_tasks:app -q default --log-format json --http {port.address}".split()
    return Process(
        [*arguments, *options], ROOT, {"NATS_URL": server.url, "JETJOBS_QUEUES__UNKNOWN_TASK_GRACE": "0s"}
    )


async def until(process: Process, text: str, count: int = 1) -> str:
    return await asyncio.to_thread(process.wait_for, text, count, 30)


async def ended(port: Port, count: int) -> Page:
    """The first page with that many ended attempts. A job that found no slot in time does not count."""

    async def reached() -> Page | None:
        page = await port.page()
        released = page.total("jetjobs_attempts_total", outcome="released")
        return page if page.total("jetjobs_attempts_total") - released >= count else None

    return await eventually(reached, 90)


@pytest.mark.alone
@pytest.mark.timeout(240)
async def test_under_load_every_series_exists_and_agrees_with_the_streams(
    server: EmbeddedServer, app: JetJobs, truth: Truth, port: Port
) -> None:
    counts = {"succeed": 2_000, "retry": 30, "exhaust": 40, "reject": 20, "snooze": 10}
    with worker(server, port, "--slots", "50", "--log-level", "error"):
        await port.until("/readyz", 200)
        requests: list[JobRequest[Any]] = [
            app.tasks[name].bind(n) for name, count in counts.items() for n in range(count)
        ]
        for number in range(10_000):
            await truth.nc.publish(f"jobs.work.default.normal.nosuch{number}", b"{}")
        await truth.nc.publish("jobs.work.default.normal.succeed", b"no JSON")
        await truth.nc.publish("jobs.work.default.normal.succeed", b'{"n": "x"}')
        await truth.nc.flush()
        requests += [metric_tasks.stay.bind(n) for n in range(7)]
        report = await app.enqueue_many(requests)
        assert not report.refused
        total = sum(counts.values()) + 10_000 + 2
        page = await ended(port, total)

        # Attempts, compared with the streams.
        done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
        assert page.total("jetjobs_attempts_total", outcome="succeeded") == len(done) == 2_000
        waiting = await truth.jobs(lane="retry")
        moved = page.total("jetjobs_attempts_total", outcome="retried")
        assert moved + page.total("jetjobs_attempts_total", outcome="snoozed") == len(waiting) == 40
        dead = await truth.subjects("jobs-dead", "jobs.dead.>")
        assert page.total("jetjobs_attempts_total", outcome="dead_lettered") == len(dead) == 10_062
        reasons = {"exhausted": 40, "permanent": 20, "unknown_task": 10_000, "malformed": 1, "expired": 0}
        for reason, count in {**reasons, "invalid_arguments": 1, "crashed": 0}.items():
            assert page.total("jetjobs_dead_letters_total", reason=reason) == count
        assert page.total("jetjobs_attempt_duration_seconds_count") == sum(counts.values())
        assert page.total("jetjobs_queue_wait_seconds_count") == sum(counts.values())

        # Queues, as counted by the leader.
        page = await port.until_page("jetjobs_queue_jobs", 10_062, queue="default", state="dead")
        await port.until_page("jetjobs_workers", 1, queue="default")
        page = await port.until_page("jetjobs_queue_jobs", 0, queue="default", state="running")
        states = {s: page.value("jetjobs_queue_jobs", queue="default", state=s) for s in page.labels("state")}
        assert states == {"queued": 0, "running": 0, "scheduled": 0, "retrying": 40, "dead": 10_062}
        assert page.value("jetjobs_queue_jobs", queue="unserved", state="queued") == 7
        assert page.value("jetjobs_queue_demand", queue="unserved") == 7
        assert (page.value("jetjobs_queue_oldest_job_age_seconds", queue="unserved") or 0) > 0
        bytes_there = (await truth.api("STREAM.INFO.jobs-work-unserved"))["state"]["bytes"]
        assert page.value("jetjobs_queue_bytes", queue="unserved") == bytes_there
        assert page.value("jetjobs_slots", queue="default") == 50
        assert page.value("jetjobs_running_jobs", queue="default") == 0

        # Every series, only known label values, and a page that promtool accepts.
        a_producers = {"jetjobs_jobs_enqueued_total", "jetjobs_enqueue_duration_seconds_bucket"}
        assert FROM_EACH_PROCESS - a_producers | FROM_THE_LEADER <= page.names
        assert page.labels("task") <= {*TASKS, "unknown"}
        assert page.labels("queue") == {"default", "unserved"}
        outcomes = {"succeeded", "retried", "snoozed", "released", "dead_lettered", "cancelled"}
        assert page.labels("outcome") <= outcomes
        check_metrics(page.text)


async def test_a_producer_counts_stored_and_failed_enqueues(app: JetJobs, truth: Truth) -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    metrics = app.metrics()
    try:
        registry.register(metrics)
        await metric_tasks.succeed.options(key="a").enqueue(1)
        await metric_tasks.succeed.options(key="a").enqueue(1)
        report = await app.enqueue_many([metric_tasks.succeed.bind(n) for n in range(10)])
        assert len(report.stored) == 10
        with pytest.raises(Exception, match="nosuch"):
            await metric_tasks.succeed.options(queue="nosuch").enqueue(1)
        mixed: list[JobRequest[Any]] = [
            metric_tasks.stay.bind(1),
            metric_tasks.succeed.options(queue="nosuch").bind(1),
        ]
        assert len((await app.enqueue_many(mixed)).refused) == 1
        text = generate_latest(registry).decode()
    finally:
        app.forget(metrics.observe)
    page = Page(text)
    name = "jetjobs_jobs_enqueued_total"
    assert page.value(name, queue="default", task="succeed", result="stored") == 11
    assert page.value(name, queue="default", task="succeed", result="duplicate") == 1
    assert page.value(name, queue="unserved", task="stay", result="stored") == 1
    assert page.value(name, queue="unknown", task="succeed", result="error") == 2
    assert page.value("jetjobs_enqueue_duration_seconds_count", queue="default") == 3
    assert len(await truth.jobs()) == 11
    check_metrics(text)


async def test_processes_share_one_port_and_each_has_its_label(
    server: EmbeddedServer, app: JetJobs, port: Port
) -> None:
    name, succeeded = "jetjobs_attempts_total", {"queue": "default", "task": "succeed", "outcome": "succeeded"}

    async def counted(count: int) -> Page | None:
        page = await port.page()
        return page if page.total(name, **succeeded) == count else None

    with worker(server, port, "--processes", "2", "--slots", "5") as process:
        await until(process, "worker.ready", 2)
        await port.until("/readyz", 200)
        assert (await port.get("/livez"))[0] == 200
        for handle in [await metric_tasks.succeed.enqueue(n) for n in range(40)]:
            await handle.result(SOON)
        page = await eventually(lambda: counted(40), 30)
        assert page.labels("process") == {"0", "1"}
        assert page.value("jetjobs_slots", queue="default", process="1") == 5
        assert page.value("jetjobs_nats_connected", process="0") == 1
        for number in ("0", "1"):
            assert (page.value("process_resident_memory_bytes", process=number) or 0) > 1_000_000
        before = {number: page.value(name, **succeeded, process=number) for number in ("0", "1")}
        check_metrics(page.text)

        await metric_tasks.die_once.enqueue()
        line = await until(process, "restarting in")
        died, stayed = ("0", "1") if "worker 0 died" in line else ("1", "0")
        assert (await port.page()).value(name, **succeeded, process=stayed) == before[stayed]
        await until(process, "worker.ready", 3)
        await port.until("/readyz", 200)
        page = await port.page()
        assert page.value("jetjobs_slots", queue="default", process=died) == 5
        assert page.total(name, **succeeded, process=died) == 0
        assert await asyncio.to_thread(process.end) == 0


async def test_a_frozen_process_is_not_ready_and_not_on_the_page(
    server: EmbeddedServer, app: JetJobs, port: Port
) -> None:
    with worker(server, port, "--processes", "2", "--slots", "5") as process:
        lines = [await until(process, "worker.ready", n) for n in (1, 2)]
        await port.until("/readyz", 200)
        pids = {int(line.split('"worker_id": "')[1].split('"')[0].rsplit("-", 1)[1]) for line in lines}
        assert len(pids) == 2
        frozen = pids.pop()
        os.kill(frozen, signal.SIGSTOP)
        try:
            await port.until("/readyz", 503)
            assert len((await port.page()).labels("process")) == 1
        finally:
            os.kill(frozen, signal.SIGCONT)
        await port.until("/readyz", 200)
        assert (await port.page()).labels("process") == {"0", "1"}
        assert await asyncio.to_thread(process.end) == 0


async def test_a_port_in_use_ends_the_supervisor_with_a_clear_error(
    server: EmbeddedServer, app: JetJobs, port: Port
) -> None:
    with worker(server, port) as first:
        await until(first, "worker.ready")
        with worker(server, port, "--processes", "2") as second:
            assert await asyncio.to_thread(second.popen.wait, 30) == 2
            await until(second, "cannot serve HTTP on")


async def test_a_blocked_loop_is_visible_on_the_page_while_it_is_blocked(
    server: EmbeddedServer, app: JetJobs, port: Port
) -> None:
    with worker(server, port) as process:
        await until(process, "worker.ready")
        handle = await metric_tasks.block.enqueue(5.0)

        async def lags() -> bool:
            return ((await port.page()).value("jetjobs_event_loop_lag_seconds") or 0) > 1

        await eventually(lags, 30)
        assert (await port.get("/livez"))[0] == 200
        await handle.result(SOON)
        assert await asyncio.to_thread(process.end) == 0


async def test_a_worker_is_ready_with_a_long_queue_and_not_without_a_lane_or_when_it_is_quiet(
    server: EmbeddedServer, app: JetJobs, port: Port, truth: Truth
) -> None:
    with worker(server, port, "--slots", "1", "--provision", "verify") as process:
        await until(process, "worker.ready")
        await app.enqueue_many([metric_tasks.wait.bind(600.0) for _ in range(1_000)])
        await port.until_page("jetjobs_running_jobs", 1, queue="default")
        assert (await port.get("/readyz"))[0] == 200
        await truth.api("CONSUMER.DELETE.jobs-work-default.high")
        await port.until("/readyz", 503)
        assert (await port.get("/livez"))[0] == 200
        await app.provision()
        await port.until("/readyz", 200)
        process.send(signal.SIGTERM)
        await until(process, "worker.quiet")
        assert (await port.get("/readyz"))[0] == 503
        assert (await port.get("/livez"))[0] == 200
        assert await asyncio.to_thread(process.end, signal.SIGTERM, 30) == 1
