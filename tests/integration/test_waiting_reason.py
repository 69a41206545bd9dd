"""`result()`, `enqueue --wait` and `jobs wait` say why a job has not ended; when it ends in time they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, JobState, RetryPolicy
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import ResultNotReady
from tests.support.probe import eventually, wait_until
from tests.support.processes import Process, run
from tests.support.roles import GuardedServer, Removed
from tests.support.server import Truth
from tests.support.workers import running

MOMENT = timedelta(milliseconds=50)
FIXED = RetryPolicy(max_attempts=4, backoff="fixed", base=timedelta(hours=1), jitter=False)
TASKS = """
from jetjobs import JetJobs

app = JetJobs("test")


@app.task
async def work() -> str:
    return "done"
"""


@pytest.fixture
async def shop(app: JetJobs) -> AsyncIterator[JetJobs]:
    app.task(name="work")(lambda: "done")

    @app.task(retry=FIXED)
    async def fail() -> None:
        raise ValueError("no\nluck")

    @app.task
    async def stay() -> None:
        await asyncio.sleep(60)

    async with app:
        await app.provision()
        yield app


async def not_ready(handle: Any) -> ResultNotReady:
    with pytest.raises(ResultNotReady) as raised:
        await handle.result(MOMENT)
    assert str(raised.value).startswith(f"job {handle.id} has not ended within 0.05 s: ")
    return raised.value


async def test_result_says_that_no_worker_takes_the_queue(shop: JetJobs) -> None:
    error = await not_ready(await shop.tasks["work"].enqueue())
    assert str(error).endswith(": no running worker takes queue 'default'")
    assert error.hint == "start one with `jetjobs worker --queue default`"


async def test_result_says_that_the_queue_is_paused(shop: JetJobs) -> None:
    await shop.queues.pause("default", for_=timedelta(minutes=5), reason="deploy", by="ada")
    error = await not_ready(await shop.tasks["work"].enqueue())
    assert "queue 'default' is paused until 2" in str(error)
    assert str(error).endswith(" UTC by ada: deploy")
    assert error.hint == "resume it with `jetjobs queues resume default`"


async def test_result_says_when_the_job_is_due(shop: JetJobs) -> None:
    error = await not_ready(await shop.tasks["work"].options(delay=timedelta(hours=2)).enqueue())
    assert ": it is due at 2" in str(error)
    assert ", in 1h59m" in str(error)


async def test_result_says_when_the_job_is_retried_and_why(shop: JetJobs) -> None:
    async with running(shop.worker()):
        fail = shop.tasks["fail"]
        for task, limit in ((fail, 4), (fail.options(max_attempts=3), 3)):
            handle = await task.enqueue()
            await eventually(handle.status, where=lambda status: status.state is JobState.RETRYING)
            error = await not_ready(handle)
            assert f"(attempt 2 of {limit}); attempt 1 failed: ValueError: no luck" in str(error)
            assert error.hint == f"run it now with `jetjobs jobs reschedule {handle.id} --now`"


async def test_result_says_that_the_job_runs_or_waits_for_a_slot(shop: JetJobs) -> None:
    async with running(shop.worker(slots=1, name="ada")) as worker:
        first, second = await shop.tasks["stay"].enqueue(), await shop.tasks["work"].enqueue()
        await eventually(first.status, where=lambda status: status.state is JobState.RUNNING)
        assert ": it has been running" in str(await not_ready(first))
        assert str(await not_ready(first)).endswith(" on worker ada")
        assert ": it waits for a free slot in the running worker of queue 'default'" in str(
            await not_ready(second)
        )
        worker.stop(now=True)


async def test_result_says_that_the_server_is_gone(shop: JetJobs, server: EmbeddedServer) -> None:
    handle = await shop.tasks["work"].enqueue()
    server.kill()
    await wait_until(lambda: not shop.jetstream.connection.connected)
    error = await shop.jetstream.result_waiter._not_ready(handle, 0.05)
    assert str(error) == f"job {handle.id} has not ended within 0.05 s: the connection to the server is lost"


WORKERS = Removed("producer", "publish", "$JS.API.DIRECT.GET.KV_jobs-workers")


@pytest.mark.parametrize("removed", [(), (WORKERS,)])
async def test_a_producer_learns_what_it_may_read(removed: tuple[Removed, ...], tmp_path: Path) -> None:
    with GuardedServer(tmp_path, *removed) as server:
        apps = [
            JetJobs("t", settings=server.settings_of(role, queues={"namespace": "jobs"}))
            for role in ("setup", "producer")
        ]
        for app in apps:
            app.task(name="work")(lambda: None)
        async with apps[0]:
            await apps[0].provision()
        async with apps[1]:
            error = await not_ready(await apps[1].tasks["work"].enqueue())
    assert str(error).endswith(
        "it is queued on 'default'" if removed else "no running worker takes queue 'default'"
    )


async def test_a_result_in_time_costs_no_further_request(shop: JetJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise AssertionError("asked why")

    monkeypatch.setattr(shop.jetstream.result_waiter, "_explain", fail)
    async with running(shop.worker()):
        assert await (await shop.tasks["work"].enqueue()).result(timedelta(seconds=20)) == "done"


async def test_a_waiting_command_explains_once_and_again_when_the_reason_changes(
    tmp_path: Path, shop: JetJobs, server: EmbeddedServer, truth: Truth
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    await shop.queues.pause("default", reason="deploy", by="ada")
    with Process(["enqueue", "work", "-s", server.url, "--id", "a1", "--wait"], tmp_path) as waiting:
        paused = await asyncio.to_thread(waiting.wait_for, "job a1 waits: ")
        assert paused.startswith("job a1 waits: queue 'default' is paused by ada: deploy; ")
        assert paused.endswith("resume it with `jetjobs queues resume default`")
        with Process(["jobs", "wait", "a1", "-s", server.url, "--json"], tmp_path) as other:
            assert await asyncio.to_thread(other.wait_for, "job a1 waits: ") == paused
            await shop.queues.resume("default")
            missing = await asyncio.to_thread(waiting.wait_for, "job a1 waits: ", 2)
            assert "no running worker takes queue 'default'; start one with" in missing
            async with running(shop.worker()):
                assert await asyncio.to_thread(other.wait_for, '"result": "done"')
                await asyncio.to_thread(waiting.wait_for, "a1 succeeded in ")
        assert waiting.lines.count(paused) == waiting.lines.count(missing) == 1
        assert len(waiting.lines) == 3


async def test_a_command_that_gets_its_result_in_time_says_nothing_else(
    tmp_path: Path, shop: JetJobs, server: EmbeddedServer
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    async with running(shop.worker()):
        command = ["enqueue", "work", "-s", server.url, "--wait"]
        done = await asyncio.to_thread(run, command, tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""


async def test_a_command_that_waited_in_vain_says_why(
    tmp_path: Path, shop: JetJobs, server: EmbeddedServer
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    command = ["enqueue", "work", "-s", server.url, "--id", "a1", "--wait", "--wait-timeout", "100ms"]
    done = await asyncio.to_thread(run, command, tmp_path)
    assert done.returncode == 7
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: job a1 has not ended within 0.1 s: no running worker takes queue 'default'",
        "hint: start one with `jetjobs worker --queue default`",
    ]
    assert (await shop.jobs.get("a1")).state is JobState.QUEUED
