"""A worker's slots and lanes, its start and stop, and its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from jetjobs import JetJobs, JetJobsError, JobState, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.events import ConnectionLost, JobFinished, JobStarted, LaneTrouble, WorkerChanged
from tests.conftest import MakeApp
from tests.support.probe import Probe
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=10)


# Slots and lanes


async def test_concurrency_is_limited_by_slots_and_by_the_limits_of_queues(app: JetJobs, probe: Probe) -> None:
    now: dict[str, int] = {"wide": 0, "narrow": 0}
    most: dict[str, int] = {"wide": 0, "narrow": 0, "all": 0}

    async def work() -> None:
        queue = current_job().queue
        now[queue] += 1
        most[queue] = max(most[queue], now[queue])
        most["all"] = max(most["all"], sum(now.values()))
        await asyncio.sleep(0.02)
        now[queue] -= 1

    wide = app.task(queue="wide", name="wide")(work)
    narrow = app.task(queue="narrow", name="narrow")(work)
    async with provisioned(app):
        await app.enqueue_many([task.bind() for task in (wide, narrow) for _ in range(60)])
        async with running(app.worker(slots=6, queues={"wide": None, "narrow": 2})):
            await probe.finished(120, "succeeded", timeout=30)
    assert most == {"wide": most["wide"], "narrow": 2, "all": 6}
    assert most["wide"] >= 4


async def test_low_priority_jobs_run_during_a_backlog_of_high_priority_jobs(app: JetJobs, probe: Probe) -> None:
    order: list[str] = []

    @app.task
    async def work(lane: str) -> None:
        order.append(lane)
        await asyncio.sleep(0.001)

    async with provisioned(app):
        await app.enqueue_many(
            [work.options(priority=lane).bind(lane) for lane in ("low", "normal", "high") for _ in range(300)]
        )
        async with running(app.worker(slots=4)):
            await probe.finished(900, timeout=30)
    first = order[:300]
    assert first.count("high") > first.count("normal") > first.count("low") >= 12  # 8:3:1, and no lane starves


async def test_a_surplus_delivery_is_returned_when_no_slot_becomes_free(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    go_on = asyncio.Event()

    @app.task
    async def block() -> None:
        await go_on.wait()

    @app.task
    async def quick() -> None: ...

    async with provisioned_worker(app, slots=1):
        await block.enqueue()
        await probe.wait(JobStarted)
        # The other lanes still have an open pull request: this job is delivered and finds no slot.
        handle = await quick.options(priority="high").enqueue()
        await probe.finished(1, "released")
        assert (await handle.status()).state is JobState.QUEUED
        await truth.until_idle("high")
        async with running(app.worker(slots=1, name="second")):
            await handle.result(SOON)
        go_on.set()
        await probe.finished(2, "succeeded")


# Start and stop


async def test_stopping_lets_running_jobs_finish_and_leaves_other_jobs_queued(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        await go_on.wait()

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(10)])
        worker = app.worker(slots=4)
        async with running(worker):
            await probe.wait(JobStarted, 4)
            worker.stop()
            go_on.set()
        assert worker.cut_short == 0
        assert len(probe.of(JobFinished, lambda e: e.outcome == "succeeded")) == 4
        assert len(await truth.jobs()) == 6
        await truth.until_idle()  # nothing waits for its lease to end


@pytest.mark.settings(worker={"stop_timeout": "200ms"})
async def test_jobs_that_do_not_finish_in_time_are_released_with_their_attempt(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    patient = True

    @app.task
    async def work() -> int:
        if patient:
            await asyncio.sleep(60)
        return current_job().attempt

    async with provisioned(app):
        handle = await work.enqueue()
        worker = app.worker()
        async with running(worker):
            await probe.wait(JobStarted)
        assert worker.cut_short == 1
        assert len(await truth.jobs(lane="returned")) == 1  # served before the backlog of its lane
        assert await truth.jobs(lane="normal") == []
        await truth.until_idle()
        patient = False
        async with running(app.worker()):
            assert await handle.result(SOON) == 1


async def test_a_burst_worker_ends_when_the_queues_are_empty(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None:
        await asyncio.sleep(0.01)

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(50)])
        await work.options(delay=timedelta(hours=1)).enqueue()
        async with asyncio.timeout(20):
            await app.worker(burst=True).run()
        assert len(await truth.done()) == 50
        assert len(await truth.jobs()) == 1


async def test_a_worker_ends_after_its_number_of_jobs(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(50)])
        async with asyncio.timeout(20):
            await app.worker(max_jobs=7, slots=1).run()
        assert len(await truth.done()) == 7
        assert len(await truth.jobs()) == 43


# Connection


async def test_an_idle_worker_starts_a_job_at_once_after_a_server_restart(
    app: JetJobs, server: EmbeddedServer, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        async with running(app.worker()):
            assert await (await work.enqueue()).result(SOON) == "done"
            server.kill()
            await probe.wait(ConnectionLost)
            server.start()
            assert await (await work.enqueue()).result(SOON) == "done"
        assert len(probe.of(ConnectionLost)) == 1


# Regressions


@pytest.mark.settings(worker={"provision": "verify"})
async def test_a_worker_pulls_again_after_all_its_lanes_were_missing_for_long(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with provisioned_worker(app):
        await (await work.enqueue()).result(SOON)
        for lane in ("high", "normal", "low"):
            await truth.js.delete_consumer("jobs-work-default", lane)
        # Refused again and again while they are away: each refusal must be followed by another try.
        await probe.wait(LaneTrouble, 3)
        await probe.wait(LaneTrouble, 6, where=lambda e: "503" in e.error or "409" in e.error, timeout=20)
        await app.provision()
        assert await (await work.enqueue()).result(timedelta(seconds=20)) == "done"


async def test_a_reply_too_long_for_the_protocol_does_not_stop_a_worker(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        reply = {"Jetjobs-Reply": "_INBOX." + "x" * 4100}
        await truth.js.publish("jobs.work.default.normal.work", b"{}", headers=reply)
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
            await (await work.enqueue()).result(SOON)
        assert not probe.of(ConnectionLost)


async def test_an_app_opened_on_another_loop_raises_a_clear_error(make_app: MakeApp) -> None:
    app = make_app()

    @app.task
    async def work() -> None: ...

    async with provisioned(app):

        def elsewhere() -> None:
            asyncio.run(work.enqueue())

        with pytest.raises(JetJobsError, match="another event loop"):
            await asyncio.to_thread(elsewhere)


async def test_a_worker_stopped_while_it_starts_never_becomes_ready(app: JetJobs, probe: Probe) -> None:
    entered = asyncio.Event()
    left: list[str] = []

    @app.lifespan
    @asynccontextmanager
    async def slow() -> AsyncIterator[None]:
        entered.set()
        try:
            await asyncio.sleep(60)
        finally:
            left.append("cleaned")
        yield

    @app.task
    async def fine() -> None: ...

    async with provisioned(app):
        worker = app.worker()
        life = asyncio.create_task(worker.run())
        await entered.wait()
        worker.stop()
        async with asyncio.timeout(20):
            await life
        assert left == ["cleaned"]
    assert [e.phase for e in probe.of(WorkerChanged)] == ["started", "stopped"]
