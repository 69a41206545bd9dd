"""`jetjobs workers` and `jetjobs queues` with real workers and real processes."""

from __future__ import annotations

import asyncio
import shlex
import signal
import subprocess
import sys
import time
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.jetstream.workers.registry import BEAT_S
from jetjobs.model.views.worker_info import WorkerRecord
from tests.conftest import MakeApp
from tests.support.probe import eventually
from tests.support.processes import clean_environment
from tests.support.server import Truth
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(240)  # a dozen processes each, on a machine that may be busy

TASKS = """
import time
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
async def block(seconds: float) -> None:
    print("block begins", flush=True)
    time.sleep(seconds)
"""


async def record_of(app: JetJobs, name: str, where: Any) -> WorkerRecord:
    async def check() -> WorkerRecord | None:
        found = [w for w in await app.workers.list() if w.name == name]
        return found[0] if found and where(found[0]) else None

    return await eventually(check, 45)


# Closed and full standard streams


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ("<&-", 0, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("> /dev/full", 1, "error: cannot write the output: No space left on device\n"),
    ],
)
def test_closed_or_full_standard_files_crash_no_command(shell: Shell, files: str, code: int, said: str) -> None:
    line = f"{shlex.quote(sys.executable)} -m jetjobs workers list --json -s {shell.url} {files}"
    done = subprocess.run(
        line, shell=True, cwd=shell.folder, env=clean_environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (code, said)


# Workers


def test_workers_are_listed_shown_quieted_and_stopped(shell: Shell) -> None:
    assert shell.json("workers", "list") == {"items": [], "cursor": None}
    assert "no running workers" in shell("workers", "list").stderr
    assert "queue 'nowhere' does not exist" in shell("workers", "list", "--queue", "nowhere", code=5).stderr
    with (
        shell.process("worker", "--name", "one") as one,
        shell.process("worker", "--name", "two", "-c", "3") as two,
    ):
        one.wait_for("worker ready", timeout=60)
        two.wait_for("worker ready", timeout=60)
        items = shell.until(
            "workers", "list", where=lambda found: [w["phase"] for w in found["items"]] == ["ready"] * 2
        )["items"]
        assert [item["name"] for item in items] == ["one", "two"]
        assert (items[1]["pid"], items[1]["slots"]) == (two.popen.pid, {"busy": 0, "total": 3})
        table = shell("workers", "list").stdout.splitlines()
        assert table[0].split()[:4] == ["WORKER", "PHASE", "QUEUES", "SLOTS"]
        assert table[2].split()[:4] == [items[1]["worker"], "ready", "default", "0/3"]

        shown = shell.json("workers", "show", "one")
        assert set(shown["tasks"]) == {"greet", "block"}
        assert "task" in shell("workers", "show", "one").stdout

        assert "one" in shell("workers", "quiet", "one").stdout
        one.wait_for("worker quiet")
        shell.until("workers", "show", "one", where=lambda found: found["phase"] == "quiet")
        shell("enqueue", "greet", "name=Ada", "--wait")  # the other worker runs it
        two.wait_for("job succeeded")
        assert one.popen.poll() is None

        assert shell.json("workers", "stop", "one")["items"][0]["ok"] is True
        assert one.popen.wait(30) == 0
        assert [item["name"] for item in shell.json("workers", "list")["items"]] == ["two"]

        refused = shell("workers", "stop", "--all", code=6)
        assert "--yes" in refused.stderr
        shell("workers", "stop", "--all", "--yes")
        assert two.popen.wait(30) == 0


def test_an_unknown_worker_is_exit_code_5(shell: Shell) -> None:
    for words in (("show", "x"), ("quiet", "x"), ("stop", "x")):
        assert "no running worker 'x'" in shell("workers", *words, code=5).stderr
    shell("workers", "quiet", code=2)
    shell("workers", "stop", "x", "--all", code=2)
    shell("workers", "stop", "--all", "--yes")


@pytest.mark.patient
async def test_a_killed_worker_leaves_the_registry_within_three_beats(shell: Shell, make_app: MakeApp) -> None:
    async with make_app() as app:
        with shell.process("worker", "--name", "doomed") as process:
            await asyncio.to_thread(process.wait_for, "worker ready")
            await record_of(app, "doomed", lambda w: w.phase == "ready")
            process.end(signal.SIGKILL)
            killed_at = time.monotonic()
            await eventually(app.workers.list, 40, where=lambda found: not found)
            # One second for the queries of this test.
            assert time.monotonic() - killed_at < 3 * BEAT_S + 1


async def test_a_worker_with_a_blocked_loop_is_shown_as_lagging_and_not_as_dead(
    shell: Shell, make_app: MakeApp
) -> None:
    async with make_app() as app:
        with shell.process("worker", "--name", "stuck") as process:
            await asyncio.to_thread(process.wait_for, "worker ready")
            await asyncio.to_thread(shell, "enqueue", "block", "seconds:=18")
            await asyncio.to_thread(process.wait_for, "block begins")
            record = await record_of(app, "stuck", lambda w: w.lag > timedelta(seconds=4) and w.running)
            assert [job.task for job in record.running] == ["block"]
            assert record.busy == 1


# Queues


async def test_queues_are_listed_shown_paused_and_resumed(shell: Shell, truth: Truth) -> None:
    queues = shell.of("queues")
    assert queues.json("list") == {"items": [], "cursor": None}
    with shell.process("worker", "-c", "4") as worker:
        worker.wait_for("worker ready", timeout=60)
        [item] = queues.until("list", where=lambda found: [q["workers"] for q in found["items"]] == [1])["items"]
        assert (item["queue"], item["state"], item["workers"]) == ("default", "running", 1)
        assert item["slots"] == {"busy": 0, "total": 4}

        paused = queues("pause", "default", "--for", "1h", "--reason", "it's late")
        assert paused.stdout.startswith("default  paused ")
        shell("enqueue", "greet", "name=Ada")
        shown = queues.json("show", "default")
        assert (shown["state"], shown["queued"], shown["running"]) == ("paused", 1, 0)
        assert shown["pause"]["reason"] == "it's late"
        assert "@" in shown["pause"]["by"]
        assert 3000 < shown["starts_in_s"] < 3601
        assert "it's late" in queues("show", "default").stdout
        assert "paused" in queues("list").stdout

        assert queues.json("resume", "default") == {"items": [{"queue": "default", "resumed": True}]}
        worker.wait_for("job succeeded")
        assert "was not paused" in queues("resume", "default").stdout
    assert await truth.jobs() == []


async def test_purge_needs_confirmation(shell: Shell, truth: Truth) -> None:
    shell("setup", "apply")
    shell("enqueue", "greet", "name=Ada", "-n", "3")
    shell("enqueue", "greet", "name=Ada", "--delay", "1h")
    purge = shell.of("queues")
    assert "this would permanently delete 3 jobs" in purge.error("purge", "default", code=6)
    assert len(await truth.jobs()) == 4
    assert purge.json("purge", "default", "--yes") == {"queue": "default", "purged": 3, "purged_scheduled": 0}
    assert len(await truth.jobs(lane="later")) == 1
    both = purge("purge", "default", "--scheduled", "-y").stdout
    assert both == "0 queued jobs deleted, 1 scheduled or retrying\n"
    assert await truth.jobs() == []
    assert purge("purge", "default", "-y", "--quiet").stdout == "default\n"


async def test_invalid_queues_and_times_have_their_exit_codes(shell: Shell, truth: Truth) -> None:
    shell("setup", "apply")
    queues = shell.of("queues")
    for verb, *options in (["show"], ["pause"], ["resume"], ["purge", "--yes"]):
        assert "queue 'nothing' does not exist" in queues.error(verb, "nothing", *options, code=5)
    queues("show", "no.name", code=2)
    # One unknown queue: none is paused.
    queues("pause", "default", "nothing", code=5)
    for time_given in ("soon", "0s", "99999d"):
        queues("pause", "default", "--for", time_given, code=2)
    assert not (await truth.consumer("normal")).get("paused")
