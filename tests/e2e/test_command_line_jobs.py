"""`jetjobs jobs`: find, wait for, cancel and reschedule jobs from a shell, with their exit codes."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.letters import bury
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.shell import Shell, error_of

TASKS = """
import asyncio
from datetime import timedelta
from jetjobs import JetJobs, RetryPolicy
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task(retry=RetryPolicy(max_attempts=1))
async def broken() -> None:
    raise ValueError("on purpose")

@app.task(retry=RetryPolicy(base=timedelta(hours=1), jitter=False))
async def fragile() -> None:
    raise ValueError("first\\nsecond \\x1b[2J")

@app.task
async def hold() -> None:
    print("hold begins", flush=True)
    await asyncio.sleep(600)
"""
HOUR = timedelta(hours=1)
pytestmark = pytest.mark.timeout(240)  # a dozen processes in sequence


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    """For the test itself; the worker imports the app in the folder."""
    opened = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

    @opened.task
    async def greet(name: str) -> str:
        return name

    async with opened:
        await opened.provision(["default", "other"])
        yield opened


@pytest.fixture
def jobs(shell: Shell) -> Shell:
    return shell.of("jobs")


@pytest.fixture
def worker(jobs: Shell) -> Iterator[Process]:
    with jobs.process("worker", "--name", "w1") as process:
        process.wait_for("worker ready", timeout=50)
        yield process


async def enqueue(app: JetJobs, job_id: str, *, name: str = "Ada", **options: Any) -> None:
    await app.find("greet").options(job_id=job_id, **options).enqueue(name)


# Find


async def test_jobs_are_listed_by_state(app: JetJobs, jobs: Shell) -> None:
    for number in range(3):
        await enqueue(app, f"now-{number}", name=f"n{number}")
    await enqueue(app, "later", delay=HOUR)
    table = jobs("list").stdout.splitlines()
    assert table[0].split() == ["ID", "STATE", "QUEUE", "TASK", "ATTEMPT", "AGE", "WORKER"]
    assert [line.split()[:4] for line in table[1:]] == [
        *(["now-" + str(number), "queued", "default", "greet"] for number in range(3)),
        ["later", "scheduled", "default", "greet"],
    ]
    assert jobs("list", "--quiet", "--state", "queued").stdout.split() == ["now-0", "now-1", "now-2"]
    lines = jobs("list", "--jsonl", "--where", "args.name=n1").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["now-1"]
    first = jobs.json("list", "--limit", "3", "--since", "1h")
    rest = jobs.json("list", "--limit", "3", "--since", "1h", "--cursor", first["cursor"])
    assert [item["id"] for item in first["items"] + rest["items"]] == ["now-0", "now-1", "now-2", "later"]
    assert rest["cursor"] is None
    more = jobs("list", "--limit", "1")
    assert more.stderr.startswith("more: --cursor ")


async def test_a_failure_shows_its_traceback_on_the_console_in_json_and_while_the_job_is_retried(
    app: JetJobs, shell: Shell, jobs: Shell
) -> None:
    where = "tasks.py:17 in fragile"
    with shell.process("worker", "--log-format", "console") as process:
        process.wait_for("worker ready", timeout=50)
        job_id = shell("enqueue", "fragile", "--quiet").stdout.strip()
        process.wait_for("ValueError: first", timeout=50)
        process.wait_for(where, timeout=50)
        process.wait_for("second \\x1b[2J", timeout=50)
        shown = jobs("show", job_id).stdout
        assert shown.endswith(
            f"\n\nTraceback (most recent call last):\n  {where}\n"
            '    raise ValueError("first\\nsecond \\x1b[2J")\nValueError: first\nsecond \\x1b[2J\n'
        )
        assert "state        retrying" in shown
        assert where in jobs.json("show", job_id)["traceback"]
        jobs("cancel", job_id)
    with shell.process("worker", "--log-format", "json") as process:
        process.wait_for("worker.ready", timeout=50)
        shell("enqueue", "broken", "--quiet")
        line = json.loads(process.wait_for("job.dead_lettered", timeout=50))
    assert line["traceback"] == (
        "Traceback (most recent call last):\n  tasks.py:13 in broken\n"
        '    raise ValueError("on purpose")\nValueError: on purpose'
    )


async def test_an_invalid_list_is_refused_with_a_reason(app: JetJobs, jobs: Shell) -> None:
    for number in range(2):
        await enqueue(app, f"now-{number}")
    cursor = jobs.json("list", "--limit", "1")["cursor"]
    other = jobs("list", "--limit", "1", "--state", "queued", "--cursor", cursor, code=2)
    assert error_of(other) == "error: the cursor belongs to another list"
    assert "hint: repeat the filters" in other.stderr
    assert "invalid cursor" in jobs.error("list", "--cursor", "nonsense", code=2)
    nothing = jobs("list", "--where", "args.colour=red")
    assert nothing.stderr == "none of the 2 jobs scanned has args.colour\n"
    assert len(nothing.stdout.splitlines()) == 1  # the heading
    assert "hint: write args.NAME=VALUE" in jobs("list", "--where", "colour", code=2).stderr
    assert "use the path of an argument" in jobs.error("list", "--where", "id=1", code=2)
    assert "unknown state 'asleep'" in jobs.error("list", "--state", "asleep", code=2)
    assert jobs.error("list", "--queue", "nowhere", code=5) == "error: queue 'nowhere' does not exist"


@pytest.mark.parametrize(
    ("known", "why"),
    [("", "no worker knows task 'gone'"), (" known", "waits for a worker that knows task 'gone'")],
)
async def test_a_parked_job_is_shown_with_what_it_waits_for(
    app: JetJobs, jobs: Shell, truth: Truth, known: str, why: str
) -> None:
    headers = {
        "Jetjobs-Parked": f"1794798669.651{known}",
        "Nats-Schedule": "@at 2199-01-01T00:00:00Z",
        "Nats-Schedule-Target": "jobs.work.default.normal.gone.-.p1",
    }
    await truth.js.publish("jobs.work.default.retry.gone.-.p1", b"{}", headers=headers)
    shown = dict(line.split(maxsplit=1) for line in jobs("show", "p1").stdout.splitlines())
    assert (shown["state"], shown["attempt"], shown["reason"]) == ("retrying", "1", f"parked: {why}")
    assert jobs.json("show", "p1")["reason"] == f"parked: {why}"
    assert [item["reason"] for item in jobs.json("list", "--state", "retrying")["items"]] == [f"parked: {why}"]


async def test_an_unknown_id_and_an_invalid_id_have_different_codes(app: JetJobs, jobs: Shell) -> None:
    looks = ("show", "wait", "cancel", "watch")
    for line in (*looks, "reschedule --delay 1h", "priority low"):
        verb, *options = line.split()
        assert jobs.error(verb, "missing", *options, code=5) == "error: no job with id missing"
    for verb in looks:
        malformed = jobs(verb, "no.id", code=2)
        assert error_of(malformed) == "error: invalid job id 'no.id'"
        assert "hint: an id has" in malformed.stderr
    problem = json.loads(jobs("show", "missing", "--json", code=5).stderr)
    assert (problem["error"]["code"], problem["error"]["message"]) == (5, "no job with id missing")


async def test_the_queue_selects_one_of_two_jobs_with_the_same_id(app: JetJobs, jobs: Shell, truth: Truth) -> None:
    await enqueue(app, "twice", delay=HOUR)
    await enqueue(app, "twice", delay=HOUR, queue="other")
    for verb in ("show", "cancel"):
        ambiguous = jobs(verb, "twice", code=2)
        assert error_of(ambiguous) == "error: 2 jobs have the id twice: default/greet, other/greet"
        assert "hint: add --queue and --task" in ambiguous.stderr
    assert jobs.json("show", "twice", "--queue", "other")["queue"] == "other"
    jobs("cancel", "twice", "--queue", "other")
    assert len(await truth.jobs()) == 1
    assert await truth.jobs("other") == []


# Reschedule


async def test_waiting_jobs_are_moved(app: JetJobs, jobs: Shell, truth: Truth) -> None:
    await enqueue(app, "later", delay=HOUR)
    await enqueue(app, "now")
    due = jobs.json("show", "later")["due_at"]
    assert jobs("reschedule", "later", "--delay", "2h").stdout == "later moved\n"
    assert jobs.json("show", "later")["due_at"] > due
    assert jobs("reschedule", "later", "--at", "2099-01-01T00:00:00Z", "--quiet").stdout == "later\n"
    assert jobs.json("show", "later")["due_at"] == "2099-01-01T00:00:00+00:00"
    for wrong in (["--at", "2099-01-01T00:00:00"], ["--at", "soon"]):
        jobs("reschedule", "later", *wrong, code=2)
    for wrong in ([], ["--delay", "1h", "--at", "x"], ["--delay", "5s", "--now"]):
        assert "exactly one of" in jobs.error("reschedule", "later", *wrong, code=2)
    assert jobs("reschedule", "now", "--delay", "1h", code=1).stdout == "now too late: it is queued\n"

    assert jobs("priority", "later", "high").stdout == "later moved\n"
    assert jobs("priority", "later", "high").stdout == "later unchanged\n"
    for job_id in ("later", "missing"):
        assert "invalid priority 'urgent'" in jobs.error("priority", job_id, "urgent", code=2)
    assert jobs("priority", "now", "low").stdout == "now moved\n"
    await eventually(lambda: truth.jobs(lane="low"), 30, where=lambda found: len(found) == 1)

    # One unknown id: none is moved.
    jobs("reschedule", "--now", "later", "missing", code=5)
    assert jobs.json("show", "later")["state"] == "scheduled"
    assert jobs("reschedule", "--now", "later").stdout == "later moved\n"
    assert len(await truth.jobs(lane="high")) == 1
    assert jobs("reschedule", "--now", "later", code=1).stdout == "later too late: it is queued\n"


# Wait and cancel


async def test_waiting_has_an_exit_code_for_each_outcome(app: JetJobs, jobs: Shell, worker: Process) -> None:
    await enqueue(app, "good")
    await enqueue(app, "far", delay=HOUR)
    await bury(app, "greet", [b"{}"], ids=["gone"])
    late = jobs("wait", "far", "--wait-timeout", "300ms", code=7)
    assert late.stdout == ""
    assert "error: " in late.stderr
    assert jobs("wait", "good", "--wait-timeout", "40s").stdout == '"Hello, Ada!"\n'
    document = {"id": "good", "state": "succeeded", "result": "Hello, Ada!"}
    assert jobs.json("wait", "good") == document
    assert "no such thing" in jobs.error("wait", "gone", code=1)
    jobs("cancel", "far", "--reason", "no longer needed")
    assert "no longer needed" in jobs.error("wait", "far", code=1)
    assert "@" in jobs.json("show", "far")["cancel"]["by"]
    assert re.search(r"^cancel +by \S+@\S+: no longer needed$", jobs("show", "far").stdout, re.M)
    shown = jobs("show", "gone").stdout
    assert "dead" in shown
    assert "LookupError" in shown


async def test_cancelling_reports_the_outcome_of_each_job(
    app: JetJobs, shell: Shell, jobs: Shell, worker: Process, truth: Truth
) -> None:
    await enqueue(app, "far", delay=HOUR)
    shell("enqueue", "hold", "--id", "runs")
    worker.wait_for("hold begins", timeout=50)
    await enqueue(app, "good")
    jobs("wait", "good", "--wait-timeout", "40s")
    # One unknown id: none is cancelled.
    jobs("cancel", "far", "missing", code=5)
    assert jobs.json("show", "far")["state"] == "scheduled"
    both = jobs("cancel", "far", "runs", "--wait-timeout", "40s", "--reason", "a test")
    assert both.stdout == "far cancelled\nruns cancelled: it was stopped while it ran\n"
    assert jobs("cancel", "far", "--quiet").stdout == "far\n"  # repeating it has no effect
    ended = jobs("cancel", "good", code=1)
    assert ended.stdout == "good ended: it is already succeeded\n"
    quiet = jobs("cancel", "far", "good", "--quiet", code=1)
    assert (quiet.stdout, quiet.stderr) == ("far\n", "good ended: it is already succeeded\n")
    item = jobs.json("cancel", "good", code=1)["items"][0]
    assert (item["outcome"], item["state"]) == ("ended", "succeeded")
    await truth.until_empty()
    records = await truth.done()
    assert {job_id: record["state"] for job_id, record in records.items()} == {
        "far": "cancelled",
        "runs": "cancelled",
        "good": "succeeded",
    }
    assert records["runs"]["reason"] == "a test"
    listed = jobs("list", "--state", "cancelled", "--quiet").stdout.split()
    assert sorted(listed) == ["far", "runs"]


# Terminals and files


async def test_a_terminal_of_40_columns_is_wide_enough(app: JetJobs, jobs: Shell) -> None:
    await app.find("greet").options(delay=HOUR).enqueue("Ada")
    (letter,) = await bury(app, "a_task_with_a_long_name", [b"{}"])
    for words in (["jobs", "list"], ["queues", "list"], ["workers", "list"], ["config", "show"], ["dead", "list"]):
        with jobs.terminal(*words, columns=40) as terminal:
            assert terminal.end() == 0, terminal.text
        table = [line for line in terminal.lines if not line.startswith("no running workers")]
        assert max(len(line) for line in table) <= 40, terminal.text
    assert table[1].startswith(f"{letter[-10:]}  ")  # the next command takes it
