"""The tree of commands: global options anywhere, help for every command, exit codes of errors."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

import jetjobs
from jetjobs.cli.command_tree import ENTRIES, load, run, tree
from jetjobs.cli.commands.worker import parse_queues
from jetjobs.cli.exit_codes import (
    FAILED,
    NOT_FOUND,
    READER_GONE,
    REFUSED,
    TIMED_OUT,
    UNREACHABLE,
    USAGE,
    exit_code,
)
from jetjobs.cli.global_options import hoist
from jetjobs.cli.reference import Command, commands
from jetjobs.model import errors as e
from tests.support import processes


def jetjobs_cli(*arguments: str, fresh: bool = False) -> subprocess.CompletedProcess[str]:
    return processes.run(arguments, Path.cwd(), fresh=fresh)


# Global options


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        ([], []),
        (["worker"], ["worker"]),
        (["worker", "--json"], ["--json", "worker"]),
        (["worker", "-s", "nats://a:1", "-c", "5"], ["-s", "nats://a:1", "worker", "-c", "5"]),
        (["worker", "--server=nats://a:1"], ["--server=nats://a:1", "worker"]),
        (["--app", "a:b", "worker", "--no-color"], ["--app", "a:b", "--no-color", "worker"]),
        (["enqueue", "t", "k=--json"], ["enqueue", "t", "k=--json"]),
        (["enqueue", "t", "--", "--json", "-s"], ["enqueue", "t", "--", "--json", "-s"]),
        (["enqueue", "t", "--wait-timeout", "5s"], ["enqueue", "t", "--wait-timeout", "5s"]),
        (["worker", "--stop-timeout=5s"], ["worker", "--stop-timeout=5s"]),
        (["worker", "-s"], ["worker", "-s"]),  # without a value it stays in place
        (["worker", "--jsonx"], ["worker", "--jsonx"]),
        (["queues", "list", "--quiet"], ["--quiet", "queues", "list"]),
        (["enqueue", "t", "--quiet", "--jsonl"], ["--quiet", "--jsonl", "enqueue", "t"]),
        (["worker", "-q", "mail"], ["worker", "-q", "mail"]),
        (["jobs", "list", "-q", "mail"], ["jobs", "list", "-q", "mail"]),
        (["--quiet", "worker"], ["--quiet", "worker"]),
    ],
)
def test_global_options_may_stand_anywhere(given: list[str], ordered: list[str]) -> None:
    assert hoist(given) == ordered


WORDS = st.sampled_from([
    "worker", "enqueue", "-s", "x", "--json", "--server=x", "--", "--app", "k=v", "--no-color", "-c", "5",
    "--timeout", "--quiet", "--jsonl",
])  # fmt: skip


@given(st.lists(WORDS, max_size=12))
def test_hoisting_loses_nothing_and_is_done_once(words: list[str]) -> None:
    ordered = hoist(words)
    assert sorted(ordered) == sorted(words)
    assert hoist(ordered) == ordered
    if "--" in words and "-s" not in words and "--app" not in words and "--timeout" not in words:
        behind = words[words.index("--") :]
        assert ordered[len(ordered) - len(behind) :] == behind


# Help


@pytest.mark.parametrize("line", sorted({"", *ENTRIES, *(command.name for command in commands())}))
def test_every_command_has_help(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*line.split(), "--help"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith(f"Usage: {f'jetjobs {line}'.rstrip()} ")
    assert shown.err == ""


def test_help_has_a_short_form() -> None:
    assert jetjobs_cli("worker", "-h").stdout == jetjobs_cli("worker", "--help").stdout


def test_help_lists_every_command_with_its_own_words() -> None:
    listed = typer.main.get_group(tree)
    shown = jetjobs_cli("--help", fresh=True).stdout
    for name, entry in ENTRIES.items():
        assert (f"\n  {name} " in shown) is not entry.hidden
        assert listed.commands[name].get_short_help_str(200) == load(name).get_short_help_str(200)


def test_a_mistyped_command_is_answered_with_the_near_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queue"]) == USAGE
    assert "no such command 'queue'. Did you mean 'queues'" in capsys.readouterr().err


@pytest.mark.alone
def test_help_is_quick() -> None:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        jetjobs_cli("--help", fresh=True)
        took.append(time.perf_counter() - began)
    assert min(took) < 0.5, took


# Exit codes


@pytest.mark.parametrize(
    "arguments", [["--version"], ["--json", "--version"], ["--no-color", "--version"], ["--version", "--json"]]
)
def test_the_version_is_printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 0
    assert capsys.readouterr().out.strip() == f"jetjobs {jetjobs.__version__}"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["worker", "--nonsense"],
        ["enqueue"],
        ["enqueue", "t", "novalue"],
        ["enqueue", "t", "k:={"],
        ["enqueue", "t", "--data", "[]"],
        ["enqueue", "t", "-n", "2", "--wait"],
        ["worker", "-s"],
    ],
    ids=" ".join,
)
def test_a_wrong_line_is_a_usage_error_with_a_hint(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert "--help" in shown.err


def test_errors_are_json_where_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense", "--json"]) == USAGE
    problem = json.loads(capsys.readouterr().err)["error"]
    assert problem["code"] == USAGE
    assert "nonsense" in problem["message"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (e.ConfigError("x"), USAGE),
        (e.DefinitionError("x"), USAGE),
        (e.InvalidArguments("x", task="t", problems=[]), USAGE),
        (e.BrokerUnavailable("x"), UNREACHABLE),
        (e.AccessDenied("x"), UNREACHABLE),
        (e.UnsupportedServer("x"), UNREACHABLE),
        (e.UnknownTask("x"), NOT_FOUND),
        (e.QueueNotFound("x"), NOT_FOUND),
        (e.ScheduleNotFound("x"), NOT_FOUND),
        (e.ScheduleConflict("x"), REFUSED),
        (e.TokenNotFound("x"), NOT_FOUND),
        (e.TokenConflict("x"), REFUSED),
        (e.TopologyMissing("x"), REFUSED),
        (e.TopologyConflict("x"), REFUSED),
        (e.ResultNotReady("x"), TIMED_OUT),
        (e.JetJobsError("x"), FAILED),
        (e.StorageFull("x"), FAILED),
    ],
    ids=lambda one: type(one).__name__,
)
def test_each_error_has_its_exit_code(error: e.JetJobsError, code: int) -> None:
    assert exit_code(error) == code


# Queues of a worker


@pytest.mark.parametrize(
    ("text", "queues"),
    [
        (None, None),
        ("mail", {"mail": None}),
        ("mail,reports:5", {"mail": None, "reports": 5}),
        (" mail , reports:1 ", {"mail": None, "reports": 1}),
    ],
)
def test_queues_are_read_with_their_limits(text: str | None, queues: dict[str, int | None] | None) -> None:
    assert parse_queues(text) == queues


@pytest.mark.parametrize(
    "text", ["", ",", "mail,", "mail:0", "mail:-1", "mail:x", "mail:", "a.b", "mail:1:2", "mail:²"]
)
def test_queues_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises((e.ConfigError, e.DefinitionError)):
        parse_queues(text)


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "reschedule", "j1", "--at", "2300-01-01T00:00:00Z"],
        ["jobs", "reschedule", "j1", "--delay", "100000d"],
        ["jobs", "reschedule", "j1", "--delay", "3000000d"],
        ["jobs", "reschedule", "j1", "--delay", "99999999999999d"],
        ["jobs", "list", "--since", "99999999d"],
        ["--timeout", "soon", "config", "show"],
        ["enqueue", "t", "--delay", "soon"],
        ["enqueue", "t", "--at", "tomorrow"],
        ["jobs", "reschedule", "j1"],
        ["jobs", "reschedule", "j1", "--now", "--delay", "1s"],
        ["dead", "list", "--cursor", "99999999999999999999"],
    ],
)
def test_a_time_that_cannot_be_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == USAGE
    assert capsys.readouterr().err.startswith("error: ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["events", "--kind", "jobs.*"], "no kind of event matches 'jobs.*'"),
        (["events", "--queue", "no good"], "invalid queue name"),
        (["top", "--refresh", "soon"], "--refresh"),
        (["top", "--refresh", "1ms"], "200ms"),
    ],
)
def test_a_value_that_cannot_be_is_named(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == USAGE
    assert said in capsys.readouterr().err


def test_a_group_without_a_command_lists_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["jobs"]) == USAGE
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("Usage: jetjobs jobs")
    assert said.err.endswith("error: missing command\nhint: jetjobs jobs --help\n")
    assert run(["jobs", "--json"]) == USAGE
    assert json.loads(capsys.readouterr().err)["error"]["message"] == "missing command"


def test_a_reader_that_closes_the_pipe_is_not_an_error() -> None:
    command = [sys.executable, "-m", "jetjobs", "config", "show"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert process.wait(60) == READER_GONE


def test_a_command_that_writes_on_to_a_closed_pipe_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    closed = os.fdopen(writing, "w", buffering=1)
    monkeypatch.setattr(sys, "stdout", closed)
    monkeypatch.setattr(sys, "stderr", sys.stderr)
    code = run(["config", "show"])
    with contextlib.suppress(BrokenPipeError):  # raised for the rest of the buffer
        closed.close()
    assert code == READER_GONE


@pytest.mark.parametrize("command", [*commands()], ids=lambda command: command.name)
def test_the_summary_in_a_list_of_commands_is_not_cut_at_80_columns(command: Command) -> None:
    assert not command.click.get_short_help_str(62).endswith("...")
