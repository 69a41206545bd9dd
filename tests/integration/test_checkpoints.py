"""Checkpoints: stored before the call returns, given to the next run, gone with the job, safe from old owners."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import NotFoundError

from jetjobs import (
    BrokerError,
    CheckpointError,
    JetJobs,
    JetJobsError,
    JobFailed,
    Reject,
    RetryPolicy,
    Settings,
    Snooze,
    UnstorableValue,
    current_job,
)
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.jobs.checkpoints import Kept, Outrun
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import LeaseLost
from jetjobs.model.events import JobFinished, LeaseLostEvent
from jetjobs.model.job import Job
from tests.integration import kept_tasks
from tests.support.probe import Probe, eventually
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=40)
QUICK = RetryPolicy(max_attempts=3, base=timedelta(milliseconds=10))
BUCKET = "jobs-checkpoints"


@pytest.fixture
async def opened(app: JetJobs) -> AsyncIterator[JetJobs]:
    async with app:
        yield app


@pytest.fixture
async def kept_app(settings_for: Callable[..., Settings]) -> AsyncIterator[JetJobs]:
    kept_tasks.app.configure(settings_for())
    kept_tasks.app._observers.clear()
    async with provisioned(kept_tasks.app) as opened:
        yield opened


async def checkpoints(truth: Truth) -> dict[str, dict[str, Any]]:
    """Records of the bucket by key."""
    found = {}
    for subject in await truth.subjects(f"KV_{BUCKET}", f"$KV.{BUCKET}.>"):
        try:
            message = await truth.js.get_last_msg(f"KV_{BUCKET}", subject)
        except NotFoundError:
            continue  # removed meanwhile
        found[subject.removeprefix(f"$KV.{BUCKET}.")] = json.loads(message.data or b"{}")
    return found


async def gone(truth: Truth) -> None:
    """Until nothing is kept: that comes right after the job's end is told."""

    async def check() -> bool:
        return await checkpoints(truth) == {}

    await eventually(check, 30)


# Kept for the next run, wherever the task runs


@pytest.mark.parametrize(
    ("task", "step"),
    [
        (kept_tasks.in_loop, 7),
        (kept_tasks.in_thread, 8),
        (kept_tasks.in_child, 9),
        (kept_tasks.in_child_loop, 10),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_the_next_attempt_gets_what_the_last_one_kept(
    kept_app: JetJobs, truth: Truth, tmp_path: Path, task: Any, step: int
) -> None:
    go_on = tmp_path / "go"
    go_on.touch()
    async with running(kept_app.worker()):
        handle = await task.enqueue(str(go_on))
        found = await handle.result(SOON)
        assert (found[0], found[2]) == (step, 2)
        await gone(truth)
    assert await truth.jobs() == []
    assert list(await truth.done()) == [handle.id]


async def test_a_checkpoint_is_on_the_server_when_the_call_returns(opened: JetJobs, truth: Truth) -> None:
    seen: dict[str, Any] = {}

    @opened.task
    async def work() -> None:
        assert await current_job().resume() is None
        await current_job().checkpoint({"step": 3})
        seen.update(await checkpoints(truth))
        message = await truth.js.get_last_msg(f"KV_{BUCKET}", f"$KV.{BUCKET}.{next(iter(seen))}")
        assert (message.headers or {})["Nats-TTL"] == f"{30 * 86400}s"

    await opened.provision()
    async with running(opened.worker(name="w1")):
        handle = await work.enqueue()
        await handle.result(SOON)
        await gone(truth)
    (record,) = seen.values()
    assert list(seen) == [f"{handle.id}.{handle.run}"]
    assert record["value"] == {"step": 3}
    assert (
        record.items()
        >= {
            "id": handle.id,
            "run": handle.run,
            "task": "work",
            "queue": "default",
            "attempt": 1,
            "hop": 0,
            "delivery": 1,
            "worker": "w1",
        }.items()
    )


async def test_a_snoozed_and_a_released_job_keep_theirs(opened: JetJobs, truth: Truth, probe: Probe) -> None:
    @opened.task
    async def work() -> int:
        step = await current_job().resume(int) or 0
        await current_job().checkpoint(step + 1)
        if step == 0:
            raise Snooze(timedelta(milliseconds=10))
        if step == 1:
            await asyncio.sleep(600)
        return step

    await opened.provision()
    first = opened.worker()
    async with running(first):
        handle = await work.enqueue()

        async def second_run() -> bool:
            return [record["value"] for record in (await checkpoints(truth)).values()] == [2]

        await eventually(second_run, 30)
        first.stop()
    assert len(probe.of(JobFinished, lambda e: e.outcome == "released")) == 1
    assert len(await checkpoints(truth)) == 1
    async with running(opened.worker()):
        assert await handle.result(SOON) == 2
        await gone(truth)


# Gone with the job


async def test_a_dead_job_keeps_none_and_a_replay_begins_anew(opened: JetJobs, truth: Truth) -> None:
    found: list[Any] = []

    @opened.task
    async def work() -> None:
        found.append(await current_job().resume())
        await current_job().checkpoint(5)
        if len(found) == 1:
            raise Reject("no")

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        with pytest.raises(JobFailed):
            await handle.result(SOON)
        await gone(truth)
        letter = await opened.dead.get(handle.id)
        assert letter is not None
        await opened.dead.replay(letter)
        await eventually(lambda: _two(found), 30)
        await gone(truth)
    assert found == [None, None]
    assert await truth.jobs() == []


async def _two(found: list[Any]) -> bool:
    return len(found) == 2


async def test_a_job_that_is_buried_without_a_run_leaves_none(opened: JetJobs, truth: Truth, probe: Probe) -> None:
    @opened.task
    async def work() -> None:
        await current_job().checkpoint(5)
        raise Snooze(timedelta(seconds=1))

    await opened.provision()
    async with running(opened.worker()):
        await work.enqueue()
        await probe.finished(1, "snoozed", timeout=30)
    assert len(await checkpoints(truth)) == 1
    del opened.tasks["work"]  # an unknown task by now

    @opened.task
    async def other() -> None: ...

    async with running(opened.worker()):
        await probe.finished(1, "dead_lettered", timeout=30)
        await gone(truth)
    assert {letter["reason"] for letter in (await truth.dead()).values()} == {"unknown_task"}


async def test_a_job_without_checkpoints_asks_and_writes_nothing(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    async def work() -> None: ...

    await opened.provision()
    before = (await truth.api(f"STREAM.INFO.KV_{BUCKET}"))["state"]["last_seq"]
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    await truth.nc.subscribe(f"$JS.API.STREAM.*.KV_{BUCKET}", cb=hear)
    await truth.nc.subscribe(f"$JS.API.STREAM.MSG.GET.KV_{BUCKET}", cb=hear)
    await truth.nc.flush()
    async with running(opened.worker()):
        await (await work.enqueue()).result(SOON)
    await truth.nc.flush()
    assert heard == []
    assert (await truth.api(f"STREAM.INFO.KV_{BUCKET}"))["state"]["last_seq"] == before


# Bad input


async def test_what_cannot_be_kept_is_refused_in_the_task(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    async def work() -> None:
        job = current_job()
        for value in ("x" * 65_535, object()):
            with pytest.raises(UnstorableValue):
                await job.checkpoint(value)
        assert await checkpoints(truth) == {}
        await job.checkpoint("x" * 65_534)  # and two quotes
        with pytest.raises(CheckpointError, match="does not fit"):
            await job.resume(int)
        job.checkpoint_sync(1)

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.options(max_attempts=1).enqueue()
        with pytest.raises(JobFailed, match="does not work here"):
            await handle.result(SOON)
        await gone(truth)


async def test_a_plain_function_may_run_a_loop_of_its_own(opened: JetJobs, truth: Truth) -> None:
    @opened.task
    def work() -> int | None:
        async def inside() -> int | None:
            await current_job().checkpoint(4)
            return await current_job().resume(int)

        return asyncio.run(inside())

    await opened.provision()
    async with running(opened.worker()):
        assert await (await work.enqueue()).result(SOON) == 4
        await gone(truth)


async def test_errors_cross_to_a_child_process(kept_app: JetJobs, truth: Truth) -> None:
    async with running(kept_app.worker()):
        told = await (await kept_tasks.refused_in_child.enqueue()).result(SOON)
        await gone(truth)
    assert told[:4] == ["UnstorableValue", "UnstorableValue", "ValueError", "JetJobsError"]
    assert told[4].startswith("CheckpointError: the checkpoint does not fit State")
    assert told[5] == "[1, 'a']"


async def test_a_bucket_that_is_missing_is_said_so(opened: JetJobs, truth: Truth) -> None:
    told: list[BrokerError] = []

    @opened.task
    async def work() -> None:
        try:
            await current_job().checkpoint(1)
        except BrokerError as error:
            told.append(error)

    await opened.provision()
    await truth.js.delete_stream(f"KV_{BUCKET}")
    async with running(opened.worker()):
        await (await work.enqueue()).result(SOON)
    assert told[0].hint == "jetjobs setup apply"


# Owners


def hand(delivery: int, worker: str = "w", hop: int = 0, fence: int | None = None) -> Kept:
    job = Job("j1", "work", "default", "normal", b"{}", run="r1", hop=hop)
    return Kept(job, delivery, delivery if fence is None else fence, worker)


def ours() -> bool:
    return True


async def test_an_older_owner_cannot_write_over_a_newer_ones(opened: JetJobs, truth: Truth) -> None:
    await opened.provision()
    kept = opened.jetstream.checkpoints
    old, new = hand(1), hand(2)
    await kept.save(old, b"1", ours)
    assert await kept.load(new) == b"1"
    await kept.save(old, b"2", ours)  # it does not know yet, and neither does the server
    await kept.save(new, b"7", ours)  # by the newer hand: the other's is written over
    for _ in range(2):
        with pytest.raises(Outrun):
            await kept.save(old, b"3", ours)
    with pytest.raises(Outrun):
        await kept.load(old)
    await kept.remove(old)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 7
    await kept.save(new, b"8", ours)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 8
    await kept.remove(new)
    assert await checkpoints(truth) == {}


async def test_an_older_owner_that_has_not_written_yet_is_refused_too(opened: JetJobs, truth: Truth) -> None:
    await opened.provision()
    kept = opened.jetstream.checkpoints
    await kept.save(hand(1, hop=3), b"7", ours)
    for older in (hand(1), hand(5), hand(9, hop=2)):
        with pytest.raises(Outrun):
            await kept.save(older, b"1", ours)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 7


async def test_counts_that_began_anew_let_the_one_who_came_last_write(opened: JetJobs, truth: Truth) -> None:
    """A lane that was made again counts its deliveries from 1."""
    await opened.provision()
    kept = opened.jetstream.checkpoints
    old, new = hand(1, "a", fence=40), hand(1, "b", fence=1)
    await kept.save(old, b"1", ours)
    await kept.save(new, b"2", ours)
    with pytest.raises(Outrun):
        await kept.save(old, b"3", ours)
    await kept.save(new, b"4", ours)
    assert (await checkpoints(truth))["j1.r1"]["value"] == 4


async def test_lives_of_one_id_do_not_meet(opened: JetJobs, truth: Truth) -> None:
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


async def test_a_worker_that_is_outrun_is_told_and_settles_nothing(
    opened: JetJobs, truth: Truth, probe: Probe
) -> None:
    told: list[BaseException] = []

    @opened.task
    async def work() -> str:
        job = current_job()
        await job.checkpoint(1)
        newer = Kept(job.job, job.delivery + 1, 99, "another")
        await opened.jetstream.checkpoints.save(newer, b"50", ours)
        try:
            await job.checkpoint(2)
        except LeaseLost as error:
            told.append(error)
            raise
        return "?"

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        await probe.wait(LeaseLostEvent, timeout=30)
        assert (await checkpoints(truth))[f"{handle.id}.{handle.run}"]["value"] == 50
        assert len(await truth.jobs()) == 1  # not settled: it is another's
    assert len(told) == 1
    assert await truth.dead() == {}
    assert await truth.done() == {}


async def test_a_child_of_a_worker_that_is_outrun_is_told(kept_app: JetJobs, truth: Truth, tmp_path: Path) -> None:
    go_on, told_file = tmp_path / "go", tmp_path / "go.told"
    async with running(kept_app.worker()):
        handle = await kept_tasks.wait_and_checkpoint_in_child.enqueue(str(go_on))

        async def begun() -> bool:
            return len(await checkpoints(truth)) == 1

        await eventually(begun, 40)
        job = Job(handle.id, handle.task, "default", "normal", b"{}", run=handle.run)
        await kept_app.jetstream.checkpoints.save(Kept(job, 2, 99, "another"), b"50", ours)
        go_on.touch()

        async def told() -> bool:
            return told_file.exists() and bool(told_file.read_text())

        await eventually(told, 40)
        assert (await checkpoints(truth))[f"{handle.id}.{handle.run}"]["value"] == 50
    assert told_file.read_text() == "LeaseLost"


async def test_a_thread_that_was_given_up_keeps_nothing_more(
    opened: JetJobs, truth: Truth, tmp_path: Path
) -> None:
    go_on, told = tmp_path / "go", tmp_path / "told"

    @opened.task(timeout=timedelta(seconds=0.5), retry=RetryPolicy(max_attempts=1))
    def work() -> None:
        kept_tasks.wait_for_file(str(go_on))
        try:
            current_job().checkpoint_sync(2)
        except JetJobsError as error:
            told.write_text(str(error))

    await opened.provision()
    async with running(opened.worker()):
        handle = await work.enqueue()
        with pytest.raises(JobFailed):
            await handle.result(SOON)
        go_on.touch()

        async def ended() -> bool:
            return told.exists() and bool(told.read_text())

        await eventually(ended, 30)
    assert "attempt has ended" in told.read_text()
    assert await checkpoints(truth) == {}


# Outages


async def test_a_checkpoint_waits_for_a_server_that_is_away(
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
        await asyncio.sleep(0.5)  # while there is nobody to ask
        server.start()
        assert await handle.result(SOON) == 2
        await gone(truth)


async def test_many_checkpoints_at_once_leave_the_last(opened: JetJobs) -> None:
    @opened.task
    async def work() -> int | None:
        job = current_job()
        await asyncio.gather(*(job.checkpoint(n) for n in range(50)))
        return await job.resume(int)

    await opened.provision()
    async with running(opened.worker()):
        assert await (await work.enqueue()).result(SOON) == 49


async def test_the_roles_of_the_example_configuration_may_keep_and_follow(tmp_path: Path) -> None:
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
            told: list[str] = []
            await producer.jetstream.connection.nc.listen(
                "jobs.events.job.>", lambda subject, *_: told.append(subject)
            )
            async with asyncio.timeout(50), running(working.worker()):
                async for status in handle.follow():
                    if status.progress == 0.5:
                        seen_it.set()
                assert await handle.result(SOON) == 3
        assert told == [f"jobs.events.job.progress.default.work.{handle.id}"]
        async with app_of("setup") as setup:
            info = await setup.jetstream.connection.api(api.stream_info(f"KV_{BUCKET}"))
            assert (info["state"]["messages"], info["state"]["last_seq"]) == (0, 1)
