"""Lists without items say what to do next, on a server without anything on it too."""

from __future__ import annotations

import json

import pytest

from tests.support.server import Truth
from tests.support.shell import Shell

TASKS = """
from jetjobs import JetJobs

app = JetJobs("t")


@app.task
async def work() -> None: ...
"""
FRESH = "no queues; `jetjobs setup apply` creates those of your tasks, and so does `jetjobs worker`"
NO_SCHEDULES = (
    "no schedules; declare one with task.cron(...) and start a worker, or create one with `jetjobs schedules put`"
)
NO_JOBS = "no live jobs; enqueue one with `jetjobs enqueue TASK`; --state succeeded or dead lists ended ones"
NO_LETTERS = "no dead letters; `jetjobs jobs list` lists the live jobs"
NO_WORKERS = "no running workers; start one with `jetjobs worker`"
LISTS = [
    (["dead", "list"], FRESH, NO_LETTERS),
    (["dead", "list", "--group"], FRESH, NO_LETTERS),
    (
        ["dead", "list", "--task", "work"],
        FRESH,
        "no dead letters match; `jetjobs dead list` without options lists all",
    ),
    (["schedules", "list"], FRESH, NO_SCHEDULES),
    (["jobs", "list"], FRESH, NO_JOBS),
    (
        ["jobs", "list", "--state", "dead"],
        FRESH,
        "no jobs match; `jetjobs jobs list` without options lists all live jobs",
    ),
    (["workers", "list"], NO_WORKERS, NO_WORKERS),
    (["queues", "list"], FRESH, ""),
]


async def test_empty_lists_say_what_to_do_next(shell: Shell, truth: Truth) -> None:
    for set_up in (False, True):
        for command, fresh, empty in LISTS:
            done = shell(*command)
            assert done.stderr.splitlines() == list(filter(None, [empty if set_up else fresh])), command
            assert len(done.stdout.splitlines()) == 1 or command[0] == "queues", command  # the heading
            done = shell(*command, "--json")
            assert done.stderr == ""
            found = json.loads(done.stdout)
            assert found["items"] == [] or command[0] == "queues", command
        if not set_up:
            assert (await truth.api("STREAM.NAMES"))["total"] == 0
            shell("setup", "apply")


@pytest.mark.parametrize(("stream", "command"), [("dead", ["dead", "list"]), ("schedules", ["schedules", "list"])])
async def test_a_missing_stream_beside_existing_queues_is_an_error(
    stream: str, command: list[str], shell: Shell, truth: Truth
) -> None:
    shell("setup", "apply")
    names = (await truth.api("STREAM.NAMES"))["streams"]
    (name,) = [name for name in names if name.endswith(f"-{stream}")]
    await truth.js.delete_stream(name)
    assert shell.error(*command, code=6) == f"error: stream {name} does not exist"
