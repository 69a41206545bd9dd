"""The first Ctrl-C of a worker names the jobs it waits for and how to exit sooner, in `worker` and in `dev`."""

from __future__ import annotations

import json
import signal

import pytest

from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(120)

TASKS = """
import asyncio
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def hold(n: int) -> None:
    print("hold begins", flush=True)
    await asyncio.sleep(600)
"""


def test_a_worker_names_the_jobs_it_waits_for(shell: Shell) -> None:
    with shell.process("worker", "--stop-timeout", "90s", "--log-format", "json") as worker:
        worker.wait_for("worker ready", timeout=60)
        for number in range(7):
            shell("enqueue", "hold", f"n={number}", "--id", f"job-{number}")
        worker.wait_for("hold begins", 7, 60)
        worker.send(signal.SIGINT)
        line = json.loads(worker.wait_for("worker.stopping", timeout=60))
        assert line["msg"].startswith("waiting up to 1m30s for 7 jobs to end: hold job-")
        assert line["msg"].endswith(
            ", 2 more; press Ctrl-C again to cancel and release them now, a third time to exit at once"
        )
        assert (line["jobs"], line["stop_timeout_s"]) == (7, 90)
        worker.send(signal.SIGINT)  # what the message says is true
        assert worker.popen.wait(30) == 1
    assert shell.json("jobs", "list", "--state", "queued")["scanned"] == 7


def test_an_idle_worker_has_nothing_to_wait_for(shell: Shell) -> None:
    with shell.process("worker", "--log-format", "json") as worker:
        worker.wait_for("worker ready", timeout=60)
        assert worker.end(signal.SIGINT, 60) == 0
        assert not [line for line in worker.lines if "worker.stopping" in line]


def test_a_second_ctrl_c_ends_dev_too(shell: Shell) -> None:
    shell.env = {}
    with shell.process("dev", "--no-reload", "--store", "memory") as dev:
        dev.wait_for("worker ready", timeout=60)
        shell("enqueue", "hold", "n=1")
        dev.wait_for("hold begins", timeout=60)
        dev.send(signal.SIGINT)
        dev.wait_for("waiting up to 30.0 s for 1 job to end: hold ", timeout=60)
        dev.send(signal.SIGINT)
        dev.popen.wait(25)  # sooner than the stop timeout
