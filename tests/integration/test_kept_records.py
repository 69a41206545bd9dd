"""A job with the header `Jetjobs-Keep` keeps its record for that long, also if its task stores no result."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.errors import ResultExpired
from jetjobs.model.events import JobStarted
from jetjobs.model.wire import headers as h
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=10)


async def _enqueue(truth: Truth, task: str, keep: str) -> str:
    """Publish a job with the header; its id."""
    job_id = f"kept-{task}"
    sent = {"Jetjobs-Run": "r1", "Jetjobs-Keep": keep}
    await truth.js.publish(f"jobs.work.default.normal.{task}.-.{job_id}", b"{}", headers=sent)
    return job_id


async def _ttl(truth: Truth, task: str, job_id: str) -> str:
    message = await truth.js.get_last_msg("KV_jobs-done-default", f"$KV.jobs-done-default.{task}.{job_id}")
    return str((message.headers or {})["Nats-TTL"])


@pytest.mark.parametrize(
    ("keep", "ttl"),
    [
        ("7200", "7200s"),
        ("60", "3600s"),
        ("7200.2", "7201s"),
        ("forever", "3600s"),
        ("-1", "3600s"),
        ("9e10", "315360000s"),
    ],
)
async def test_a_record_is_kept_for_at_least_the_requested_time(
    app: JetJobs, truth: Truth, keep: str, ttl: str
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with provisioned_worker(app):
        job_id = await _enqueue(truth, "work", keep)
        assert await (await app.job(job_id)).result(SOON) == "done"
        assert await _ttl(truth, "work", job_id) == ttl


async def test_a_task_that_stores_no_result_leaves_a_record_without_it(app: JetJobs, truth: Truth) -> None:
    @app.task(store_result=False)
    async def work() -> str:
        return "unseen"

    async with provisioned_worker(app):
        job_id = await _enqueue(truth, "work", "7200")
        record = (await eventually(truth.done))[job_id]
        assert record["state"] == "succeeded"
        assert record["result_stored"] is False
        assert "result" not in record
        assert await _ttl(truth, "work", job_id) == "7200s"
        assert (await app.jobs.get(job_id)).result is None
        with pytest.raises(ResultExpired, match="does not store results"):
            await (await app.job(job_id)).result(SOON)


async def test_a_caller_that_does_not_know_the_task_learns_that_it_stores_no_result(
    app: JetJobs, truth: Truth, make_app: Any
) -> None:
    @app.task(store_result=False)
    async def work() -> str:
        return "unseen"

    async with provisioned_worker(app), make_app("other") as other:
        job_id = await _enqueue(truth, "work", "7200")
        await eventually(truth.done)
        with pytest.raises(ResultExpired, match="task 'work' does not store results"):
            await (await other.job(job_id)).result(SOON)


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_redelivery_that_finds_such_a_record_does_not_run_the_job_again(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(store_result=False)
    async def work() -> None: ...

    async with provisioned(app):
        job_id = await _enqueue(truth, "work", "7200")
        subscription = await truth.js.pull_subscribe_bind("normal", "jobs-work-default")
        await subscription.fetch(1, timeout=5)
        record = b'{"state":"succeeded","run":"r1","result_stored":false}'
        await truth.js.publish(f"$KV.jobs-done-default.work.{job_id}", record)
        async with running(app.worker()):
            await truth.until_empty()
    assert not probe.of(JobStarted)


async def test_without_the_header_such_a_task_still_leaves_no_record(app: JetJobs, truth: Truth) -> None:
    @app.task(store_result=False)
    async def work() -> None: ...

    async with provisioned_worker(app):
        await work.enqueue()
        await truth.until_empty()
        assert await truth.done() == {}


async def test_cancelled_jobs_and_replays_keep_the_header(app: JetJobs, truth: Truth, probe: Probe) -> None:
    failing = True

    @app.task(retry=1)
    async def work() -> None:
        if failing:
            raise ValueError("no")

    @app.task
    async def waits() -> None:
        await asyncio.sleep(60)

    async with provisioned(app):
        for task in ("work", "waits"):
            await _enqueue(truth, task, "7200")
        await app.jobs.cancel("kept-waits")
        assert await _ttl(truth, "waits", "kept-waits") == "86400s"
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
            failing = False
            letter = await app.dead.get("kept-work")
            assert letter is not None
            await app.dead.replay(letter)
            await probe.finished(1, "succeeded")
            assert await _ttl(truth, "work", "kept-work") == "7200s"


async def test_a_job_cancelled_while_it_runs_keeps_its_record(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def work() -> None:
        await asyncio.sleep(60)

    async with provisioned_worker(app):
        job_id = await _enqueue(truth, "work", "100000")
        await probe.wait(JobStarted)
        await app.jobs.cancel(job_id)
        await probe.finished(1, "cancelled")
        assert await _ttl(truth, "work", job_id) == "100000s"


async def test_the_header_is_kept_by_a_retry(app: JetJobs, truth: Truth) -> None:
    attempts = 0

    @app.task(retry=2)
    async def work() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ValueError("once")

    async with provisioned_worker(app):
        await _enqueue(truth, "work", "7200")
        (subject,) = await eventually(lambda: truth.jobs(lane="retry"))
        message = await truth.js.get_last_msg("jobs-work-default", subject)
        assert (message.headers or {})[h.KEEP] == "7200"
