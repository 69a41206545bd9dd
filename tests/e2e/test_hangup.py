"""Closing a terminal stops its worker gracefully, once; under nohup the worker keeps running."""

from __future__ import annotations

import asyncio
import signal
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.e2e.journal import APP, ROOT, lines, until, until_journal
from tests.e2e.test_schedule_commands import holder
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.terminal import Terminal

pytestmark = pytest.mark.timeout(180)

# The process that runs the tests may ignore the signal, and children inherit that.
_STARTED = """
import runpy, signal, sys
signal.signal(signal.SIGHUP, signal.{how})
runpy.run_module("jetjobs", run_name="__main__", alter_sys=True)
"""


def worker(server: EmbeddedServer, journal: Path, how: str, *options: str) -> Process:
    env = {"NATS_URL": server.url, "JOURNAL": str(journal)}
    words = ["worker", APP, "--log-format", "json", *options]
    return Process(words, ROOT, env, program=("-c", _STARTED.format(how=how)))


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_a_worker_finishes_its_job_after_any_number_of_hangups(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth, processes: str
) -> None:
    with worker(server, journal, "SIG_DFL", "--processes", processes) as process:
        await until(process, "worker.ready", int(processes))
        await journal_tasks.wait.enqueue(1, 5.0)
        await until_journal(journal, "begin", 1)
        process.send(signal.SIGHUP)
        await until(process, "worker.quiet", int(processes))
        assert await asyncio.to_thread(process.end, signal.SIGHUP, 60) == 0
    assert len(lines(journal, "end")) == 1
    await truth.until_empty()


@pytest.mark.parametrize("processes", ["1", "2"])
async def test_under_nohup_a_worker_keeps_running(
    server: EmbeddedServer, app: JetJobs, journal: Path, processes: str
) -> None:
    with worker(server, journal, "SIG_IGN", "--processes", processes) as process:
        await until(process, "worker.ready", int(processes))
        process.send(signal.SIGHUP)
        handle = await journal_tasks.effect.enqueue(1)
        assert await handle.result(timedelta(seconds=30)) == 1
        assert not any("worker.quiet" in line for line in process.lines)
        assert await asyncio.to_thread(process.end, signal.SIGTERM, 60) == 0


async def test_a_worker_without_slots_releases_the_leader_lock_when_its_terminal_is_closed(
    server: EmbeddedServer, tmp_path: Path, truth: Truth
) -> None:
    with Terminal(["worker", "--slots", "0", "-s", server.url, "--name", "first"], tmp_path, {}) as terminal:
        await asyncio.to_thread(terminal.wait_for, "worker ready", 60)
        await eventually(lambda: holder(truth), 60, where=lambda found: found == "first")
        assert await asyncio.to_thread(terminal.hang_up, 60) == 0
    assert await holder(truth) is None
