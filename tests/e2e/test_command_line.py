"""The command line as people use it: real processes, exit codes, one clear line when it is wrong."""

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

from jetjobs.devserver import EmbeddedServer
from tests.support.processes import Process, clean_environment, run

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one error line; a traceback of ours would be a bug."""
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("error: "))


# The first five minutes


def test_dev_starts_everything_is_found_by_other_terminals_reloads_and_leaves_nothing_behind(folder: Path) -> None:
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


def test_dev_keeps_queued_jobs_from_one_start_to_the_next(folder: Path) -> None:
    with Process(["dev"], folder) as dev:
        dev.wait_for("worker ready")
        stored = run(["enqueue", "greet", "name=Ada", "--delay", "1h", "--id", "kept-one", "--json"], folder)
        assert json.loads(stored.stdout) == {
            "id": "kept-one",
            "queue": "default",
            "task": "greet",
            "duplicate": False,
        }
        dev.end(signal.SIGTERM)
    with Process(["dev"], folder) as dev:
        dev.wait_for("worker ready")
        again = run(["enqueue", "greet", "name=Ada", "--id", "kept-one", "--json"], folder)
        assert json.loads(again.stdout)["duplicate"] is True
        assert dev.end(signal.SIGINT) == 0


def test_dev_refuses_production_and_a_second_start(folder: Path) -> None:
    refused = run(["dev"], folder, env={"JETJOBS_ENV": "production"})
    assert (refused.returncode, error_of(refused)) == (
        2,
        "error: `jetjobs dev` does not run with env = production",
    )
    with Process(["dev", "--store", "memory"], folder) as dev:
        dev.wait_for("worker ready")
        second = run(["dev"], folder)
        assert second.returncode == 2
        assert "a dev server runs here already" in error_of(second)
        dev.end(signal.SIGINT)


def test_dev_waits_for_a_change_when_the_app_is_broken(folder: Path) -> None:
    with Process(["dev", "--store", "memory"], folder) as dev:
        dev.wait_for("worker ready")
        (folder / "tasks.py").write_text("this is no python\n")
        dev.wait_for("waiting for a change")
        assert any("SyntaxError" in line for line in dev.lines)
        (folder / "tasks.py").write_text(TASKS)
        dev.wait_for("worker ready", 2)
        assert dev.end(signal.SIGINT) == 0


def test_without_the_binary_the_line_that_installs_it_is_given(folder: Path, tmp_path: Path) -> None:
    code = (
        "import sys, sysconfig; sysconfig.get_path = lambda name: '/nowhere';"
        "from jetjobs.cli.tree import run; sys.exit(run(['dev']))"
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


def test_enqueue_checks_arguments_against_the_signature(folder: Path, server: EmbeddedServer) -> None:
    url = {"NATS_URL": server.url}
    assert run(["setup", "apply"], folder, env=url).returncode == 0
    wrong = run(["enqueue", "greet", "name=Ada", "times=many"], folder, env=url)
    assert wrong.returncode == 2
    assert "times: Input should be a valid integer" in error_of(wrong)
    assert run(["enqueue", "greet", "name"], folder, env=url).returncode == 2
    assert run(["enqueue", "greet", "name:=[1,"], folder, env=url).returncode == 2
    unknown = run(["enqueue", "gret", "name=Ada"], folder, env=url)
    assert (unknown.returncode, unknown.stderr.splitlines()[-1]) == (5, "hint: did you mean 'greet'?")
    good = run(["enqueue", "greet", "name=Ada", "times:=2", "--json"], folder, env=url)
    assert good.returncode == 0
    many = run(["enqueue", "greet", "--data", '{"name": "Bob"}', "-n", "1500", "--json"], folder, env=url)
    assert json.loads(many.stdout) == {"stored": 1500, "queue": "default"}
    late = run(["enqueue", "greet", "name=Ada", "--at", "tomorrow"], folder, env=url)
    assert late.returncode == 2
    nowhere = run(["enqueue", "greet", "name=Ada", "--queue", "nowhere"], folder, env=url)
    assert nowhere.returncode == 5
    assert "queue 'nowhere'" in error_of(nowhere)


def test_waiting_for_a_job_that_fails_or_takes_too_long_has_its_own_exit_code(
    folder: Path, server: EmbeddedServer
) -> None:
    url = {"NATS_URL": server.url}
    with Process(["worker"], folder, env=url) as worker:
        worker.wait_for("worker.ready")
        failed = run(["enqueue", "broken", "--wait"], folder, env=url)
        assert failed.returncode == 1
        assert re.search(r"[0-9a-f]{32} dead \(exhausted\): ValueError: on purpose", failed.stdout)
        assert 'raise ValueError("on purpose")' in failed.stderr
        late = run(["enqueue", "slow", "seconds=5", "--wait", "--wait-timeout", "200ms"], folder, env=url)
        assert late.returncode == 7
        assert worker.end(signal.SIGTERM) == 0


# Trouble


def test_no_server_is_one_line_a_hint_and_exit_code_3(folder: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"nats://user:topsecret@127.0.0.1:{taken.getsockname()[1]}"
        for command in (["worker"], ["enqueue", "greet", "name=Ada"], ["setup", "plan"]):
            done = run([*command, "--server", url, "--timeout", "1s"], folder, timeout=10)
            assert done.returncode == 3
            assert "no NATS server at nats://127.0.0.1:" in error_of(done)
            assert "hint: start one with `jetjobs dev`" in done.stderr
            assert "topsecret" not in done.stderr
        as_json = run(["setup", "plan", "--server", url, "--timeout", "1s", "--json"], folder)
        assert json.loads(as_json.stderr.splitlines()[-1])["error"]["code"] == 3


def test_a_server_without_jetstream_and_wrong_credentials_are_exit_code_3(folder: Path, tmp_path: Path) -> None:
    with EmbeddedServer(jetstream=False) as plain:
        done = run(["worker", "--server", plain.url], folder, timeout=15)
        assert done.returncode == 3
        assert "JetStream is not enabled" in error_of(done)
    config = tmp_path / "auth.conf"
    config.write_text("authorization { user: a, password: b }")
    with EmbeddedServer(extra=("-c", str(config))) as guarded:
        done = run(["worker", "--server", guarded.url], folder, timeout=15)
        assert done.returncode == 3
        assert "refused the credentials" in error_of(done)


def test_a_worker_denied_its_subjects_says_which(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "acl.conf"
    config.write_text(
        "authorization { users: [{user: w, password: w, "
        'permissions: {publish: ["jobs.>"], subscribe: ["_INBOX.>"]}}] }'
    )
    with EmbeddedServer(extra=("-c", str(config))) as guarded:
        url = guarded.url.replace("nats://", "nats://w:w@")
        done = run(["worker", "--server", url], folder, timeout=15)
        assert done.returncode == 3
        assert "permissions violation" in error_of(done).lower()
        assert "$js.api.info" in error_of(done).lower()


def test_an_app_that_cannot_be_imported_shows_the_users_frames_only(folder: Path) -> None:
    (folder / "tasks.py").write_text("import helper\n")
    (folder / "helper.py").write_text("def f():\n    raise RuntimeError('broken helper')\nf()\n")
    done = run(["worker"], folder)
    assert done.returncode == 4
    frames = [line for line in done.stderr.splitlines() if line.strip().startswith("File ")]
    assert [re.search(r'([^/"]+)", line (\d+)', frame).groups() for frame in frames] == [  # type: ignore[union-attr]
        ("tasks.py", "1"),
        ("helper.py", "3"),
        ("helper.py", "2"),
    ]
    assert "RuntimeError: broken helper" in done.stderr


@pytest.mark.parametrize(
    ("source", "target", "code", "text"),
    [
        (None, None, 2, "no app found in tasks.py"),
        ("", "tasks:app", 2, "'tasks:app' is not a JetJobs app"),
        ("", "nowhere:app", 2, "there is no module 'nowhere'"),
        (
            "from jetjobs import JetJobs\na = JetJobs('a')\nb = JetJobs('b')\n",
            None,
            2,
            "more than one app: tasks:a, tasks:b",
        ),
        ("import missing_module\n", None, 4, "cannot be imported"),
        ("from jetjobs import JetJobs\napp = JetJobs('a b')\n", None, 2, "app 'a b' is not a usable name"),
        (
            TASKS + "\n@app.task(name='greet')\nasync def other() -> None: ...\n",
            None,
            2,
            "task 'greet' is declared twice",
        ),
        (TASKS + "\n@app.task\nasync def other(*args: int) -> None: ...\n", None, 2, "*args: int is not possible"),
    ],
)
def test_what_is_wrong_with_an_app_is_said_in_one_line(
    tmp_path: Path, source: str | None, target: str | None, code: int, text: str
) -> None:
    if source is not None:
        (tmp_path / "tasks.py").write_text(source)
    done = run(["worker", *([target] if target else [])], tmp_path)
    assert done.returncode == code
    assert text in done.stderr
    assert done.stderr.count("error: ") == 1


def test_unknown_settings_and_options_are_refused_with_the_nearest_name(folder: Path) -> None:
    done = run(["config", "show"], folder, env={"JETJOBS_WORKER__SLOT": "3"})
    assert (done.returncode, error_of(done)) == (2, "error: unknown setting 'worker.slot' in the environment")
    assert "did you mean 'worker.slots'?" in done.stderr
    assert run(["worker", "--sluts", "3"], folder).returncode == 2
    assert run(["worker", "--slots", "0"], folder).returncode == 2
    assert run(["worker", "--queues", "mail:x"], folder).returncode == 2


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
    assert rows["nats.url"] == {"key": "nats.url", "value": "nats://a:********@127.0.0.1:4", "source": "flag"}
    assert "topsecret" not in done.stdout


def test_setup_shows_a_plan_and_verify_refuses_a_missing_stream(folder: Path, server: EmbeddedServer) -> None:
    url = {"NATS_URL": server.url}
    refused = run(["worker", "--provision", "verify"], folder, env=url)
    assert refused.returncode == 6
    assert "not on the server" in error_of(refused)
    plan = run(["setup", "plan"], folder, env=url)
    assert "+ work stream jobs-work-default" in plan.stdout.splitlines()
    assert run(["setup", "apply", "--queues", "extra"], folder, env=url).returncode == 0
    again = json.loads(run(["setup", "plan", "--json"], folder, env=url).stdout)
    assert {item["action"] for item in again["items"]} == {"none"}
    assert run(["worker", "--provision", "verify", "--burst"], folder, env=url).returncode == 0


# Each in a Python started for it: the other tests run their commands with all imports done.


@pytest.mark.timeout(240)
def test_a_command_of_every_kind_has_all_it_needs_from_the_start(folder: Path, server: EmbeddedServer) -> None:
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
