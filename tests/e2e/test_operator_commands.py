"""`jetjobs workers` and `jetjobs queues` as an operator uses them: real workers, real command lines."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.devserver import EmbeddedServer
from jetjobs.jetstream.registry import BEAT_S
from jetjobs.model.presence import WorkerRecord
from tests.conftest import MakeApp
from tests.support.probe import eventually
from tests.support.processes import Process, clean_environment, run
from tests.support.server import Truth

pytestmark = pytest.mark.timeout(240)  # a dozen processes each, on a machine that may be busy

TASKS = """
import asyncio, time
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
async def slow(seconds: float) -> str:
    print("slow begins", flush=True)
    await asyncio.sleep(seconds)
    return "slept"

@app.task
async def block(seconds: float) -> None:
    print("block begins", flush=True)
    time.sleep(seconds)
"""

LIST_KEYS = [
    "queue", "state", "paused_until", "queued", "running", "scheduled", "retrying", "retrying_exact", "dead",
    "oldest_s", "in_per_s", "out_per_s", "workers", "slots",
]  # fmt: skip
WORKER_KEYS = [
    "worker", "name", "host", "pid", "version", "python", "phase", "queues", "slots", "lag_s", "memory_bytes",
    "started_at", "seen_at",
]  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


class Shell:
    """Command lines against one server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run([*arguments, "-s", self.url], self.folder, timeout=50)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def until(self, *arguments: str, where: Callable[[Any], bool]) -> Any:
        """What the command says once it is so: the registry hears of a phase a moment after the log."""
        give_up = time.monotonic() + 60
        while not where(found := self.json(*arguments)):
            assert time.monotonic() < give_up, found
        return found

    def worker(self, *arguments: str) -> Process:
        return Process(["worker", "-s", self.url, *arguments], self.folder)


@pytest.fixture
def shell(folder: Path, server: EmbeddedServer) -> Shell:
    return Shell(folder, server.url)


async def record_of(app: JetJobs, name: str, where: Any) -> WorkerRecord:
    async def check() -> WorkerRecord | None:
        found = [w for w in await app.workers.list() if w.key == name]
        return found[0] if found and where(found[0]) else None

    return await eventually(check, 45)


# Whatever stands where the terminal should


@pytest.mark.parametrize(
    ("files", "code", "said"),
    [
        ("<&-", 0, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        ("> /dev/full", 1, "error: the output cannot be written: No space left on device\n"),
    ],
)
def test_files_that_are_closed_or_full_end_no_command_with_a_crash(
    shell: Shell, files: str, code: int, said: str
) -> None:
    line = f"{shlex.quote(sys.executable)} -m jetjobs workers list --json -s {shell.url} {files}"
    done = subprocess.run(
        line, shell=True, cwd=shell.folder, env=clean_environment(), capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (code, said)


# Workers


def test_workers_are_listed_shown_quieted_and_stopped(shell: Shell) -> None:
    assert shell.json("workers", "list") == {"items": [], "cursor": None}
    assert "no worker lives" in shell("workers", "list").stderr
    assert "there is no queue" in shell("workers", "list", "--queue", "nowhere", code=5).stderr
    with shell.worker("--name", "one") as one, shell.worker("--name", "two", "-c", "3") as two:
        one.wait_for("worker ready", timeout=60)
        two.wait_for("worker ready", timeout=60)
        items = shell.until(
            "workers", "list", where=lambda found: [w["phase"] for w in found["items"]] == ["ready"] * 2
        )["items"]
        assert [item["worker"] for item in items] == ["one", "two"]
        assert list(items[0]) == WORKER_KEYS
        assert (items[1]["pid"], items[1]["slots"]) == (two.popen.pid, {"busy": 0, "total": 3})
        table = shell("workers", "list").stdout.splitlines()
        assert table[0].split()[:4] == ["WORKER", "PHASE", "QUEUES", "SLOTS"]
        assert table[2].split()[:4] == ["two", "ready", "default", "0/3"]

        shown = shell.json("workers", "show", "one")
        assert list(shown) == [*WORKER_KEYS, "queue_slots", "tasks", "running"]
        assert set(shown["tasks"]) == {"greet", "slow", "block"}
        assert "task" in shell("workers", "show", "one").stdout

        assert "one" in shell("workers", "quiet", "one").stdout
        one.wait_for("worker quiet")
        shell.until("workers", "show", "one", where=lambda found: found["phase"] == "quiet")
        shell("enqueue", "greet", "name=Ada", "--wait")  # the other one does it
        two.wait_for("job succeeded")
        assert one.popen.poll() is None

        assert shell.json("workers", "stop", "one")["items"][0]["ok"] is True
        assert one.popen.wait(30) == 0
        assert [item["worker"] for item in shell.json("workers", "list")["items"]] == ["two"]

        refused = shell("workers", "stop", "--all", code=6)
        assert "--yes" in refused.stderr
        shell("workers", "stop", "--all", "--yes")
        assert two.popen.wait(30) == 0


def test_a_worker_that_is_not_there_is_code_5(shell: Shell) -> None:
    for words in (("show", "x"), ("quiet", "x"), ("stop", "x")):
        assert "there is no worker 'x'" in shell("workers", *words, code=5).stderr
    shell("workers", "quiet", code=2)
    shell("workers", "stop", "x", "--all", code=2)
    shell("workers", "stop", "--all", "--yes")


@pytest.mark.patient
async def test_a_killed_worker_is_gone_within_three_beats(shell: Shell, make_app: MakeApp) -> None:
    async with make_app() as app:
        with shell.worker("--name", "doomed") as process:
            await asyncio.to_thread(process.wait_for, "worker ready")
            await record_of(app, "doomed", lambda w: w.phase == "ready")
            process.end(signal.SIGKILL)
            killed_at = time.monotonic()

            async def gone() -> bool:
                return not await app.workers.list()

            await eventually(gone, 40)
            # A second for the looks of the server and of this test.
            assert time.monotonic() - killed_at < 3 * BEAT_S + 1


async def test_a_blocked_loop_shows_as_lag_and_not_as_death(shell: Shell, make_app: MakeApp) -> None:
    async with make_app() as app:
        with shell.worker("--name", "stuck") as process:
            await asyncio.to_thread(process.wait_for, "worker ready")
            await asyncio.to_thread(shell, "enqueue", "block", "seconds:=18")
            await asyncio.to_thread(process.wait_for, "block begins")
            record = await record_of(app, "stuck", lambda w: w.lag_s > 4 and w.running)
            assert [job.task for job in record.running] == ["block"]
            assert record.busy == 1


async def test_a_worker_in_place_of_a_dead_one_is_told_apart_from_it(shell: Shell, make_app: MakeApp) -> None:
    async with make_app() as app:
        with shell.worker("--name", "same") as first:
            await asyncio.to_thread(first.wait_for, "worker ready")
            first.end(signal.SIGKILL)
            with shell.worker("--name", "same") as second:
                await asyncio.to_thread(second.wait_for, "worker ready")

                async def other() -> WorkerRecord | None:
                    found = [w for w in await app.workers.list() if w.pid == second.popen.pid]
                    return found[0] if found else None

                # Under a key of its own while the dead one's stands.
                record = await eventually(other, 30)
                assert record.name == "same"
                assert record.key.startswith("same")


# Queues


async def test_queues_are_listed_shown_paused_and_resumed(shell: Shell, truth: Truth) -> None:
    def work() -> None:
        assert shell.json("queues", "list") == {"items": [], "cursor": None}
        with shell.worker("-c", "4") as worker:
            worker.wait_for("worker ready", timeout=60)
            [item] = shell.until(
                "queues", "list", where=lambda found: [q["workers"] for q in found["items"]] == [1]
            )["items"]
            assert list(item) == LIST_KEYS
            assert (item["queue"], item["state"], item["workers"]) == ("default", "running", 1)
            assert item["slots"] == {"busy": 0, "total": 4}

            paused = shell("queues", "pause", "default", "--for", "1h", "--reason", "it's late")
            assert paused.stdout.startswith("default  paused ")
            shell("enqueue", "greet", "name=Ada")
            shown = shell.json("queues", "show", "default")
            assert list(shown) == [*LIST_KEYS, "starts_in_s", "pause", "lanes"]
            assert (shown["state"], shown["queued"], shown["running"]) == ("paused", 1, 0)
            assert shown["pause"]["reason"] == "it's late"
            assert "@" in shown["pause"]["by"]
            assert 3000 < shown["starts_in_s"] < 3601
            assert "it's late" in shell("queues", "show", "default").stdout
            assert "paused" in shell("queues", "list").stdout

            resumed = shell.json("queues", "resume", "default")
            assert resumed == {"items": [{"queue": "default", "resumed": True}]}
            worker.wait_for("job succeeded")
            assert "was not paused" in shell("queues", "resume", "default").stdout

            stats = shell.json("queues", "stats", "default", "--since", "10m")
            assert [(task["task"], task["succeeded"]) for task in stats["items"]] == [("greet", 1)]
            assert "greet" in shell("queues", "stats", "default").stdout

    await asyncio.to_thread(work)
    assert await truth.jobs() == []


async def test_purge_wants_to_be_told_twice(shell: Shell, truth: Truth) -> None:
    def refused() -> None:
        shell("setup", "apply")
        for _ in range(3):
            shell("enqueue", "greet", "name=Ada")
        shell("enqueue", "greet", "name=Ada", "--delay", "1h")
        assert "this would delete 3 jobs" in shell("queues", "purge", "default", code=6).stderr

    await asyncio.to_thread(refused)
    assert len(await truth.jobs()) == 4
    answer = await asyncio.to_thread(shell.json, "queues", "purge", "default", "--yes")
    assert answer == {"queue": "default", "purged": 3, "purged_scheduled": 0}
    assert len(await truth.jobs(lane="later")) == 1
    text = (await asyncio.to_thread(shell, "queues", "purge", "default", "--scheduled", "-y")).stdout
    assert text == "0 queued jobs deleted, 1 scheduled\n"
    assert await truth.jobs() == []
    assert (await asyncio.to_thread(shell, "queues", "purge", "default", "-y", "-q")).stdout == "default\n"


async def test_wrong_queues_and_times_have_their_codes(shell: Shell, truth: Truth) -> None:
    def work() -> None:
        shell("setup", "apply")
        for words in (("show",), ("pause",), ("resume",), ("purge", "--yes"), ("stats",)):
            done = shell("queues", words[0], "nothing", *words[1:], code=5)
            assert "there is no queue 'nothing'" in done.stderr
        shell("queues", "show", "no.name", code=2)
        # One unknown among them: none is paused.
        shell("queues", "pause", "default", "nothing", code=5)
        for time_given in ("soon", "0s", "99999d"):
            shell("queues", "pause", "default", "--for", time_given, code=2)
        shell("queues", "stats", "default", "--since", "x", code=2)
        shell("queues", "stats", "default", "--since", "99999d")
        error = json.loads(shell("queues", "show", "nothing", "--json", code=5).stderr.splitlines()[-1])
        assert error["error"]["code"] == 5

    await asyncio.to_thread(work)
    assert not (await truth.consumer("normal")).get("paused")
