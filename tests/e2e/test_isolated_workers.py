"""Isolation in real workers: a worker survives its children, and no child survives its worker."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs, JobCancelled, JobFailed, JobState, Settings
from jetjobs.admin import CancelOutcome
from jetjobs.dev_server import EmbeddedServer
from tests.integration import isolated_tasks as tasks
from tests.support.pids import gone, is_gone, pids_in
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth
from tests.support.workers import provisioned

ROOT = Path(__file__).parent.parent.parent
SOON = timedelta(seconds=40)


@pytest.fixture
async def app(settings_for: Callable[..., Settings]) -> AsyncIterator[JetJobs]:
    tasks.app.configure(settings_for())
    tasks.app._observers.clear()
    async with provisioned(tasks.app) as opened:
        yield opened


def worker(server: EmbeddedServer, *options: str) -> Process:
    arguments = ["worker", "tests.integration.isolated_tasks:app", "--log-format", "json", *options]
    return Process(arguments, ROOT, {"NATS_URL": server.url})


async def until(process: Process, text: str, count: int = 1) -> str:
    return await asyncio.to_thread(process.wait_for, text, count, 40)


async def test_a_worker_survives_children_that_exit_or_crash_and_other_jobs_finish(
    server: EmbeddedServer, app: JetJobs, truth: Truth
) -> None:
    with worker(server) as process:
        await until(process, "worker.ready")
        dying = [await tasks.die.enqueue(how) for how in ("exit", "segfault", "exit", "segfault")]
        others = [await tasks.plain.enqueue(n) for n in range(50)]
        isolated = [await tasks.who.enqueue() for _ in range(10)]
        texts = []
        for handle in dying:
            with pytest.raises(JobFailed) as caught:
                await handle.result(SOON)
            texts.append(caught.value.text)
        assert [await handle.result(SOON) for handle in others] == list(range(50))
        assert {(await handle.result(SOON))["parent"] for handle in isolated} == {process.popen.pid}
        assert process.popen.poll() is None
        children = {(await handle.result(SOON))["pid"] for handle in isolated}
        assert await asyncio.to_thread(process.end) == 0
    assert sum("exited with code 7" in text for text in texts) == 2
    assert sum("SIGSEGV" in text for text in texts) == 2
    assert set(await truth.dead()) == {handle.id for handle in dying}
    await truth.until_empty()
    assert all(is_gone(pid) for pid in children)  # the worker ends after them


async def test_a_job_that_ignores_its_cancel_is_killed_and_does_not_run_after_a_restart(
    server: EmbeddedServer, app: JetJobs, truth: Truth, tmp_path: Path
) -> None:
    marker = tmp_path / "stubborn"
    with worker(server) as process:
        await until(process, "worker.ready")
        handle = await tasks.stubborn.enqueue(str(marker))
        (child,) = await pids_in(marker)
        await eventually(app.workers.list, 40)  # a cancel waits for registered workers
        answer = await app.jobs.cancel(handle.id, by="ada", reason="enough", timeout=SOON)
        assert (answer.outcome, answer.state) == (CancelOutcome.CANCELLED, JobState.CANCELLED)
        assert answer.detail == "it did not stop; its child process was killed"
        assert await pids_in(Path(f"{marker}.heard")) == [child]
        await gone(child)
        with pytest.raises(JobCancelled, match="by ada: enough"):
            await handle.result(SOON)
        record = (await truth.done())[handle.id]
        assert (record["state"], record["how"]) == ("cancelled", "killed")
        assert (record["by"], record["reason"]) == ("ada", "enough")
        await truth.until_empty()
        # The same worker continues.
        assert (await (await tasks.who.enqueue()).result(SOON))["parent"] == process.popen.pid
        assert process.popen.poll() is None
        assert await asyncio.to_thread(process.end) == 0
    marker.unlink()
    with worker(server) as process:
        await until(process, "worker.ready")
        assert await (await tasks.plain.enqueue(7)).result(SOON) == 7
        await truth.until_empty()
        assert await asyncio.to_thread(process.end) == 0
    assert not marker.exists()
    assert await truth.dead() == {}
    assert (await handle.status()).state is JobState.CANCELLED
    again = await app.jobs.cancel(handle.id)
    assert (again.outcome, again.state) == (CancelOutcome.CANCELLED, JobState.CANCELLED)


async def test_kill_9_of_the_worker_leaves_no_children(
    server: EmbeddedServer, app: JetJobs, tmp_path: Path
) -> None:
    with worker(server) as process:
        await until(process, "worker.ready")
        idle = (await (await tasks.who.enqueue()).result(SOON))["pid"]
        paths = [tmp_path / str(n) for n in range(3)]
        for path in paths:
            await tasks.hold.enqueue(str(path))
        busy = [(await pids_in(path))[0] for path in paths]
        assert idle in busy
        handle = await tasks.who.enqueue()
        idle = (await handle.result(SOON))["pid"]
        assert idle not in busy
        process.send(signal.SIGKILL)
        for pid in [idle, *busy]:
            await gone(pid)


async def test_output_and_log_lines_of_children_carry_their_job(server: EmbeddedServer, app: JetJobs) -> None:
    with worker(server) as process:
        await until(process, "worker.ready")
        await (await tasks.talk.enqueue("one")).result(SOON)
        await until(process, "printed one")
        await until(process, "error one")
        handle = await tasks.log_lines.enqueue("hello")
        await handle.result(SOON)
        line = json.loads(await until(process, '"said hello"'))
        assert (line["logger"], line["task"], line["colour"]) == ("mine", "log_lines", "red")
        assert line["job_id"] == handle.id
        failed = json.loads(await until(process, '"it failed"'))
        assert "ValueError: caught" in failed["exception"]
        assert not any("not wanted" in line for line in process.lines)


PROGRAM = """
import asyncio, os, sys
from jetjobs import JetJobs, RetryPolicy, Settings
from jetjobs.model.settings import build_settings

app = JetJobs("program", settings=build_settings({"nats": {"url": os.environ["SERVER"]}}))

class Odd(Exception): ...

@app.task(isolation="process", retry=RetryPolicy(max_attempts=3, dead_on=(Odd,)))
async def double(n: int) -> int:
    if n < 0:
        raise Odd("negative")
    return 2 * n

async def main() -> None:
    async with app:
        await app.provision()
        handle, bad = await double.enqueue(21), await double.enqueue(-1)
        await app.worker(burst=True).run()
        print("result", await handle.result(), flush=True)
        try:
            await bad.result()
        except Exception as error:
            print("failed", error.reason, error.error_type, flush=True)

GUARD:
    asyncio.run(main())
"""


@pytest.mark.parametrize("style", ["file", "module"])
async def test_tasks_of_the_main_program_run_in_children(
    style: str, server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "program.py").write_text(PROGRAM.replace("GUARD", 'if __name__ == "__main__"'))
    how = ["pkg/program.py"] if style == "file" else ["-m", "pkg.program"]
    with Process([], tmp_path, {"SERVER": server.url}, program=how) as process:
        await until(process, "result 42")
        await until(process, "failed permanent Odd")
        assert await asyncio.to_thread(process.popen.wait, 40) == 0


async def test_a_program_without_a_main_guard_gets_a_clear_error(server: EmbeddedServer, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM.replace("GUARD", "if True"))
    with Process([], tmp_path, {"SERVER": server.url}, program=["program.py"]) as process:
        await until(process, "importing the modules of the app started a worker")
        assert await asyncio.to_thread(process.popen.wait, 40) == 1


# Threads


STUCK = """
import os, time
from datetime import timedelta
from jetjobs import JetJobs, RetryPolicy
from jetjobs.worker import worker

app = JetJobs("stuck")

@app.task(timeout=timedelta(milliseconds=200), retry=RetryPolicy(max_attempts=1))
def hang() -> None:
    time.sleep(120)

@app.task
async def who() -> int:
    return os.getpid()
"""


async def test_threads_that_do_not_end_are_reported_and_recycle_the_worker(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(STUCK + "worker.MAX_STUCK_THREADS = 2\n")
    env = {"NATS_URL": server.url}
    with Process(["worker", "--log-format", "json"], tmp_path, env) as process:
        await until(process, "worker.ready")
        for _ in range(2):
            await asyncio.to_thread(run, ["enqueue", "hang"], tmp_path, env=env)
        entry = json.loads(await until(process, "worker.thread_stuck", 2))
        assert (entry["task"], entry["level"], entry["stuck"]) == ("hang", "warning", 2)
        await until(process, "worker.recycling")
        assert await asyncio.to_thread(process.popen.wait, 40) == 8
