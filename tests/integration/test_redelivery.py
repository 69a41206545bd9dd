"""Leases, and jobs that are delivered again because a worker lost its lease or died."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import JetJobs, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.events import JobFinished, JobStarted, LeaseLostEvent
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)


# Redelivery


async def _hold(truth: Truth, times: int) -> None:
    """Take the next job like a worker that dies with it: deliver it `times` times and never answer."""
    for _ in range(times):
        subscription = await truth.js.pull_subscribe_bind("normal", "jobs-work-default")
        await subscription.fetch(1, timeout=5)
        await subscription.unsubscribe()


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_job_whose_worker_died_runs_again_as_the_same_attempt(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> list[int]:
        return [current_job().attempt, current_job().delivery]

    async with provisioned(app):
        handle = await work.enqueue()
        await _hold(truth, 1)
        async with running(app.worker()):
            assert await handle.result(SOON) == [1, 2]


@pytest.mark.settings(queues={"lease": "1s", "max_crashes": 1})
async def test_a_job_that_killed_its_workers_too_often_is_dead_lettered_unrun(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        await _hold(truth, 1)
        async with running(app.worker()):
            await probe.finished(1, "dead_lettered")
        assert (await truth.dead())[handle.id]["reason"] == "crashed"
        assert not probe.of(JobStarted)


@pytest.mark.settings(queues={"lease": "1s"})
@pytest.mark.parametrize("next_place", ["done", "dead", "retry"])
async def test_a_redelivered_job_that_has_moved_on_is_acked_and_not_run(
    app: JetJobs, truth: Truth, probe: Probe, next_place: str
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        await _hold(truth, 1)
        headers = {"Jetjobs-Run": handle.run, "Jetjobs-Hop": "1"}
        if next_place == "done":
            record = json.dumps({"state": "succeeded", "run": handle.run, "result": None}).encode()
            await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", record)
        elif next_place == "dead":
            await truth.js.publish(f"jobs.dead.default.work.{handle.id}", b"{}", headers=headers)
        else:
            headers["Nats-Schedule"] = f"@at {(datetime.now(UTC) + timedelta(hours=1)).isoformat()}"
            headers["Nats-Schedule-Target"] = f"jobs.work.default.normal.work.-.{handle.id}"
            await truth.js.publish(f"jobs.work.default.retry.work.-.{handle.id}", b"{}", headers=headers)
        async with running(app.worker()):
            await eventually(lambda: truth.jobs(lane="normal"), where=lambda found: found == [])
        assert not probe.of(JobStarted)


async def test_a_late_first_delivery_of_a_job_that_is_done_does_not_dead_letter_it_as_expired(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.options(deadline=datetime.now(UTC) - timedelta(seconds=1)).enqueue()
        record = json.dumps({"state": "succeeded", "run": handle.run, "result": None}).encode()
        await truth.js.publish(f"$KV.jobs-done-default.work.{handle.id}", record)
        async with running(app.worker()):
            await eventually(lambda: truth.jobs(lane="normal"), where=lambda found: found == [])
        assert await truth.dead() == {}
        assert not probe.of(JobStarted)


async def test_a_record_of_another_run_does_not_stop_a_redelivered_job(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(queues={"lease": "1s"})

    @app.task
    async def work() -> str:
        return "new"

    async with provisioned(app):
        handle = await work.options(job_id="mine").enqueue()
        old = json.dumps({"state": "succeeded", "run": "another", "result": "old"}).encode()
        await truth.js.publish("$KV.jobs-done-default.work.mine", old)
        await _hold(truth, 1)
        async with running(app.worker()):
            assert await handle.result(SOON) == "new"


# Leases


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_job_longer_than_its_lease_runs_once(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def long() -> None:
        await asyncio.sleep(2.5)

    async with provisioned(app):
        await long.enqueue()
        async with running(app.worker()), running(app.worker(name="second")):
            await probe.finished(1, "succeeded")
        assert len(probe.of(JobStarted)) == 1
        assert (await truth.consumer())["num_redelivered"] == 0


@pytest.mark.settings(queues={"lease": "1s"})
async def test_an_expired_lease_cancels_the_task_and_settles_nothing(
    app: JetJobs, server: EmbeddedServer, truth: Truth, probe: Probe
) -> None:
    cancelled = asyncio.Event()
    ran = 0

    @app.task
    async def long() -> str:
        nonlocal ran
        ran += 1
        if ran > 1:
            return "second"
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
        return "first"

    async with provisioned(app):
        handle = await long.enqueue()
        async with running(app.worker()):
            await probe.wait(JobStarted)
            server.stop()
            await probe.wait(LeaseLostEvent)
            await asyncio.wait_for(cancelled.wait(), 5)
            server.start()
            assert await handle.result(SOON) == "second"
        assert (await truth.done())[handle.id]["attempt"] == 1
        assert len(probe.of(JobFinished)) == 1


# Connection


@pytest.mark.settings(queues={"lease": "1s"})
async def test_a_task_that_blocks_the_loop_past_its_lease_keeps_it_and_is_named(
    app: JetJobs, truth: Truth, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def rude() -> str:
        time.sleep(3)  # noqa: ASYNC251 - the fault under test
        return "done"

    async with provisioned(app):
        handle = await rude.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == "done"
        assert len(probe.of(JobStarted)) == 1
        assert not probe.of(LeaseLostEvent)
        assert (await truth.consumer())["num_redelivered"] == 0
    blocked = [record for record in caplog.records if getattr(record, "event", "") == "worker.loop_blocked"]
    assert [getattr(record, "task", "") for record in blocked] == ["rude"]


async def test_the_lease_of_the_lane_overrides_the_settings(make_app: MakeApp, truth: Truth) -> None:
    async with make_app(queues={"lease": "1s"}) as first:
        await first.provision(["default"])
    app = make_app(queues={"lease": "30s"})
    probe = Probe()
    app.observe(probe)

    @app.task
    async def long() -> None:
        await asyncio.sleep(2.5)

    async with app:
        await long.enqueue()
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
        assert len(probe.of(JobStarted)) == 1
