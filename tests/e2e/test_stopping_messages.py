"""The first Ctrl-C of a worker names the job it waits for and how to exit sooner, in `worker` and in `dev`."""

from __future__ import annotations

import json
import re
import signal

import pytest

from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(120)

LONG = "a_task_with_a_name_that_does_not_fit_into_eighty_columns"
TASKS = f"""
import asyncio
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def hold(n: int) -> None:
    print("hold begins", flush=True)
    await asyncio.sleep(600)

@app.task
async def {LONG}() -> None:
    print("long begins", flush=True)
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
        waits, keys = line["msg"].split("\n")
        assert re.fullmatch(r"waiting up to 1m30s for hold job-\d \(.+\) and 6 more jobs", waits)
        assert keys == "Ctrl-C again releases them, a third exits now"
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
        shell("enqueue", LONG)
        dev.wait_for("long begins", timeout=60)
        dev.send(signal.SIGINT)
        waits = dev.wait_for("waiting up to 30.0 s for ", timeout=60)
        keys = dev.wait_for("Ctrl-C again releases it, a third exits now", timeout=60)
        assert LONG[:20] in waits
        assert [len(line.rstrip("\n")) <= 80 for line in (waits, keys)] == [True, True], (waits, keys)
        dev.send(signal.SIGINT)
        dev.popen.wait(25)  # sooner than the stop timeout
