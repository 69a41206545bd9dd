"""The command line in real processes: exit codes, and one clear line when something is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process, clean_environment, run
from tests.support.shell import Shell, error_of

TASKS = """
import asyncio, time
from datetime import timedelta
from jetjobs import JetJobs, RetryPolicy
app = JetJobs("demo")

@app.task
async def greet(name: str, times: int = 1) -> str:
    return f"Hello, {name}!" * times

@app.task(retry=RetryPolicy(max_attempts=1))
async def broken() -> None:
    raise ValueError("on purpose")

@app.task
async def slow(seconds: float) -> str:
    print("slow begins", flush=True)
    await asyncio.sleep(seconds)
    return "slept"
"""


# The first five minutes


def test_dev_starts_everything_is_found_by_other_terminals_reloads_and_cleans_up(folder: Path) -> None:
    with Process(["dev"], folder) as dev:
        dev.wait_for("worker ready")
        assert re.search(
            r"NATS\s+embedded nats-server at nats://127.0.0.1:\d+, data in .jetjobs/nats \(kept\)",
            "\n".join(dev.lines),
        )
        assert (folder / ".jetjobs" / "dev.json").stat().st_mode & 0o777 == 0o600
        server = json.loads((folder / ".jetjobs" / "dev.json").read_text())

        first = run(["enqueue", "greet", "name=Ada", "--wait"], folder)
        assert first.returncode == 0, first.stderr
        assert re.fullmatch(r'[0-9a-f]{32} succeeded in \d+ ms → "Hello, Ada!"\n', first.stdout)

        (folder / "tasks.py").write_text(TASKS.replace("Hello", "Moin"))
        dev.wait_for("reloading")
        dev.wait_for("worker ready", 2)
        second = run(["enqueue", "greet", "name=Ada", "--wait", "--json"], folder)
        assert json.loads(second.stdout)["result"] == "Moin, Ada!"

        assert dev.end(signal.SIGINT) == 0
    assert not (folder / ".jetjobs" / "dev.json").exists()
    with pytest.raises(ProcessLookupError):
        os.kill(server["pid"], 0)


def test_dev_keeps_queued_jobs_across_restarts(folder: Path) -> None:
    with Process(["dev"], folder) as dev:
        dev.wait_for("worker ready")
        stored = run(["enqueue", "greet", "name=Ada", "--delay", "1h", "--id", "kept-one", "--json"], folder)
        assert json.loads(stored.stdout)["duplicate"] is False
        before = json.loads((folder / ".jetjobs" / "dev.json").read_text())["url"]
        dev.end(signal.SIGTERM)
    with Process(["dev"], folder) as dev:
        dev.wait_for("worker ready")
        # Programs that were connected find the server again.
        assert json.loads((folder / ".jetjobs" / "dev.json").read_text())["url"] == before
        again = run(["enqueue", "greet", "name=Ada", "--id", "kept-one", "--json"], folder)
        assert json.loads(again.stdout)["duplicate"] is True
        assert dev.end(signal.SIGINT) == 0


def test_dev_restarts_a_killed_worker_and_ends_with_its_server(folder: Path) -> None:
    with Process(["dev", "--store", "memory"], folder) as dev:
        dev.wait_for("worker ready")
        (worker,) = json.loads(run(["workers", "list", "--json"], folder).stdout)["items"]
        os.kill(worker["pid"], signal.SIGKILL)
        dev.wait_for("the worker was killed (SIGKILL); restarting")
        dev.wait_for("worker ready", 2)
        os.kill(json.loads((folder / ".jetjobs" / "dev.json").read_text())["pid"], signal.SIGKILL)
        dev.wait_for("error: nats-server has ended")
        assert dev.popen.wait(20) == 1
    assert not (folder / ".jetjobs" / "dev.json").exists()


def test_dev_refuses_production_and_a_second_start(folder: Path) -> None:
    refused = run(["dev"], folder, env={"JETJOBS_ENV": "production"})
    assert (refused.returncode, error_of(refused)) == (
        2,
        "error: `jetjobs dev` refuses to run with env = production",
    )
    with Process(["dev", "--store", "memory"], folder) as dev:
        dev.wait_for("worker ready")
        second = run(["dev"], folder)
        assert second.returncode == 2
        assert "a dev server is already running here" in error_of(second)
        dev.end(signal.SIGINT)


def test_dev_waits_for_a_change_when_the_app_is_broken(folder: Path) -> None:
    with Process(["dev", "--store", "memory"], folder) as dev:
        dev.wait_for("worker ready")
        (folder / "tasks.py").write_text("not a Python module\n")
        dev.wait_for("waiting for a file to change")
        assert any("SyntaxError" in line for line in dev.lines)
        (folder / "tasks.py").write_text(TASKS)
        dev.wait_for("worker ready", 2)
        assert dev.end(signal.SIGINT) == 0


def test_without_the_binary_the_error_shows_how_to_install_it(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, sysconfig; sysconfig.get_path = lambda name: '/nowhere';"
        "from jetjobs.cli.command_tree import run; sys.exit(run(['dev']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=clean_environment(PATH="/nowhere"),
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-2:] == [
        "error: nats-server is not installed",
        'hint: pip install "jetjobs[dev]"',
    ]


# Enqueue


def test_enqueue_checks_arguments_against_the_signature(shell: Shell) -> None:
    shell("setup", "apply")
    wrong = shell.error("enqueue", "greet", "name=Ada", "times=many", code=2)
    assert "times: Input should be a valid integer" in wrong
    unknown = shell("enqueue", "gret", "name=Ada", code=5)
    assert unknown.stderr.splitlines()[-1] == "hint: did you mean 'greet'?"
    assert shell.json("enqueue", "greet", "name=Ada", "times:=2")["task"] == "greet"
    many = shell.json("enqueue", "greet", "--data", '{"name": "Bob"}', "-n", "1500")
    assert many == {"stored": 1500, "queue": "default"}
    assert "queue 'nowhere'" in shell.error("enqueue", "greet", "name=Ada", "--queue", "nowhere", code=5)


def test_waiting_for_a_job_that_fails_or_takes_too_long_has_its_own_exit_code(shell: Shell) -> None:
    with shell.process("worker") as worker:
        worker.wait_for("worker.ready")
        failed = run(["enqueue", "broken", "--wait"], shell.folder, env=shell.env)
        assert failed.returncode == 1
        assert re.search(r"[0-9a-f]{32} dead \(exhausted\): ValueError: on purpose", failed.stdout)
        assert 'raise ValueError("on purpose")' in failed.stderr
        shell("enqueue", "slow", "seconds=5", "--wait", "--wait-timeout", "200ms", code=7)
        assert worker.end(signal.SIGTERM) == 0


# Errors


def test_no_server_is_one_line_a_hint_and_exit_code_3(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"nats://user:topsecret@127.0.0.1:{taken.getsockname()[1]}"
        for line in ("worker", "enqueue greet name=Ada", "setup plan", "events", "top", "jobs watch"):
            done = run([*line.split(), "--server", url, "--timeout", "1s"], folder, timeout=10)
            assert done.returncode == 3
            assert "no NATS server at nats://127.0.0.1:" in error_of(done)
            assert "hint: start one with `jetjobs dev`" in done.stderr
            assert "topsecret" not in done.stderr
        as_json = run(["setup", "plan", "--server", url, "--timeout", "1s", "--json"], folder)
        assert json.loads(as_json.stderr.splitlines()[-1])["error"]["code"] == 3


def test_an_app_that_cannot_be_imported_shows_only_frames_of_the_user(folder: Path) -> None:
    (folder / "tasks.py").write_text("import helper\n")
    (folder / "helper.py").write_text("def f():\n    raise RuntimeError('broken helper')\nf()\n")
    done = run(["worker"], folder)
    assert done.returncode == 4
    frames = [line.strip() for line in done.stderr.splitlines() if re.search(r"\.py:\d+ in ", line)]
    assert frames == ["tasks.py:1 in <module>", "helper.py:3 in <module>", "helper.py:2 in f"]
    assert "RuntimeError: broken helper" in done.stderr


@pytest.mark.parametrize(
    ("source", "target", "code", "text"),
    [
        (None, None, 2, "no app found in tasks.py"),
        ("", "tasks:app", 2, "'tasks:app' is not a JetJobs app"),
        ("", "nowhere:app", 2, "no module named 'nowhere'"),
        (TASKS + "\nother = JetJobs('b')\n", None, 2, "more than one app: tasks:app, tasks:other"),
        ("import missing_module\n", None, 4, "cannot be imported"),
        ("from jetjobs import JetJobs\napp = JetJobs('a b')\n", None, 2, "invalid app name 'a b'"),
        (TASKS + "\n@app.task\nasync def greet() -> None: ...\n", None, 2, "task 'greet' is declared twice"),
        (
            TASKS + "\n@app.task\nasync def other(*args: int) -> None: ...\n",
            None,
            2,
            "*args: int is not supported",
        ),
    ],
)
def test_a_problem_with_an_app_is_reported_in_one_line(
    tmp_path: Path, source: str | None, target: str | None, code: int, text: str
) -> None:
    if source is not None:
        (tmp_path / "tasks.py").write_text(source)
    done = run(["worker", *([target] if target else [])], tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert done.stderr.count("error: ") == 1


@pytest.mark.parametrize("options", [["--slots", "-1"], ["--queues", "mail:x"]], ids=" ".join)
def test_an_invalid_number_is_a_usage_error(folder: Path, options: list[str]) -> None:
    refused = run(["worker", *options], folder)
    assert (refused.returncode, options[0].strip("-") in refused.stderr) == (2, True), refused.stderr


def test_config_show_gives_each_value_its_source_and_masks_secrets(folder: Path) -> None:
    (folder / "jetjobs.toml").write_text('[worker]\nslots = 7\n[nats]\npassword = "topsecret"\n')
    done = run(
        ["config", "show", "--json", "--server", "nats://a:b@127.0.0.1:4"],
        folder,
        env={"JETJOBS_QUEUES__LEASE": "12s"},
    )
    rows = {row["key"]: row for row in json.loads(done.stdout)["items"]}
    assert rows["worker.slots"]["value"] == "7"
    assert rows["worker.slots"]["source"].endswith("jetjobs.toml")
    assert rows["queues.lease"] == {"key": "queues.lease", "value": "12s", "source": "env JETJOBS_QUEUES__LEASE"}
    assert rows["nats.url"] == {"key": "nats.url", "value": "nats://127.0.0.1:4", "source": "flag"}
    assert "topsecret" not in done.stdout


def test_setup_shows_a_plan_and_verify_reports_a_missing_stream(shell: Shell) -> None:
    assert "not on the server" in shell.error("worker", "--provision", "verify", code=6)
    assert "+ work stream jobs-work-default" in shell("setup", "plan").stdout.splitlines()
    shell("setup", "apply", "--queue", "extra")
    assert {item["action"] for item in shell.json("setup", "plan")["items"]} == {"none"}
    shell("worker", "--provision", "verify", "--burst")


# Each in a fresh Python: in the other tests commands run with all modules already imported.


@pytest.mark.timeout(240)
def test_a_command_of_every_kind_runs_in_a_new_interpreter(folder: Path, server: EmbeddedServer) -> None:
    for words in (
        ("setup", "apply"),
        ("enqueue", "greet", "name=Ada", "--id", "one"),
        ("jobs", "show", "one"),
        ("queues", "list"),
        ("workers", "list"),
        ("dead", "list"),
        ("doctor",),
        ("config", "show"),
    ):
        done = run(words, folder, timeout=60, env={"NATS_URL": server.url}, fresh=True)
        assert done.returncode == 0, (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert done.stdout
