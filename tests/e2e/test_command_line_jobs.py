"""`jetjobs jobs`: find, wait for, cancel and move jobs from a shell, with the right exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.devserver import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.letters import bury
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth
from tests.support.terminal import Terminal

TASKS = """
import asyncio
from jetjobs import JetJobs, RetryPolicy
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task(retry=RetryPolicy(max_attempts=1))
async def broken() -> None:
    raise ValueError("on purpose")

@app.task
async def hold() -> None:
    print("hold begins", flush=True)
    await asyncio.sleep(600)
"""
HOUR = timedelta(hours=1)
pytestmark = pytest.mark.timeout(240)  # a dozen processes, one after the other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    """For the test's own use; the worker has its own in the folder."""
    opened = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

    @opened.task
    async def greet(name: str) -> str:
        return name

    async with opened:
        await opened.provision(["default", "other"])
        yield opened


class Jobs:
    """`jetjobs jobs ...` against one server."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.env = folder, {"NATS_URL": url}

    async def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = await asyncio.to_thread(run, ["jobs", *arguments], self.folder, 100, self.env)
        assert done.returncode == code, (arguments, done)
        assert "Traceback" not in done.stderr
        return done

    async def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads((await self(*arguments, "--json", code=code)).stdout)

    def worker(self) -> Process:
        return Process(["worker", "--name", "w1"], self.folder, env=self.env)


@pytest.fixture
def jobs(folder: Path, server: EmbeddedServer) -> Jobs:
    return Jobs(folder, server.url)


async def enqueue(app: JetJobs, job_id: str, *, name: str = "Ada", **options: Any) -> None:
    await app.find("greet").options(job_id=job_id, **options).enqueue(name)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    return next(line for line in done.stderr.splitlines() if line.startswith("error: "))


# Finding


async def test_jobs_are_listed_by_where_they_stand(app: JetJobs, jobs: Jobs) -> None:
    for number in range(3):
        await enqueue(app, f"now-{number}", name=f"n{number}")
    await enqueue(app, "later", delay=HOUR)
    table = (await jobs("list")).stdout.splitlines()
    assert table[0].split() == ["ID", "STATE", "QUEUE", "TASK", "ATTEMPT", "AGE", "WORKER"]
    assert [line.split()[:4] for line in table[1:]] == [
        *(["now-" + str(number), "queued", "default", "greet"] for number in range(3)),
        ["later", "scheduled", "default", "greet"],
    ]
    assert (await jobs("list", "-q", "--state", "queued")).stdout.split() == ["now-0", "now-1", "now-2"]
    lines = (await jobs("list", "--jsonl", "--where", "args.name=n1")).stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["now-1"]
    first = await jobs.json("list", "--limit", "3", "--since", "1h")
    rest = await jobs.json("list", "--limit", "3", "--since", "1h", "--cursor", first["cursor"])
    assert [item["id"] for item in first["items"] + rest["items"]] == ["now-0", "now-1", "now-2", "later"]
    assert rest["cursor"] is None
    more = await jobs("list", "--limit", "1")
    assert more.stderr.startswith("more: --cursor ")


async def test_a_list_that_cannot_be_is_refused_with_a_reason(app: JetJobs, jobs: Jobs) -> None:
    for number in range(2):
        await enqueue(app, f"now-{number}")
    cursor = (await jobs.json("list", "--limit", "1"))["cursor"]
    other = await jobs("list", "--limit", "1", "--state", "queued", "--cursor", cursor, code=2)
    assert error_of(other) == "error: the cursor is of another list"
    assert "hint: repeat the filters" in other.stderr
    assert "is no cursor" in error_of(await jobs("list", "--cursor", "nonsense", code=2))
    nothing = await jobs("list", "--where", "args.colour=red")
    assert nothing.stderr == "none of the 2 jobs looked at has args.colour\n"
    assert len(nothing.stdout.splitlines()) == 1  # the heading
    assert "args.NAME=VALUE" in error_of(await jobs("list", "--where", "colour", code=2))
    assert "only arguments" in error_of(await jobs("list", "--where", "id=1", code=2))
    assert "is none of scheduled, queued" in error_of(await jobs("list", "--state", "asleep", code=2))
    assert error_of(await jobs("list", "--queue", "nowhere", code=5)) == "error: there is no queue 'nowhere'"


async def test_an_id_that_says_nothing_is_told_apart_from_one_that_is_none(app: JetJobs, jobs: Jobs) -> None:
    lines = (["show"], ["wait"], ["cancel"], ["watch"], ["run"], ["reschedule", "--delay", "1h"])
    for words in (*lines, ["priority", "high"]):
        before, after = ([words[0]], words[1:])
        unknown = await jobs(*before, "nobody", *after, code=5)
        assert error_of(unknown) == "error: no job nobody: it never existed, or its record has expired"
    for words in lines[:4]:
        malformed = await jobs(*words, "no.id", code=2)
        assert error_of(malformed) == "error: 'no.id' is no job id"
        assert "hint: an id is" in malformed.stderr
    told = json.loads((await jobs("show", "nobody", "--json", code=5)).stderr)
    assert (told["error"]["code"], told["error"]["message"][:13]) == (5, "no job nobody")


async def test_two_jobs_of_one_id_are_told_apart_by_their_queue(app: JetJobs, jobs: Jobs, truth: Truth) -> None:
    await enqueue(app, "twice", delay=HOUR)
    await enqueue(app, "twice", delay=HOUR, queue="other")
    for words in (["show"], ["cancel"]):
        ambiguous = await jobs(*words, "twice", code=2)
        assert error_of(ambiguous) == "error: 2 jobs have the id twice: default/greet, other/greet"
        assert "hint: add --queue and --task" in ambiguous.stderr
    assert (await jobs.json("show", "twice", "--queue", "other"))["queue"] == "other"
    await jobs("cancel", "twice", "--queue", "other")
    assert len(await truth.jobs()) == 1
    assert await truth.jobs("other") == []


# Moving


async def test_jobs_that_wait_are_moved(app: JetJobs, jobs: Jobs, truth: Truth) -> None:
    await enqueue(app, "later", delay=HOUR)
    await enqueue(app, "now")
    due = (await jobs.json("show", "later"))["due_at"]
    assert (await jobs("reschedule", "later", "--delay", "2h")).stdout == "later moved\n"
    assert (await jobs.json("show", "later"))["due_at"] > due
    assert (await jobs("reschedule", "later", "--at", "2099-01-01T00:00:00Z", "-q")).stdout == "later\n"
    assert (await jobs.json("show", "later"))["due_at"] == "2099-01-01T00:00:00+00:00"
    for wrong in ([], ["--at", "2099-01-01T00:00:00"], ["--at", "soon"], ["--delay", "1h", "--at", "x"]):
        await jobs("reschedule", "later", *wrong, code=2)
    assert (await jobs("reschedule", "now", "--delay", "1h", code=1)).stdout == "now too late: it is queued\n"

    assert (await jobs("priority", "later", "high")).stdout == "later moved\n"
    assert (await jobs("priority", "later", "high")).stdout == "later unchanged\n"
    for job_id in ("later", "nobody"):
        assert "is none of" in error_of(await jobs("priority", job_id, "urgent", code=2))
    assert (await jobs("priority", "now", "low")).stdout == "now moved\n"

    async def in_its_lane() -> bool:
        return len(await truth.jobs(lane="low")) == 1

    await eventually(in_its_lane, 30)

    # One unknown among them: none is moved.
    await jobs("run", "later", "nobody", code=5)
    assert (await jobs.json("show", "later"))["state"] == "scheduled"
    assert (await jobs("run", "later")).stdout == "later moved\n"
    assert len(await truth.jobs(lane="high")) == 1
    assert (await jobs("run", "later", code=1)).stdout == "later too late: it is queued\n"


# Ends


async def test_waiting_has_a_code_for_each_end(app: JetJobs, jobs: Jobs) -> None:
    await enqueue(app, "good")
    await enqueue(app, "far", delay=HOUR)
    await bury(app, "greet", [b"{}"], ids=["gone"])
    late = await jobs("wait", "far", "--for", "300ms", code=7)
    assert late.stdout == ""
    assert "error: " in late.stderr
    with jobs.worker() as worker:
        await asyncio.to_thread(worker.wait_for, "worker ready", 1, 50)
        assert (await jobs("wait", "good", "--for", "40s")).stdout == '"Hello, Ada!"\n'
        document = {"id": "good", "state": "succeeded", "result": "Hello, Ada!"}
        assert await jobs.json("wait", "good") == document
        assert "no such thing" in error_of(await jobs("wait", "gone", code=1))
        await jobs("cancel", "far", "--reason", "no longer needed")
        assert "no longer needed" in error_of(await jobs("wait", "far", code=1))
        assert "@" in (await jobs.json("show", "far"))["cancel"]["by"]
        assert re.search(r"^cancel +by \S+@\S+: no longer needed$", (await jobs("show", "far")).stdout, re.M)
        shown = (await jobs("show", "gone")).stdout
        assert "dead" in shown
        assert "LookupError" in shown


async def test_cancelling_says_what_became_of_each(app: JetJobs, jobs: Jobs, truth: Truth) -> None:
    await enqueue(app, "far", delay=HOUR)
    with jobs.worker() as worker:
        await asyncio.to_thread(worker.wait_for, "worker ready", 1, 50)
        await asyncio.to_thread(run, ["enqueue", "hold", "--id", "runs"], jobs.folder, 50, jobs.env)
        await asyncio.to_thread(worker.wait_for, "hold begins", 1, 50)
        await enqueue(app, "good")
        await jobs("wait", "good", "--for", "40s")
        # One unknown among them: none is cancelled.
        await jobs("cancel", "far", "nobody", code=5)
        assert (await jobs.json("show", "far"))["state"] == "scheduled"
        both = await jobs("cancel", "far", "runs", "--for", "40s", "--reason", "a test")
        assert both.stdout == "far cancelled\nruns cancelled: it was stopped while it ran\n"
        assert (await jobs("cancel", "far", "-q")).stdout == "far\n"  # again, to no further effect
        ended = await jobs("cancel", "good", code=1)
        assert ended.stdout == "good ended: it is succeeded already\n"
        quiet = await jobs("cancel", "far", "good", "-q", code=1)
        assert (quiet.stdout, quiet.stderr) == ("far\n", "good ended: it is succeeded already\n")
        item = (await jobs.json("cancel", "good", code=1))["items"][0]
        assert (item["outcome"], item["state"]) == ("ended", "succeeded")
        await truth.until_empty()
    records = await truth.done()
    assert {job_id: record["state"] for job_id, record in records.items()} == {
        "far": "cancelled",
        "runs": "cancelled",
        "good": "succeeded",
    }
    assert records["runs"]["reason"] == "a test"
    listed = (await jobs("list", "--state", "cancelled", "-q")).stdout.split()
    assert sorted(listed) == ["far", "runs"]


# Manners


async def test_a_terminal_of_40_columns_is_enough(app: JetJobs, jobs: Jobs) -> None:
    await app.find("greet").options(delay=HOUR).enqueue("Ada")
    (letter,) = await bury(app, "a_task_with_a_long_name", [b"{}"])
    for words in (["jobs", "list"], ["queues", "list"], ["workers", "list"], ["dead", "list"], ["config", "show"]):
        with Terminal(words, jobs.folder, jobs.env, columns=40) as terminal:
            assert await asyncio.to_thread(terminal.end) == 0, terminal.text
        table = [line for line in terminal.lines if not line.startswith("no worker")]
        assert max(len(line) for line in table) <= 40, terminal.text
    with Terminal(["dead", "list"], jobs.folder, jobs.env, columns=40) as terminal:
        assert await asyncio.to_thread(terminal.end) == 0
    assert terminal.lines[1].startswith(f"{letter}  ")  # whole: it is wanted for the next command


def test_a_dev_file_that_was_left_behind_is_passed_over_or_named(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(30)
    (folder / ".jetjobs").mkdir()
    file = folder / ".jetjobs" / "dev.json"
    file.write_text(json.dumps({"url": "nats://127.0.0.1:1", "pid": ended.pid}))
    shown = run(["config", "show", "--json"], folder)
    assert {item["key"]: item["source"] for item in json.loads(shown.stdout)["items"]}["nats.url"] == "default"
    # Its pid belongs to another process by now.
    with Process(["-c", "import time; time.sleep(600)"], folder, program=()) as other:
        file.write_text(json.dumps({"url": "nats://127.0.0.1:1", "pid": other.popen.pid}))
        refused = run(["jobs", "list", "--timeout", "2s"], folder)
        assert refused.returncode == 3
        assert "using the dev server at nats://127.0.0.1:1 (.jetjobs/dev.json)" in refused.stderr
        assert "hint: remove .jetjobs/dev.json" in refused.stderr
        doctor = run(["doctor", "--timeout", "2s", "--json"], folder)
        items = json.loads(doctor.stdout)["items"]
        assert [item["hint"] for item in items if item["check"] == "reach" and item["level"] == "fail"] == [
            "remove .jetjobs/dev.json if no `jetjobs dev` runs here"
        ]


def test_a_url_that_is_none_is_a_wrong_command_line(folder: Path) -> None:
    refused = run(["jobs", "list", "-s", "nats://127.0.0.1:notaport"], folder)
    assert refused.returncode == 2
    assert "error: bad settings: nats.url: " in refused.stderr
    (folder / ".jetjobs").mkdir()
    (folder / ".jetjobs" / "dev.json").write_text(json.dumps({"url": "", "pid": os.getpid()}))
    shown = run(["config", "show", "--json"], folder)
    assert {item["key"]: item["source"] for item in json.loads(shown.stdout)["items"]}["nats.url"] == "default"
