"""Shell completion, asked for as a shell does: live names, soon forgotten, and never a word when it fails."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.cli import completion
from jetjobs.devserver import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.letters import bury
from tests.support.probe import eventually
from tests.support.processes import Process, clean_environment

pytestmark = pytest.mark.timeout(240)
TASKS = """
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task(queue="mail")
async def send(to: str) -> None: ...
"""


class Shell:
    """Completes lines for one user, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ask(self, line: str, **env: str) -> subprocess.CompletedProcess[str]:
        words = line.split(" ")
        variables = {
            "_JETJOBS_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            **env,
        }
        done = subprocess.run(
            [sys.executable, "-m", "jetjobs"],
            cwd=self.folder,
            env=clean_environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.stderr == "", done.stderr  # it would land in the line that is being typed
        return done

    def __call__(self, line: str, **env: str) -> list[str]:
        return self.ask(line, **env).stdout.split()

    async def until(self, line: str, expected: list[str]) -> None:
        """On a busy machine an answer may come after the 300 ms; then nothing is offered, and nothing kept."""

        async def as_expected() -> bool:
            return self(line) == expected

        await eventually(as_expected, 50)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Shell(tmp_path)


async def test_names_come_from_the_server(shell: Shell, server: EmbeddedServer) -> None:
    s = f"-s {server.url}"
    async with JetJobs("test", settings=build_settings({"nats": {"url": server.url}})) as app:
        await app.provision(["mail", "reports"])
        ids = await bury(app, "send", [b"{}"], queue="mail", ids=["one-1"])
    with Process(["worker", *s.split(), "--name", "w1"], shell.folder) as worker:
        worker.wait_for("worker ready", timeout=50)
        await shell.until(f"jetjobs {s} queues show ", ["mail", "reports"])
        await shell.until(f"jetjobs queues pause {s} m", ["mail"])  # options stand where they like
        await shell.until(f"jetjobs {s} jobs list --queue r", ["reports"])
        await shell.until(f"jetjobs {s} enqueue ", ["send"])
        await shell.until(f"jetjobs {s} workers stop ", ["w1"])
        await shell.until(f"jetjobs {s} dead show ", ids)


async def test_names_of_schedules_come_from_the_server(shell: Shell, server: EmbeddedServer) -> None:
    app = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

    @app.task
    async def work() -> None: ...

    async with app:
        await app.provision()
        for name in ("nightly", "noon", "hourly"):
            await app.schedules.put(name, work, cron="@daily")
    await shell.until(f"jetjobs -s {server.url} schedules show n", ["nightly", "noon"])


async def test_what_was_found_is_kept_for_a_while(shell: Shell, server: EmbeddedServer) -> None:
    async with JetJobs("test", settings=build_settings({"nats": {"url": server.url}})) as app:
        await app.provision(["mail"])
    line = f"jetjobs -s {server.url} queues show "
    await shell.until(line, ["mail"])
    (kept,) = (shell.folder / "cache" / "jetjobs").iterdir()
    assert kept.stat().st_mode & 0o777 == 0o600
    kept.write_text(json.dumps(["from-the-cache"]))
    later = time.time() + 20
    os.utime(kept, (later, later))  # of the future: a clock that was set back. It is not trusted
    await shell.until(line, ["mail"])
    kept.write_text(json.dumps(["from-the-cache"]))
    assert shell(line) == ["from-the-cache"]
    long_ago = time.time() - completion.KEPT_S
    os.utime(kept, (long_ago, long_ago))
    await shell.until(line, ["mail"])


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"nats://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("spoil", ["nothing listens", "it hangs", "settings", "no queues", "cache"])
def test_failure_is_silent(shell: Shell, server: EmbeddedServer, hanging: str, spoil: str) -> None:
    url = {"nothing listens": "nats://127.0.0.1:1", "it hangs": hanging}.get(spoil, server.url)
    if spoil == "settings":
        (shell.folder / "jetjobs.toml").write_text("[nonsense")
    elif spoil == "cache":
        (shell.folder / "cache").write_text("a file where a folder should be")
    done = shell.ask(f"jetjobs -s {url} queues show ")
    assert (done.returncode, done.stdout.strip()) == (0, "")


@pytest.mark.alone
def test_no_answer_is_waited_for_longer_than_300_ms(shell: Shell, hanging: str) -> None:
    code = (
        "import time, jetjobs.app\n"
        "from jetjobs.cli.completion import _ask\n"
        "from jetjobs.model.settings import build_settings\n"
        f"settings = build_settings({{'nats': {{'url': '{hanging}'}}}})\n"
        "began = time.perf_counter()\n"
        "assert _ask('queues', settings) is None\n"
        "print(time.perf_counter() - began)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=shell.folder, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert 0.3 <= float(done.stdout) < 1.5  # and not the 5 s of a connect


def test_words_that_are_always_the_same_need_no_server(shell: Shell) -> None:
    assert shell("jetjobs jobs list --state s") == ["scheduled", "succeeded"]
    assert shell("jetjobs jobs priority some-id ") == ["high", "normal", "low"]
    assert "queues" in shell("jetjobs q")
