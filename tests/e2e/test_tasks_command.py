"""`jetjobs tasks` with workers in real processes, in the folder of the app and without the app."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import run
from tests.support.shell import Shell

TASKS = '''
from typing import Annotated
from jetjobs import JetJobs, RetryPolicy, Secret
app = JetJobs("demo")

@app.cron("0 9 * * *")
@app.task(queue="mail", aliases=["post"], timeout=30, retry=RetryPolicy(3, dead_on=(KeyError,)))
async def send(user: int = 1, token: Annotated[str, Secret()] = "hunter2") -> None:
    """Send \\x1b]0;gotcha\\x07 mail."""

@app.task
async def other() -> None: ...
'''


@pytest.fixture
def shell(tmp_path: Path, server: EmbeddedServer) -> Shell:
    (tmp_path / "tasks.py").write_text(TASKS)
    return Shell(tmp_path, server.url)


def test_tasks_are_listed_and_shown_with_and_without_the_app(shell: Shell, tmp_path: Path) -> None:
    assert shell("tasks", "list", "--quiet").stdout == "other\nsend\n"  # of the app: no worker runs yet
    assert [item["workers"] for item in shell.json("tasks", "list")["items"]] == [0, 0]
    assert "no running worker, this app" in shell("tasks", "show", "other").stdout
    elsewhere = Shell(tmp_path / "elsewhere", shell.url)
    elsewhere.folder.mkdir()
    empty = elsewhere("tasks", "list", "--namespace", "jobs")
    assert "no running worker knows a task" in empty.stderr
    with shell.process("worker", "--name", "one") as one:
        one.wait_for("worker ready", timeout=60)
        elsewhere.until("tasks", "list", where=lambda found: len([t for t in found["items"] if t["queue"]]) == 2)
        shown = elsewhere("tasks", "show", "post").stdout
        assert "send(user: int = ..., token: Secret = ...) -> None" in shown
        for line in (
            "task        send",
            r"about       Send \x1b]0;gotcha\x07 mail.",
            "queue       mail, priority normal",
            "aliases     post",
            "secret      token",
            "retry       3 attempts, exponential backoff from 2.0 s to 1h00m with jitter",
            "dead_on     KeyError",
            "timeout     30.0 s",
            "result      stored for 1h00m",
            "schedule    send: 0 9 * * *",
        ):
            assert line in shown.splitlines()
        assert '"writeOnly": true' in shown
        assert "hunter2" not in shown + elsewhere("tasks", "show", "send", "--json").stdout
        assert "\x1b" not in shown
        (tmp_path / "tasks.py").write_text(TASKS.replace("timeout=30", "timeout=60"))
        changed = shell("tasks", "list")
        assert "workers have different versions of send;" in changed.stderr
        differing = shell("tasks", "show", "send")
        assert "2 versions differ in timeout_s; shown is the version of the most workers" in differing.stderr
        versions = [line for line in differing.stdout.splitlines() if line.startswith("version ")]
        assert "one-" in versions[0]
        assert versions[1].endswith("no running worker, this app")


def test_an_unknown_task_is_named_with_a_hint(shell: Shell) -> None:
    done = shell("tasks", "show", "sent", code=5)
    assert done.stderr.splitlines()[-2:] == [
        "error: no running worker knows a task 'sent', and no app here declares it",
        "hint: did you mean 'send'?",
    ]


def test_an_app_that_cannot_be_imported_does_not_hide_the_workers(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text("1 / 0")
    assert shell.json("tasks", "list", "--namespace", "jobs") == {"items": [], "cursor": None}
    named = run(["tasks", "list", "--app", "tasks:app"], tmp_path, env=shell.env)
    assert named.returncode == 4
    assert "error: the app 'tasks:app' cannot be imported" in named.stderr
