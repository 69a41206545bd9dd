"""What `--json` prints, held against docs/reference/cli-json.md: for every command of the tree, keys and types."""

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
from typing import Any

import pytest

from jetjobs.cli.command_tree import run
from jetjobs.cli.reference import commands
from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process, clean_environment

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli-json.md"
SILENT = {"dev", "worker"}
"""They print no document: they run until they are stopped, and log."""
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
    """The shape under each heading of the page."""
    found = {}
    for heading, block in re.findall(r"^##+ `(.+?)`\n.*?```json\n(.*?)```", PAGE.read_text(), re.M | re.S):
        assert heading not in found
        found[heading] = json.loads(block)
    return found


def problems(shape: Any, value: Any, where: str = "") -> Iterator[str]:
    """Where the value is not of the shape: see the page for how shapes are written."""
    if isinstance(shape, str):
        if not FITS[shape](value):
            yield f"{where}: {value!r} is no {shape}"
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield f"{where}: {value!r} is no list"
        else:
            for number, one in enumerate(value):
                yield from problems(shape[0], one, f"{where}[{number}]")
    elif not isinstance(value, dict):
        yield f"{where}: {value!r} is no object"
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


class Session:
    """Command lines run in this process against one server, and what is wrong with their output."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._ending = ["--app", "snapshot_tasks:app", "-s", url, "--json"]
        self._capsys = capsys
        self.shapes = sections()
        self.checked: set[str] = set()
        self.wrong: list[str] = []

    def __call__(self, heading: str, *arguments: str, code: int | None = 0) -> Any:
        """Run what the heading says up to its comma, with these arguments, and compare."""
        return self.check(heading, self.plain(*heading.split(",")[0].split(), *arguments, code=code))

    def check(self, heading: str, document: Any) -> Any:
        self.checked.add(heading)
        self.wrong += problems(self.shapes[heading], document, heading)
        if "items" in document:
            assert document["items"], (heading, document)  # else nothing would be compared
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
    """A project to stand in, and an environment without settings."""
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
    told = Session(server.url, capsys)
    told("setup plan")
    told("setup apply")
    with Process(["worker", "-s", server.url, "--app", "snapshot_tasks:app", "--name", "snap"], folder) as worker:
        worker.wait_for("worker ready", timeout=60)
        enqueue_and_look(told)
        events(told, folder, server.url)
        move(told)
        letters(told)
        schedules(told)
        the_rest(told)
        told("workers quiet", "snap")
        told("workers stop", "snap")
        assert worker.popen.wait(60) == 0
    assert not told.wrong, "\n".join(told.wrong)
    assert told.checked == set(told.shapes), "a section of the page has no check, or a check no section"


def enqueue_and_look(told: Session) -> None:
    told("enqueue", "greet", "name=Ada", "--delay", "1h", "--id", "waits")
    told("enqueue, with -n", "greet", "name=Ada", "-n", "2")
    told("enqueue --wait", "greet", "name=Ada", "--id", "ended")
    told("enqueue --wait, a job that dies", "broken", "--id", "dies", code=1)
    told("jobs list")
    told("jobs show", "waits")
    told("jobs show", "dies")
    assert told("jobs show", "ended")["result"] == "Hello, Ada!"
    told("jobs wait", "ended")
    told.plain("enqueue", "hold", "--id", "runs")
    told.until("jobs", "show", "runs", where=lambda job: job["state"] == "running")
    told("jobs show", "runs")
    told.until("top", where=lambda found: [job["id"] for job in found["running"]] == ["runs"])
    told("top")
    told("jobs watch")
    told("jobs watch", "ended")
    told.until("workers", "show", "snap", where=lambda worker: worker["running"])
    told("workers list")
    told("workers show", "snap")
    told("jobs cancel", "runs")
    told.check("errors", told.plain("jobs", "show", "nobody", code=5))


def events(told: Session, folder: Path, url: str) -> None:
    """They do not end by themselves: another process follows them, and is interrupted."""
    with Process(["events", "-s", url, "--json"], folder) as following:
        following.wait_for("press Ctrl-C to stop", timeout=60)
        give_up = time.monotonic() + 60
        while not (ended := [line for line in list(following.lines) if "job.succeeded" in line]):
            assert time.monotonic() < give_up, following.lines
            told.plain("enqueue", "greet", "name=Ada", "--wait")  # again, until the worker has heard of us
        told.check("events", json.loads(ended[0]))
        assert following.end(signal.SIGINT, 60) == 130


def move(told: Session) -> None:
    told("jobs reschedule", "waits", "--delay", "2h")
    told("jobs priority", "waits", "high")
    told("jobs reschedule", "waits", "--now")
    told.until("jobs", "show", "waits", where=lambda job: job["state"] == "succeeded")


def letters(told: Session) -> None:
    told("dead list")
    told("dead list --group")
    told("dead show", "dies")
    told("dead export", "letters.jsonl")
    told("dead replay --dry-run", "--all")
    told("dead replay", "dies")
    told.until("dead", "list", where=lambda found: found["items"])
    told("dead delete", "dies")
    told("dead delete, nothing matches", "--task", "nothing")
    told("dead import", "letters.jsonl")


def schedules(told: Session) -> None:
    told("schedules put", "often", "greet", "name=Ada", "--every", "1s", "--end", "2099-01-01T00:00:00Z")
    told.until("schedules", "show", "often", where=lambda one: one["last_job_state"] == "succeeded")
    told("schedules show", "often")
    told("schedules list")
    told("schedules next", "often")
    told("schedules next, a rule", "--cron", "0 9 * * *", "--tz", "Europe/Berlin")
    ran = told("schedules run", "often")
    told.until("jobs", "show", ran["id"], where=lambda job: job["state"] == "succeeded")
    assert told("jobs show", ran["id"])["schedule"] == "often"
    told("schedules pause", "often")
    told("schedules list")
    told("schedules resume", "often")
    told("schedules delete", "often", "--yes")


def the_rest(told: Session) -> None:
    told("queues pause", "default", "--for", "1h", "--reason", "a test")
    told("queues list")
    told("queues show", "default")
    told("queues purge", "default", "--yes")
    told("queues resume", "default")
    told("doctor", code=None)  # what it finds is another matter
    told("config show")


def test_every_command_has_a_section() -> None:
    headings = sections()
    assert {command.name for command in commands()} - SILENT <= set(headings)
