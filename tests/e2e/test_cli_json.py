"""The output of `--json` matches docs/reference/cli-json.md: keys and types, for every command."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ConfigDict, TypeAdapter, create_model

from jetjobs.cli.command_tree import run
from jetjobs.cli.reference import commands
from jetjobs.dev_server import EmbeddedServer
from jetjobs.http.models import admin_answers as b
from jetjobs.http.models import answers as a
from jetjobs.http.routes import TABLE
from tests.support.processes import Process, clean_environment

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli-json.md"
SILENT = {"dev", "http", "worker"}
"""Commands that print no document: they log until they are stopped."""
TASKS = """
import asyncio
from jetjobs import JetJobs, RetryPolicy
app = JetJobs("snapshot")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task(retry=RetryPolicy(max_attempts=1))
async def broken() -> None:
    raise ValueError("on purpose")

@app.task
async def hold() -> None:
    await asyncio.sleep(600)
"""


def sections() -> dict[str, Any]:
    """The documented shape under each heading of the page."""
    found = {}
    for heading, block in re.findall(r"^##+ `(.+?)`\n.*?```json\n(.*?)```", PAGE.read_text(), re.M | re.S):
        assert heading not in found
        found[heading] = json.loads(block)
    return found


def problems(shape: Any, value: Any, where: str = "") -> Iterator[str]:
    """Where the value does not have the shape. The page explains how shapes are written."""
    if isinstance(shape, str):
        if not FITS[shape](value):
            yield f"{where}: {value!r} is not a {shape}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where}: {value!r} is not a list"
        else:
            for number, one in enumerate(value):
                yield from problems(shape[0], one, f"{where}[{number}]")
    elif not isinstance(value, dict):
        yield f"{where}: {value!r} is not an object"
    elif "*" in shape:
        for key, one in value.items():
            yield from problems(shape["*"], one, f"{where}.{key}")
    else:
        if list(value) != (keys := [key.rstrip("?") for key in shape]):
            yield f"{where}: the keys are {list(value)}, on the page {keys}"
        for key, inner in shape.items():
            one = value.get(key.rstrip("?"))
            if one is not None or not key.endswith("?"):
                yield from problems(inner, one, f"{where}.{key}")


def is_time(value: Any) -> bool:
    return isinstance(value, str) and datetime.fromisoformat(value).utcoffset() == timedelta(0)


FITS: dict[str, Callable[[Any], bool]] = {
    "text": lambda value: isinstance(value, str),
    "time": is_time,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "true or false": lambda value: isinstance(value, bool),
    "any": lambda value: True,
}


def _items(item: Any) -> Any:
    """A list without a cursor, of commands that take several names."""
    return create_model("Items", __config__=ConfigDict(extra="forbid"), items=(list[item], ...))


MODELS: dict[str, Any] = {
    "enqueue": a.Enqueued,
    "jobs list": a.JobList,
    "jobs show": a.Job,
    "jobs cancel": a.Changes,
    "jobs reschedule": a.Changes,
    "jobs priority": a.Changes,
    "jobs cancel --all": a.BulkChange,
    "jobs cancel --all, with --dry-run": a.DryRun,
    "queues list": b.QueueList,
    "queues show": b.QueueDetails,
    "queues pause": _items(b.QueueDetails),
    "queues resume": _items(b.QueueResumed),
    "queues purge": b.QueuePurged,
    "queues delete": b.QueueDeleted,
    "workers list": b.WorkerList,
    "workers show": b.WorkerDetails,
    "workers quiet": _items(b.WorkerAnswer),
    "workers stop": _items(b.WorkerAnswer),
    "schedules list": b.ScheduleList,
    "schedules show": b.ScheduleDetails,
    "schedules next": b.ScheduledTimes,
    "schedules next, a rule": b.ScheduledTimes,
    "schedules put": b.Schedule,
    "schedules pause": _items(b.Schedule),
    "schedules resume": _items(b.Schedule),
    "schedules run": b.ScheduleRun,
    "schedules delete": _items(b.ScheduleDeleted),
    "tasks list": b.TaskList,
    "tasks show": b.TaskDetails,
    "dead list": b.DeadLetterList,
    "dead list --group": b.DeadLetterGroups,
    "dead show": b.DeadLetter,
    "dead replay": b.Replayed,
    "dead replay --dry-run": b.DeadLetterDryRun,
    "dead delete": b.DeadLettersDeleted,
    "events": a.Event,
}
"""The models of the HTTP API, by command."""


class Session:
    """Runs command lines in this process against one server and collects what is wrong with their output."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._ending = ["--app", "snapshot_tasks:app", "-s", url, "--json"]
        self._capsys = capsys
        self.shapes = sections()
        self.checked: set[str] = set()
        self.wrong: list[str] = []

    def __call__(self, heading: str, *arguments: str, code: int | None = 0) -> Any:
        """Run the command of the heading (up to its comma) with these arguments and compare its output."""
        return self.check(heading, self.plain(*heading.split(",")[0].split(), *arguments, code=code))

    def check(self, heading: str, document: Any) -> Any:
        self.checked.add(heading)
        if heading in MODELS:  # the HTTP API has the same shape
            TypeAdapter(MODELS[heading]).validate_json(json.dumps(document), strict=True)
        self.wrong += problems(self.shapes[heading], document, heading)
        if "items" in document:
            assert document["items"], (heading, document)  # otherwise nothing would be compared
        return document

    def plain(self, *arguments: str, code: int | None = 0) -> Any:
        ended = run([*arguments, *self._ending])
        shown = self._capsys.readouterr()
        assert code is None or ended == code, (arguments, ended, shown)
        return json.loads(shown.out or shown.err.splitlines()[-1])

    def until(self, *arguments: str, where: Callable[[Any], bool]) -> Any:
        give_up = time.monotonic() + 60
        while not where(found := self.plain(*arguments)):
            assert time.monotonic() < give_up, found
            time.sleep(0.1)
        return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project folder, and an environment without settings."""
    (tmp_path / "snapshot_tasks.py").write_text(TASKS)
    (tmp_path / "jetjobs.toml").write_text("")
    kept = clean_environment()
    for name in [name for name in os.environ if name not in kept]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("snapshot_tasks", None)


@pytest.mark.timeout(300)
def test_every_command_prints_what_the_page_says(
    folder: Path, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(server.url, capsys)
    session("init", "project")
    session("setup plan")
    session("setup apply")
    with Process(["worker", "-s", server.url, "--app", "snapshot_tasks:app", "--name", "snap"], folder) as worker:
        worker.wait_for("worker ready", timeout=60)
        enqueue_and_look(session)
        events(session, folder, server.url)
        move(session)
        letters(session)
        schedules(session)
        the_rest(session)
        session("workers quiet", "snap")
        session("workers stop", "snap")
        assert worker.popen.wait(60) == 0
    session("queues delete", "default", "--force")
    session("setup destroy", "--namespace", "jobs", "--yes")
    assert not session.wrong, "\n".join(session.wrong)
    assert session.checked == set(session.shapes), "a section of the page has no check, or a check no section"


def enqueue_and_look(session: Session) -> None:
    session("enqueue", "greet", "name=Ada", "--delay", "1h", "--id", "waits")
    session("enqueue, with -n", "greet", "name=Ada", "-n", "2")
    session("enqueue --wait", "greet", "name=Ada", "--id", "ended")
    session("enqueue --wait, a job that dies", "broken", "--id", "dies", code=1)
    session("jobs list")
    session("jobs show", "waits")
    session("jobs show", "dies")
    assert session("jobs show", "ended")["result"] == "Hello, Ada!"
    session("jobs wait", "ended")
    session.plain("enqueue", "hold", "--id", "runs")
    session.until("jobs", "show", "runs", where=lambda job: job["state"] == "running")
    session("jobs show", "runs")
    session.until("top", where=lambda found: [job["id"] for job in found["running"]] == ["runs"])
    session("top")
    session("jobs watch")
    session("jobs watch", "ended")
    session.until("workers", "show", "snap", where=lambda worker: worker["running"])
    session("workers list")
    session("workers show", "snap")
    session.until("tasks", "list", where=lambda found: all(item["workers"] for item in found["items"]))
    session("tasks list")
    session("tasks show", "greet")
    session("jobs cancel", "runs")
    session.check("errors", session.plain("jobs", "show", "missing", code=5))


def events(session: Session, folder: Path, url: str) -> None:
    """`events` runs until it is interrupted, so it runs in another process."""
    with Process(["events", "-s", url, "--json"], folder) as following:
        following.wait_for("press Ctrl-C to stop", timeout=60)
        give_up = time.monotonic() + 60
        while not (ended := [line for line in list(following.lines) if "job.succeeded" in line]):
            assert time.monotonic() < give_up, following.lines
            session.plain(
                "enqueue", "greet", "name=Ada", "--wait"
            )  # repeated until the worker knows that someone watches
        session.check("events", json.loads(ended[0]))
        assert following.end(signal.SIGINT, 60) == 130


def move(session: Session) -> None:
    session("jobs reschedule", "waits", "--delay", "2h")
    session("jobs priority", "waits", "high")
    session("jobs cancel --all, with --dry-run", "--dry-run")
    session("jobs cancel --all", "--state", "retrying", "--yes")
    session("jobs reschedule", "waits", "--now")
    session.until("jobs", "show", "waits", where=lambda job: job["state"] == "succeeded")


def letters(session: Session) -> None:
    session("dead list")
    session("dead list --group")
    session("dead show", "dies")
    session("dead export", "letters.jsonl")
    session("dead replay --dry-run", "--all")
    session("dead replay", "dies")
    session.until("dead", "list", where=lambda found: found["items"])
    session("dead delete", "dies")
    session("dead delete, nothing matches", "--task", "nothing")
    session("dead import", "letters.jsonl")


def schedules(session: Session) -> None:
    session("schedules put", "often", "greet", "name=Ada", "--every", "1s", "--end", "2099-01-01T00:00:00Z")
    session.until("schedules", "show", "often", where=lambda one: one["last_job_state"] == "succeeded")
    session("schedules show", "often")
    session("schedules list")
    session("schedules next", "often")
    session("schedules next, a rule", "--cron", "0 9 * * *", "--tz", "Europe/Berlin")
    ran = session("schedules run", "often")
    session.until("jobs", "show", ran["id"], where=lambda job: job["state"] == "succeeded")
    assert session("jobs show", ran["id"])["schedule"] == "often"
    session("schedules pause", "often")
    session("schedules list")
    session("schedules resume", "often")
    session("schedules delete", "often", "--yes")


def the_rest(session: Session) -> None:
    session("queues pause", "default", "--for", "1h", "--reason", "a test")
    session("queues list")
    session("queues show", "default")
    session("queues purge", "default", "--yes")
    session("queues resume", "default")
    session("http token new", "--name", "billing", "--may", "enqueue:greet,read", "--expires", "1d")
    session("http token new", "--name", "web", "--may", "read", "--queues", "default")
    session("http token list")
    session("http token revoke", "billing")
    session("audit list")
    session("doctor", code=None)  # its findings do not matter here
    session("config show")


def test_every_shape_of_the_api_is_that_of_a_command() -> None:
    """Except for what only the API has: batches, answers with more members, and changes of one job."""
    own = {a.EnqueuedJob, a.BatchReport, a.Change, a.Job | a.EnqueuedJob, a.Event | a.Gap}
    answers = {model for row in TABLE for model in row.answers.values() if model is not None}
    of_commands = {*MODELS.values()} | {
        b.QueueDetails,
        b.QueueResumed,
        b.WorkerAnswer,
        b.Schedule,
        b.ScheduleDeleted,
    }
    assert {one for model in answers - own for one in (get_args(model) or (model,))} <= of_commands


def test_every_command_has_a_section() -> None:
    headings = sections()
    assert {command.name for command in commands()} - SILENT <= set(headings)
