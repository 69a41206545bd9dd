"""Streams, lanes and buckets that are deleted or full under a running worker: reported, and repaired later."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, JobState, RetryPolicy, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.errors import StorageFull
from jetjobs.model.events import ConnectionLost, JobFinished, JobStarted, LaneTrouble, LeaseLostEvent, SettleFailed
from jetjobs.worker.worker import Worker
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually, wait_until
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=30)
ONCE = RetryPolicy(max_attempts=1)


def watched(app: JetJobs) -> Probe:
    probe = Probe()
    app.observe(probe)
    return probe


async def until_ready(worker: Worker) -> None:
    await wait_until(lambda: worker.ready, timeout=30)


async def until_not_ready(worker: Worker) -> None:
    await wait_until(lambda: not worker.ready, timeout=30)


async def change(truth: Truth, stream: str, **config: Any) -> None:
    """Change a stream as an operator would."""
    there = (await truth.api(f"STREAM.INFO.{stream}"))["config"]
    answer = await truth.api(f"STREAM.UPDATE.{stream}", {**there, **config})
    assert "error" not in answer, answer


# Deleted


@pytest.mark.parametrize("what", ["lane", "stream"])
async def test_a_stream_or_lane_deleted_under_a_worker_makes_it_not_ready_is_reported_once_and_used_again(
    make_app: MakeApp, truth: Truth, what: str
) -> None:
    # A worker that may provision recreates a lane by itself, but never a stream.
    app = make_app(worker={"provision": "verify" if what == "lane" else "apply"})
    probe = watched(app)

    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        worker = app.worker()
        async with running(worker):
            await (await work.enqueue()).result(SOON)
            if what == "lane":
                await truth.js.delete_consumer("jobs-work-default", "normal")
            else:
                await truth.js.delete_stream("jobs-work-default")
            await probe.wait(LaneTrouble, where=lambda e: e.lane == "normal")
            for _ in range(30):  # through several checks of the lane
                assert not worker.ready
                await asyncio.sleep(0.1)
            reported = Counter((e.lane, e.error) for e in probe.of(LaneTrouble))
            assert set(reported.values()) == {1}
            assert not probe.of(ConnectionLost)
            if what == "stream":
                assert not await truth.has_stream("jobs-work-default")  # never recreated without the operator
            await app.provision()
            await until_ready(worker)
            assert await (await work.enqueue()).result(SOON) == "done"


async def test_a_lane_deleted_under_a_worker_that_may_provision_is_recreated(
    app: JetJobs, truth: Truth, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        worker = app.worker()
        async with running(worker):
            await (await work.enqueue()).result(SOON)
            await truth.js.delete_consumer("jobs-work-default", "normal")
            await probe.wait(LaneTrouble, where=lambda e: e.lane == "normal")
            assert not worker.ready
            assert await (await work.enqueue()).result(SOON) == "done"
            await until_ready(worker)
        assert {change.action for change in await app.plan()} == {"none"}  # as planned
    assert [getattr(r, "lane", "") for r in caplog.records if getattr(r, "event", "") == "lane.restored"] == [
        "lane default/normal"
    ]


async def test_jobs_keep_running_when_the_bucket_of_running_jobs_is_deleted(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task
    async def work() -> str:
        await asyncio.sleep(1)  # long enough to be shown as running
        return "done"

    async with provisioned(app):
        await truth.js.delete_stream("KV_jobs-running")
        async with running(app.worker()):
            handle = await work.enqueue()
            await probe.wait(JobStarted)
            assert (await handle.status()).state is JobState.QUEUED  # the best answer without the bucket
            assert await handle.result(SOON) == "done"
        assert not probe.of(SettleFailed)


# Full


async def test_with_the_dead_letter_stream_full_a_failed_job_is_held_and_dead_lettered_once_there_is_space(
    make_app: MakeApp, truth: Truth
) -> None:
    app = make_app(queues={"lease": "3s", "max_crashes": 1})
    probe = watched(app)

    @app.task(retry=ONCE)
    async def broken(n: int) -> None:
        raise RuntimeError(f"number {n}")

    async with provisioned(app):
        await change(truth, "jobs-dead", max_msgs=1, discard="new")
        worker = app.worker()
        async with running(worker):
            first = await broken.enqueue(1)
            await probe.finished(1, "dead_lettered")
            second = await broken.enqueue(2)
            (blocked,) = await probe.wait(SettleFailed)
            assert blocked.job_id == second.id
            assert "maximum messages exceeded" in blocked.error
            await until_not_ready(worker)
            await asyncio.sleep(6.5)  # two leases
            assert (await truth.consumer())["num_ack_pending"] == 1
            assert set(await truth.dead()) == {first.id}
            await change(truth, "jobs-dead", max_msgs=-1)
            await probe.finished(2, "dead_lettered", timeout=30)
            await until_ready(worker)
        assert (await truth.dead())[second.id]["reason"] == "exhausted"
        assert len(probe.of(SettleFailed)) == 1
        assert len(probe.of(JobStarted, lambda e: e.task == "broken")) == 2
        await truth.until_empty()


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A server with a few megabytes of JetStream storage."""
    config = tmp_path / "small.conf"
    config.write_text("jetstream { max_file_store: 4MB }\n")
    with EmbeddedServer(extra=("-c", str(config))) as started:
        yield started


@pytest.fixture
async def small_truth(small_server: EmbeddedServer) -> AsyncIterator[Truth]:
    connected = await Truth.connect(small_server.url)
    yield connected
    await connected.close()


async def fill(truth: Truth) -> None:
    """Fill the storage up to the last hundred bytes."""
    await truth.api("STREAM.CREATE.filling", {"name": "filling", "subjects": ["filling"], "storage": "file"})
    for size in (100_000, 1_000, 10):
        while "error" not in json.loads((await truth.nc.request("filling", b"x" * size, timeout=5)).data):
            pass


async def test_with_the_storage_full_successes_are_acked_and_other_jobs_are_held_until_there_is_space(
    settings_for: Callable[..., Any], small_server: EmbeddedServer, small_truth: Truth
) -> None:
    truth = small_truth
    settings = settings_for(nats={"url": small_server.url}, queues={"lease": "3s", "max_crashes": 1})
    app = JetJobs("test", settings=settings)
    probe = watched(app)

    @app.task
    async def fine(n: int) -> int:
        return n

    @app.task(retry=RetryPolicy(max_attempts=2, base=timedelta(milliseconds=50)))
    async def fragile(text: str) -> str:
        if current_job().attempt == 1:
            raise RuntimeError("once")
        return "second"

    async with provisioned(app):
        assert (await app.enqueue_many([fine.bind(n) for n in range(20)])).refused == []
        # Last in the lane, because pulling stops with it. Its retry needs more space than the successes free.
        handle = await fragile.enqueue("x" * 200_000)
        await fill(truth)
        with pytest.raises(StorageFull):
            await fine.enqueue(99)
        worker = app.worker(slots=1)
        async with running(worker):
            await probe.finished(20, "succeeded", timeout=30)
            (kept,) = await probe.wait(SettleFailed, where=lambda e: e.kind == "outcome")
            assert kept.job_id == handle.id
            await until_not_ready(worker)
            await asyncio.sleep(6.5)  # two leases
            assert [s.rsplit(".", 1)[1] for s in await truth.jobs()] == [handle.id]
            assert (await truth.consumer())["num_ack_pending"] == 1
            assert len(await truth.done()) < 20  # all are done, but not all have a record
            await truth.js.delete_stream("filling")
            assert await handle.result(SOON) == "second"
            await until_ready(worker)
            assert await (await fine.enqueue(100)).result(SOON) == 100
        assert len(probe.of(JobStarted, lambda e: e.task == "fragile")) == 2
        assert not probe.of(LeaseLostEvent)
        assert await truth.dead() == {}
        await truth.until_empty()


# Many failing jobs


async def test_a_thousand_jobs_in_backoff_hold_no_slots_and_other_jobs_run(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    go_on = asyncio.Event()

    @app.task(retry=RetryPolicy(base=timedelta(hours=1), jitter=False))
    async def broken(n: int) -> None:
        raise RuntimeError("no")

    @app.task
    async def hold() -> None:
        await go_on.wait()

    @app.task
    async def fine(n: int) -> int:
        return n

    async with provisioned(app):
        assert (await app.enqueue_many([broken.bind(n) for n in range(1_000)])).refused == []
        async with running(app.worker(slots=20)):
            await probe.finished(1_000, "retried", timeout=40)
            await app.enqueue_many([hold.bind() for _ in range(7)])
            await probe.wait(JobStarted, 7, where=lambda e: e.task == "hold")

            async def seven() -> bool:
                return int((await truth.consumer())["num_ack_pending"]) == 7

            await eventually(seven)  # the last acks may arrive later
            handles = (await app.enqueue_many([fine.bind(n) for n in range(100)])).stored
            assert await asyncio.gather(*(handle.result(SOON) for handle in handles)) == list(range(100))
            await eventually(seven)
            assert len(await truth.jobs(lane="retry")) == 1_000
            go_on.set()
            await probe.finished(107, "succeeded")


async def test_jobs_that_fail_together_are_retried_at_different_times_and_none_in_a_hot_loop(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    up = False
    attempts: Counter[int] = Counter()

    @app.task(retry=RetryPolicy(max_attempts=100, cap=timedelta(seconds=4)))
    async def call(n: int) -> int:
        attempts[n] += 1
        if not up:
            raise ConnectionError("the dependency is down")
        return n

    async with provisioned(app):
        handles = (await app.enqueue_many([call.bind(n) for n in range(200)])).stored
        began = time.monotonic()
        async with running(app.worker(slots=50)):
            await probe.finished(400, "retried", timeout=40)
            up = True
            results = await asyncio.gather(*(handle.result(SOON) for handle in handles))
        lasted_s = time.monotonic() - began
        assert sorted(results) == list(range(200))
        first = [e.retry_in_s for e in probe.of(JobFinished, lambda e: e.outcome == "retried" and e.attempt == 1)]
        assert len(first) == 200
        # Equal jitter: drawn evenly from 1 to 2 s. No tenth of the range holds more than a quarter of the jobs.
        tenths = Counter(int((delay - 1.0) / 0.1) for delay in first)
        assert max(tenths.values()) <= 50
        assert 1.0 <= min(first) <= max(first) <= 2.0
        # Each failure doubles the delay: no job retries more than once per second.
        assert max(attempts.values()) <= 8 + lasted_s
        assert await truth.dead() == {}
