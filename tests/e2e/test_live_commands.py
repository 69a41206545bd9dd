"""`events`, `top` and `jobs watch` as people use them: on a terminal, with keys, and in a pipe."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetjobs.devserver import EmbeddedServer
from tests.support.processes import Process, run
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
    current_job().progress(0.5, "half of the way")
    while not pathlib.Path(until).exists():
        await asyncio.sleep(0.02)
    return "counted"
"""
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def env(server: EmbeddedServer) -> dict[str, str]:
    return {"NATS_URL": server.url}


@pytest.fixture
def worker(folder: Path, env: dict[str, str]) -> Iterator[Process]:
    with Process(["worker", "--name", "w1"], folder, env) as process:
        process.wait_for("worker ready", timeout=60)
        give_up = time.monotonic() + 60
        while "w1" not in run(["workers", "list"], folder, 60, env).stdout:
            assert time.monotonic() < give_up
        yield process


def enqueue(folder: Path, env: dict[str, str], *arguments: str) -> str:
    """The id of a new job."""
    done = run(["enqueue", *arguments, "--json"], folder, 60, env)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["id"])


def wait_for_end(folder: Path, env: dict[str, str], job_id: str) -> None:
    run(["jobs", "wait", job_id, "--for", "60s"], folder, 90, env)


def objects(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines if line.startswith("{")]


def until_heard(folder: Path, env: dict[str, str], events: Process) -> list[dict[str, Any]]:
    """The events of a job. A worker that has not heard of us yet, or not again, tells nothing: once more then."""
    give_up = time.monotonic() + 70
    while time.monotonic() < give_up:
        job_id = enqueue(folder, env, "greet", "name=Ada")
        wait_for_end(folder, env, job_id)
        told = [event for event in objects(list(events.lines)) if event["job_id"] == job_id]
        if [event["kind"] for event in told] == ["job.started", "job.succeeded"]:
            return told
    raise AssertionError(events.lines)


def test_events_are_json_lines_in_a_pipe_and_outlive_the_server(
    folder: Path, env: dict[str, str], worker: Process, server: EmbeddedServer
) -> None:
    with Process(["events", "--kind", "job.*"], folder, env) as events:
        events.wait_for("heard us", timeout=60)
        told = until_heard(folder, env, events)
        assert {"at", "worker", "queue", "task", "attempt", "run_s", "error"} <= told[1].keys()
        assert (told[1]["worker"], told[1]["queue"], told[1]["task"]) == ("w1", "default", "greet")
        server.stop()
        events.wait_for("the connection is lost", timeout=60)
        server.start()
        events.wait_for("connected again", timeout=60)
        until_heard(folder, env, events)
        assert events.end(signal.SIGINT, 40) == 130
        assert not [line for line in events.lines if "Traceback" in line]


def test_events_are_lines_on_a_terminal(folder: Path, env: dict[str, str], worker: Process) -> None:
    with Terminal(["events"], folder, env, columns=40) as terminal:
        terminal.wait_for("heard us", 60)
        give_up = time.monotonic() + 70
        while "job.dead_lettered" not in terminal.text:  # until the worker has heard of us
            assert time.monotonic() < give_up, terminal.text
            job_id = enqueue(folder, env, "fail")
            with contextlib.suppress(AssertionError):
                terminal.wait_for(f"default/fail  {job_id}", 3)
        terminal.wait_for("Reject: no", 40)
        assert "default/fail  " in terminal.text
        assert "{" not in terminal.text
        terminal.press("\x03")
        assert terminal.end(40) == 130
        assert "Traceback" not in terminal.text


def test_top_shows_queues_jobs_and_workers_and_hears_keys(
    folder: Path, env: dict[str, str], worker: Process
) -> None:
    go_on = folder / "go"
    job_id = enqueue(folder, env, "count", f"until={go_on}")
    with Terminal(["top", "--refresh", "500ms"], folder, env, columns=130) as terminal:
        for text in ("QUEUE", "default", "w1", "50 % half of the way", job_id, "q quit"):
            terminal.wait_for(text, 60)
        terminal.press("p")
        terminal.wait_for("PAUSED", 40)
        terminal.press("p")
        terminal.press("/")
        terminal.wait_for("filter: _", 40)
        terminal.press("nosuchx\x7f")
        terminal.wait_for("filter: nosuch_", 40)
        terminal.press("\r")
        terminal.wait_for("[nosuch]", 40)
        terminal.text = ""
        terminal.press("\x1b")
        terminal.wait_for(job_id, 40)
        terminal.press("q")
        assert terminal.end(40) == 0
        assert terminal.text.rstrip().endswith("\x1b[?1049l")  # the terminal is as it was
    go_on.touch()
    wait_for_end(folder, env, job_id)


def test_top_fits_a_terminal_of_40_columns_and_ctrl_c_leaves_it(
    folder: Path, env: dict[str, str], worker: Process
) -> None:
    with Terminal(["top"], folder, env, columns=40) as terminal:
        terminal.wait_for("default", 60)
        terminal.wait_for("w1", 60)
        terminal.press("\x03")
        assert terminal.end(40) == 130
        assert "\x1b[?1049l" in terminal.text
        assert "Traceback" not in terminal.text
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.text.replace("\x1b[H", "\n"))
        assert max(len(line) for line in re.split(r"[\r\n]+", plain)) <= 40


def test_top_in_a_pipe_is_one_look(folder: Path, env: dict[str, str], worker: Process) -> None:
    piped = run(["top"], folder, 60, env)
    assert (piped.returncode, piped.stderr) == (0, "")
    assert "\x1b" not in piped.stdout
    assert [line.split()[0] for line in piped.stdout.splitlines() if line][1:] == [
        "QUEUE", "default", "TASK", "WORKER", "w1",
    ]  # fmt: skip
    found = json.loads(run(["top", "--json"], folder, 60, env).stdout)
    assert found.keys() == {"queues", "running", "workers"}
    (queue,) = found["queues"]
    assert (queue["queue"], queue["queued"], queue["later"], queue["workers"]) == ("default", 0, 0, 1)
    assert found["workers"][0]["worker"] == "w1"


def test_watching_jobs_ends_with_them_and_says_how(folder: Path, env: dict[str, str], worker: Process) -> None:
    good, bad = enqueue(folder, env, "greet", "name=Ada"), enqueue(folder, env, "fail")
    both = run(["jobs", "watch", good, bad], folder, 90, env)
    assert both.returncode == 1, both.stderr
    last = {status["id"]: status["state"] for status in objects(both.stdout.splitlines())}
    assert last == {good: "succeeded", bad: "dead"}
    one = run(["jobs", "watch", good], folder, 90, env)
    assert one.returncode == 0
    assert objects(one.stdout.splitlines())[-1]["result"] == "Hello, Ada!"


def test_watching_jobs_on_a_terminal_shows_bars(folder: Path, env: dict[str, str], worker: Process) -> None:
    go_on = folder / "go"
    job_id = enqueue(folder, env, "count", f"until={go_on}")
    with Terminal(["jobs", "watch", job_id], folder, env, columns=100) as terminal:
        terminal.wait_for(" 50 %  half of the way", 60)
        with Terminal(["jobs", "watch"], folder, env) as live:
            live.wait_for("count", 60)
            live.wait_for("50 % half", 60)
            live.press("q")
            assert live.end(40) == 0
        piped = run(["jobs", "watch"], folder, 60, env)
        assert [status["id"] for status in objects(piped.stdout.splitlines())] == [job_id]
        go_on.touch()
        terminal.wait_for("succeeded in", 60)
        assert terminal.end(40) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["events", "--kind", "jobs.*"], 2, "no kind of event matches 'jobs.*'"),
        (["events", "--queue", "no good"], 2, "not a usable name"),
        (["top", "--refresh", "soon"], 2, "--refresh"),
        (["top", "--refresh", "1ms"], 2, "200ms"),
        (["jobs", "watch", "nosuch"], 5, "no job nosuch"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_a_clear_answer(
    folder: Path, env: dict[str, str], arguments: list[str], code: int, text: str
) -> None:
    if code == 5:
        run(["setup", "apply"], folder, 60, env)
    done = run(arguments, folder, 60, env)
    assert (done.returncode, text in done.stderr) == (code, True), done.stderr


@pytest.mark.parametrize("arguments", [["events"], ["top"], ["jobs", "watch"]], ids=" ".join)
def test_without_a_server_there_is_code_3(folder: Path, arguments: list[str]) -> None:
    done = run([*arguments, "-s", "nats://127.0.0.1:9", "--timeout", "1s"], folder, 60)
    assert done.returncode == 3, done.stderr
