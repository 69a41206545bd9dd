"""Synchronous callers in processes that fork and that end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jetjobs import JetJobs, Settings
from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import clean_environment
from tests.support.server import Truth
from tests.support.workers import provisioned

TASKS = """
import os, sys, threading
from jetjobs import JetJobs

app = JetJobs("test")


@app.task
def work(n: int = 0) -> int:
    return n
"""

FORKS = """
from tasks import *


def enqueue(times):
    for n in range(times):
        work.enqueue_sync(n)


def in_threads(count, times):
    threads = [threading.Thread(target=enqueue, args=(times,)) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


enqueue(1)
threads = in_threads(2, 50)  # they hold the connection while the process forks
children = []
for _ in range(4):
    child = os.fork()
    if not child:
        for thread in in_threads(2, 5):
            thread.join()
        grandchild = os.fork()
        if grandchild:
            assert os.waitpid(grandchild, 0)[1] == 0
        enqueue(1)
        sys.exit(0)
    children.append(child)
for child in children:
    assert os.waitpid(child, 0)[1] == 0
for thread in threads:
    thread.join()
enqueue(1)
"""
STORED = 1 + 2 * 50 + 4 * (2 * 5 + 1 + 1) + 1

EXIT = """
from tasks import *

work.enqueue_sync(1)
print("stored", flush=True)
sys.stdin.read()
"""


@pytest.fixture
async def folder(tmp_path: Path, server: EmbeddedServer, settings_for: Callable[..., Settings]) -> Path:
    """A folder with the tasks, whose queue exists."""
    (tmp_path / "tasks.py").write_text(TASKS)
    async with provisioned(JetJobs("test", settings=settings_for())) as app:
        await app.provision(["default"])
    return tmp_path


def start(folder: Path, code: str, url: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options, "-c", code],
        cwd=folder,
        env=clean_environment(JETJOBS_NATS__URL=url, JETJOBS_QUEUES__NAMESPACE="jobs"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def test_processes_forked_in_the_middle_of_calls_open_their_own_connections(
    folder: Path, server: EmbeddedServer, truth: Truth
) -> None:
    with start(folder, FORKS, server.url, "-W", "ignore::DeprecationWarning") as forking:
        out, errors = forking.communicate(timeout=30)
    assert (forking.returncode, out, errors) == (0, "", "")
    assert len(await truth.jobs()) == STORED


@pytest.mark.parametrize("state", ["running", "killed", "frozen"])
def test_a_process_ends_quickly_and_quietly(folder: Path, server: EmbeddedServer, state: str) -> None:
    assert server.process is not None
    pid = server.process.pid
    with start(folder, EXIT, server.url, "-X", "dev") as ending:
        assert ending.stdout is not None
        assert ending.stdout.readline() == "stored\n"
        if state == "killed":
            server.kill()
        elif state == "frozen":
            os.kill(pid, signal.SIGSTOP)
        try:
            started = time.monotonic()
            _, errors = ending.communicate("", timeout=20)
            took = time.monotonic() - started
        finally:
            if state == "frozen":
                os.kill(pid, signal.SIGCONT)
    assert (ending.returncode, errors) == (0, "")
    assert took < 6
