"""`events`, `top` and `jobs watch`: on a terminal, with keys, and in a pipe."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process
from tests.support.shell import Shell
from tests.support.terminal import Terminal

TASKS = """
import asyncio, pathlib
from jetjobs import JetJobs, Reject, current_job
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
async def fail() -> None:
    raise Reject("no")

@app.task
async def count(until: str) -> str:
    current_job().progress(0.5, "half of the way, and a message that is longer than a narrow terminal is wide")
    while not pathlib.Path(until).exists():
        await asyncio.sleep(0.02)
    return "counted"
"""
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def worker(shell: Shell) -> Iterator[Process]:
    with shell.process("worker", "--name", "w1") as process:
        process.wait_for("worker ready", timeout=60)
        shell.until("workers", "list", where=lambda found: found["items"])
        yield process


def enqueue(shell: Shell, *arguments: str) -> str:
    """The id of a new job."""
    return str(shell.json("enqueue", *arguments)["id"])


def objects(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def until_published(shell: Shell, events: Process) -> list[dict[str, Any]]:
    """The events of a job. Repeats until the worker knows that someone watches and publishes them."""
    give_up = time.monotonic() + 70
    while time.monotonic() < give_up:
        job_id = enqueue(shell, "greet", "name=Ada")
        shell("jobs", "wait", job_id, "--wait-timeout", "60s")
        found = [event for event in objects(list(events.lines)) if event["job_id"] == job_id]
        if [event["kind"] for event in found] == ["job.started", "job.succeeded"]:
            return found
    raise AssertionError(events.lines)


def test_events_are_json_lines_in_a_pipe_and_continue_after_a_server_restart(
    shell: Shell, worker: Process, server: EmbeddedServer
) -> None:
    with shell.process("events", "--kind", "job.*") as events:
        events.wait_for("press Ctrl-C to stop", timeout=60)
        found = until_published(shell, events)
        assert {"at", "worker", "queue", "task", "attempt", "run_s", "error"} <= found[1].keys()
        assert (found[1]["worker"], found[1]["queue"], found[1]["task"]) == ("w1", "default", "greet")
        server.stop()
        events.wait_for("connection lost", timeout=60)
        server.start()
        events.wait_for("connection restored", timeout=60)
        until_published(shell, events)
        assert events.end(signal.SIGINT, 40) == 130
        assert not [line for line in events.lines if "Traceback" in line]


def test_events_are_text_lines_on_a_terminal(shell: Shell, worker: Process) -> None:
    with shell.terminal("events", columns=40) as terminal:
        terminal.wait_for("press Ctrl-C to stop", 60)
        give_up = time.monotonic() + 70
        while "job.dead_lettered" not in terminal.text:  # until the worker knows that someone watches
            assert time.monotonic() < give_up, terminal.text
            job_id = enqueue(shell, "fail")
            with contextlib.suppress(AssertionError):
                terminal.wait_for(f"default/fail  {job_id}", 3)
        terminal.wait_for("Reject: no", 40)
        assert "default/fail  " in terminal.text
        assert "{" not in terminal.text
        terminal.press("\x03")
        assert terminal.end(40) == 130
        assert "Traceback" not in terminal.text


def test_ctrl_c_leaves_top_and_restores_the_terminal(shell: Shell, worker: Process) -> None:
    with shell.terminal("top", columns=40) as terminal:
        terminal.wait_for_screen("default", timeout=60)
        terminal.press("\x03")
        assert terminal.end(40) == 130
        assert "\x1b[?1049l" in terminal.text
        assert "Traceback" not in terminal.text


def test_top_prints_one_snapshot_in_a_pipe(shell: Shell, worker: Process) -> None:
    piped = shell("top")
    assert piped.stderr == ""
    assert "\x1b" not in piped.stdout
    first = [line.split()[0] for line in piped.stdout.splitlines() if line][1:]
    assert first[:-1] == ["QUEUE", "default", "TASK", "WORKER"]
    assert re.fullmatch("w1-[0-9a-f]{6}", first[-1])
    found = shell.json("top")
    (queue,) = found["queues"]
    assert (queue["queue"], queue["queued"], queue["scheduled"], queue["workers"]) == ("default", 0, 0, 1)
    assert found["workers"][0]["name"] == "w1"


def test_watching_ends_with_the_jobs_and_shows_their_outcome(shell: Shell, worker: Process) -> None:
    good, bad = enqueue(shell, "greet", "name=Ada"), enqueue(shell, "fail")
    both = shell("jobs", "watch", good, bad, code=1)
    last = {status["id"]: status["state"] for status in objects(both.stdout.splitlines())}
    assert last == {good: "succeeded", bad: "dead"}
    one = shell("jobs", "watch", good)
    assert objects(one.stdout.splitlines())[-1]["result"] == "Hello, Ada!"


def test_watching_jobs_on_a_terminal_shows_bars(shell: Shell, worker: Process) -> None:
    go_on = shell.folder / "go"
    job_id = enqueue(shell, "count", f"until={go_on}")
    with shell.terminal("jobs", "watch", job_id, columns=100) as terminal:
        terminal.wait_for(" 50 %  half of the way", 60)
        with shell.terminal("jobs", "watch") as live:
            live.wait_for("count", 60)
            live.wait_for_screen("50 % half", timeout=60)
            live.press("q")
            assert live.end(40) == 0
        piped = shell("jobs", "watch")
        assert [status["id"] for status in objects(piped.stdout.splitlines())] == [job_id]
        go_on.touch()
        terminal.wait_for("succeeded in", 60)
        assert terminal.end(40) == 0


def test_waiting_for_a_new_job_shows_a_bar_on_a_terminal_and_nothing_elsewhere(
    shell: Shell, worker: Process
) -> None:
    go_on = shell.folder / "go"
    line = ["enqueue", "count", f"until={go_on}", "--wait", "--wait-timeout", "100s"]
    with Terminal(line, shell.folder, shell.env, columns=40, stdout=subprocess.PIPE) as terminal:
        terminal.wait_for("50 %  half of", 60)
        go_on.touch()
        assert terminal.end(60) == 0
        assert terminal.popen.stdout is not None
        with terminal.popen.stdout as pipe:
            out = pipe.read().decode()
    assert "succeeded in" in out
    assert '"counted"' in out
    assert "%" not in out
    assert max(len(line) for line in terminal.text.replace("\x1b[K", "").split("\r")) < 40
    assert shell(*line).stderr == ""
