"""`enqueue --wait` shows how far the job is on a terminal, and nothing of it anywhere else."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetjobs.devserver import EmbeddedServer
from tests.support.processes import Process, clean_environment, run

TASKS = """
import asyncio, pathlib
from jetjobs import JetJobs, current_job
app = JetJobs("demo")

@app.task
async def count(until: str) -> str:
    current_job().progress(0.5, "half of the way, and a message that is longer than the terminal is wide")
    while not pathlib.Path(until).exists():
        await asyncio.sleep(0.02)
    return "counted"
"""
COLUMNS = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    yield ours, theirs
    for end in (ours, theirs):
        try:
            os.close(end)
        except OSError:
            continue


def read_until(descriptor: int, text: str, timeout: float = 40) -> str:
    os.set_blocking(descriptor, False)
    shown, give_up = "", time.monotonic() + timeout
    while text not in shown:
        assert time.monotonic() < give_up, shown
        try:
            shown += os.read(descriptor, 65536).decode()
        except BlockingIOError:
            time.sleep(0.01)
    return shown


@pytest.mark.timeout(150)
def test_waiting_shows_a_bar_on_a_terminal_and_nothing_elsewhere(
    folder: Path, server: EmbeddedServer, terminal: tuple[int, int]
) -> None:
    ours, theirs = terminal
    env = {"NATS_URL": server.url}
    go_on = folder / "go"
    with Process(["worker"], folder, env) as worker:
        worker.wait_for("worker ready", timeout=40)
        command = ["-m", "jetjobs", "enqueue", "count", f"until={go_on}", "--wait", "--wait-timeout", "100s"]
        waiting = subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env=clean_environment(**env),
            stdout=subprocess.PIPE,
            stderr=theirs,
            text=True,
        )
        try:
            shown = read_until(ours, "50 %  half of")
            go_on.touch()
            out, _ = waiting.communicate(timeout=60)
        finally:
            if waiting.poll() is None:
                waiting.kill()
                waiting.wait()
        assert waiting.returncode == 0
        assert "succeeded in" in out
        assert '"counted"' in out
        assert "%" not in out
        for line in shown.replace("\x1b[K", "").split("\r"):
            assert len(line) < COLUMNS
        piped = run(["enqueue", "count", f"until={go_on}", "--wait"], folder, 60, env)
        assert piped.returncode == 0
        assert piped.stderr == ""
