"""Shell completion, called as a shell calls it: live names, and no output on failure."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.letters import bury
from tests.support.probe import eventually, wait_until
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
        assert done.stderr == "", done.stderr  # it would garble the line being typed
        return done

    def __call__(self, line: str, **env: str) -> list[str]:
        return self.ask(line, **env).stdout.split()

    async def until(self, line: str, expected: list[str]) -> None:
        """Repeat: on a busy machine an answer may come after the 300 ms, and then nothing is offered."""
        await wait_until(lambda: self(line) == expected, 50)


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Shell(tmp_path)


async def test_completed_names_come_from_the_server(shell: Shell, server: EmbeddedServer) -> None:
    s = f"-s {server.url}"
    app = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

    @app.task(queue="reports")
    async def work() -> None: ...

    async with app:
        await app.provision(["mail", "reports"])
        for name in ("nightly", "noon", "hourly"):
            await app.schedules.put(name, work, cron="@daily")
        ids = await bury(app, "send", [b"{}"], queue="mail", ids=["one-1"])

    async def worker_is_offered() -> bool:
        return bool(re.fullmatch("w1-[0-9a-f]{6}", " ".join(shell(f"jetjobs {s} workers stop "))))

    with Process(["worker", *s.split(), "--name", "w1"], shell.folder) as worker:
        worker.wait_for("worker ready", timeout=50)
        await shell.until(f"jetjobs {s} queues show ", ["mail", "reports"])
        await shell.until(f"jetjobs queues pause {s} m", ["mail"])  # global options may appear anywhere
        await shell.until(f"jetjobs {s} jobs list --queue r", ["reports"])
        await shell.until(f"jetjobs {s} enqueue ", ["send"])
        await eventually(worker_is_offered, 50)
        await shell.until(f"jetjobs {s} dead show ", ids)
        await shell.until(f"jetjobs {s} schedules show n", ["nightly", "noon"])


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"nats://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("spoil", ["nothing listens", "it hangs", "settings", "no queues"])
def test_a_failed_completion_prints_nothing(
    shell: Shell, server: EmbeddedServer, hanging: str, spoil: str
) -> None:
    url = {"nothing listens": "nats://127.0.0.1:1", "it hangs": hanging}.get(spoil, server.url)
    if spoil == "settings":
        (shell.folder / "jetjobs.toml").write_text("[nonsense")
    done = shell.ask(f"jetjobs -s {url} queues show ")
    assert (done.returncode, done.stdout.strip()) == (0, "")


@pytest.mark.alone
def test_completion_waits_at_most_300_ms(shell: Shell, hanging: str) -> None:
    code = (
        "import time, jetjobs.app\n"
        "from jetjobs.cli.completion import _query\n"
        "from jetjobs.model.settings import build_settings\n"
        f"settings = build_settings({{'nats': {{'url': '{hanging}'}}}})\n"
        "began = time.perf_counter()\n"
        "assert _query('queues', settings) == []\n"
        "print(time.perf_counter() - began)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=shell.folder, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert 0.3 <= float(done.stdout) < 1.5  # not the 5 s of a connection attempt


def test_static_completions_need_no_server(shell: Shell) -> None:
    assert shell("jetjobs jobs list --state s") == ["scheduled", "succeeded"]
    assert shell("jetjobs jobs priority some-id ") == ["high", "normal", "low"]
    assert "queues" in shell("jetjobs q")
