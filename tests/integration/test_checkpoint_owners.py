"""Checkpoints of workers that compete for a job, and during outages of the server."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, JetJobsError, JobFailed, RetryPolicy, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.jobs.checkpoints import CheckpointHandle, Superseded
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import LeaseLost
from jetjobs.model.events import LeaseLostEvent
from jetjobs.model.job import Job
from tests.integration import kept_tasks
from tests.support.checkpoints import BUCKET, checkpoints, gone
from tests.support.probe import Probe, eventually, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import running

SOON = timedelta(seconds=40)


# Owners


def hand(delivery: int, worker: str = "w", hop: int = 0, fence: int | None = None) -> CheckpointHandle:
    job = Job("j1", "work", "default", "normal", b"{}", run="r1", hop=hop)
    return CheckpointHandle(job, delivery, delivery if fence is None else fence, worker)


def ours() -> bool:
    return True


async def test_an_older_owner_cannot_overwrite_a_newer_checkpoint(opened: JetJobs, truth: Truth) -> None:
    await opened.provision()
    kept = opened.jetstream.checkpoints
    old, new = hand(1), hand(2)
    await kept.save(old, b"1", ours)
    assert await kept.load(new) == b"1"
    await kept.save(old, b"2", ours)  # neither the old owner nor the server knows of the new one
    await kept.save(new, b"7", ours)  # the newer owner overwrites it
    for _ in range(2):
        with pytest.raises(Superseded):
            await kept.save(old, b"3", ours)
    with pytest.raises(Superseded):
        await kept.load(old)
    await kept.remove(old)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 7
    await kept.save(new, b"8", ours)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 8
    await kept.remove(new)
    assert await checkpoints(truth) == {}


async def test_an_older_owner_that_has_not_written_yet_is_refused(opened: JetJobs, truth: Truth) -> None:
    await opened.provision()
    kept = opened.jetstream.checkpoints
    await kept.save(hand(1, hop=3), b"7", ours)
    for older in (hand(1), hand(5), hand(9, hop=2)):
        with pytest.raises(Superseded):
            await kept.save(older, b"1", ours)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 7


async def test_after_delivery_counts_restart_the_latest_owner_may_write(opened: JetJobs, truth: Truth) -> None:
    """A lane that was recreated counts its deliveries from 1."""
    await opened.provision()
    kept = opened.jetstream.checkpoints
    old, new = hand(1, "a", fence=40), hand(1, "b", fence=1)
    await kept.save(old, b"1", ours)
    await kept.save(new, b"2", ours)
    with pytest.raises(Superseded):
        await kept.save(old, b"3", ours)
    await kept.save(new, b"4", ours)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 4


async def test_runs_with_the_same_id_do_not_share_checkpoints(opened: JetJobs, truth: Truth) -> None:
    await opened.provision()
    kept = opened.jetstream.checkpoints
    first, second = hand(4), hand(1)
    second.job = second.job._replace(run="r2")
    await kept.save(first, b"1", ours)
    assert await kept.load(second) is None
    await kept.save(second, b"2", ours)
    assert {key: record["value"] for key, record in (await checkpoints(truth)).items()} == {"j1.r1": 1, "j1.r2": 2}
    await kept.forget("j1")
    assert await checkpoints(truth) == {}


async def test_a_worker_that_lost_its_job_gets_an_error_and_settles_nothing(
    opened: JetJobs, truth: Truth, probe: Probe
) -> None:
    errors: list[BaseException] = []

    @opened.task
    async def work() -> str:
        job = current_job()
        await job.checkpoint(1)
        newer = CheckpointHandle(job.job, job.delivery + 1, 99, "another")
        await opened.jetstream.checkpoints.save(newer, b"50", ours)
        try:
            await job.checkpoint(2)
        except LeaseLost as error:
            errors.append(error)
            raise
        return "?"

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        await probe.wait(LeaseLostEvent, timeout=30)
        assert (await checkpoints(truth))[f"{handle.id}.{handle.run}"]["value"] == 50
        assert len(await truth.jobs()) == 1  # not settled: another worker has it
    assert len(errors) == 1
    assert await truth.dead() == {}
    assert await truth.done() == {}


async def test_a_child_of_a_worker_that_lost_its_job_gets_an_error(
    kept_app: JetJobs, truth: Truth, tmp_path: Path
) -> None:
    go_on, error_file = tmp_path / "go", tmp_path / "go.error"
    async with running(kept_app.worker()):
        handle = await kept_tasks.wait_and_checkpoint_in_child.enqueue(str(go_on))
        await eventually(lambda: checkpoints(truth), 40, where=lambda found: len(found) == 1)
        job = Job(handle.id, handle.task, "default", "normal", b"{}", run=handle.run)
        await kept_app.jetstream.checkpoints.save(CheckpointHandle(job, 2, 99, "another"), b"50", ours)
        go_on.touch()
        await wait_until(lambda: error_file.exists() and bool(error_file.read_text()), 40)
        assert (await checkpoints(truth))[f"{handle.id}.{handle.run}"]["value"] == 50
    assert error_file.read_text() == "LeaseLost"


async def test_an_abandoned_thread_stores_no_more_checkpoints(
    opened: JetJobs, truth: Truth, tmp_path: Path
) -> None:
    go_on, refused = tmp_path / "go", tmp_path / "error"

    @opened.task(timeout=timedelta(seconds=0.5), retry=RetryPolicy(max_attempts=1))
    def work() -> None:
        kept_tasks.wait_for_file(str(go_on))
        try:
            current_job().checkpoint_sync(2)
        except JetJobsError as error:
            refused.write_text(str(error))

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        with pytest.raises(JobFailed):
            await handle.result(SOON)
        go_on.touch()
        await wait_until(lambda: refused.exists() and bool(refused.read_text()), 30)
    assert "attempt has ended" in refused.read_text()
    assert await checkpoints(truth) == {}


# Outages


async def test_a_checkpoint_waits_for_an_unavailable_server(
    server: EmbeddedServer, opened: JetJobs, truth: Truth
) -> None:
    stopped, begun = asyncio.Event(), asyncio.Event()

    @opened.task
    async def work() -> int | None:
        await current_job().checkpoint(1)
        begun.set()
        await stopped.wait()
        await current_job().checkpoint(2)
        return await current_job().resume(int)

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        async with asyncio.timeout(30):
            await begun.wait()
        server.kill()
        stopped.set()
        await asyncio.sleep(0.5)  # while no server answers
        server.start()
        assert await handle.result(SOON) == 2
        await gone(truth)


async def test_of_many_concurrent_checkpoints_the_last_one_is_kept(opened: JetJobs) -> None:
    @opened.task
    async def work() -> int | None:
        job = current_job()
        await asyncio.gather(*(job.checkpoint(n) for n in range(50)))
        return await job.resume(int)

    await opened.provision()
    async with running(opened.worker()):
        assert await (await work.enqueue()).result(SOON) == 49


async def test_the_roles_of_the_example_configuration_may_store_checkpoints_and_follow_jobs(
    tmp_path: Path,
) -> None:
    with GuardedServer(tmp_path) as guarded:
        seen_it = asyncio.Event()

        def app_of(role: str) -> JetJobs:
            app = JetJobs("t", settings=guarded.settings_of(role))

            @app.task
            async def work() -> int | None:
                await current_job().checkpoint(3)
                current_job().progress(0.5, "half")
                await seen_it.wait()
                return await current_job().resume(int)

            return app

        async with app_of("setup") as setup:
            await setup.provision()
        async with app_of("producer") as producer, app_of("worker") as working:
            handle = await producer.tasks["work"].enqueue()
            subjects: list[str] = []
            await producer.jetstream.connection.nc.listen(
                "jobs.events.job.>", lambda subject, *_: subjects.append(subject)
            )
            async with asyncio.timeout(50), running(working.worker()):
                async for status in handle.follow():
                    if status.progress == 0.5:
                        seen_it.set()
                assert await handle.result(SOON) == 3
        assert subjects == [f"jobs.events.job.progress.default.work.{handle.id}"]
        async with app_of("setup") as setup:
            info = await setup.jetstream.connection.api(api.stream_info(f"KV_{BUCKET}"))
            assert (info["state"]["messages"], info["state"]["last_seq"]) == (0, 1)
