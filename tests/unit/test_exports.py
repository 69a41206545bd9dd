"""The public names: pinned, resolvable, and loaded only when used."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jetjobs
import jetjobs.testing

PUBLIC = [
    "AccessDenied", "BrokerError", "BrokerUnavailable", "CallNext", "CheckpointError", "ChildDied",
    "ConfigError", "Context", "DeadLetter", "DeadLetterFilter", "DefinitionError", "Depends", "EnqueueError",
    "EnqueueReport", "EnqueueUnconfirmed", "Event", "Finding", "INJECTED", "InvalidArguments", "JetJobs",
    "JetJobsError", "JobAmbiguous", "JobCancelled", "JobFailed", "JobHandle", "JobNotFound", "JobQuery",
    "JobRequest", "JobState", "JobStatus", "JobTimeout", "JobTooLarge", "LiveEvent", "Middleware",
    "Observer", "PERMANENT", "QueueNotFound", "QueueState", "Reject", "ReplayOutcome", "ResultError",
    "ResultExpired", "ResultNotReady", "Retry", "RetryPolicy", "Router", "Schedule", "ScheduleConflict",
    "ScheduleInfo", "ScheduleNotFound", "Secret", "Settings", "Signal", "Snooze", "TRANSIENT", "Task",
    "UnstorableValue", "Verdict", "Worker", "WorkerNotFound", "WorkerRecord", "WorkerSilent", "current_job",
]  # fmt: skip


def test_the_public_names_are_these_and_no_others() -> None:
    assert sorted(jetjobs.__all__) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(jetjobs, name)
    assert value is not None
    assert name in dir(jetjobs)


def test_the_names_of_the_testing_helpers_are_these_and_no_others() -> None:
    assert jetjobs.testing.__all__ == sorted(jetjobs.testing.__all__)
    assert jetjobs.testing.__all__ == [
        "Clock", "Drained", "EnqueuedJob", "Inline", "JobsFailed", "assert_enqueued", "drain",
        "enqueued", "on_server", "refute_enqueued", "run_inline", "working",
    ]  # fmt: skip
    assert all(hasattr(jetjobs.testing, name) for name in jetjobs.testing.__all__)


def test_the_pytest_plugin_loads_nothing_of_jetjobs_but_itself() -> None:
    script = (
        "import sys, jetjobs.pytest_plugin\nprint(*(name for name in sys.modules if name.startswith('jetjobs')))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"jetjobs", "jetjobs.pytest_plugin"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Jobs'"):
        jetjobs.Jobs  # noqa: B018


def test_homes_hold_exactly_the_public_names() -> None:
    homes = [name for names in jetjobs._HOMES.values() for name in names]
    assert sorted(homes) == PUBLIC


def test_typing_imports_and_homes_say_the_same() -> None:
    tree = ast.parse(Path(jetjobs.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    typed = {
        node.module: tuple(sorted(alias.name for alias in node.names))
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    }
    assert typed == {home: tuple(sorted(names)) for home, names in jetjobs._HOMES.items()}


def loaded_after(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in ran.stdout.split()}


def test_importing_the_package_loads_neither_nats_nor_pydantic() -> None:
    assert not loaded_after("import jetjobs") & {"nats", "pydantic", "dotenv", "typer", "asyncio"}


def test_errors_are_had_without_nats() -> None:
    assert "nats" not in loaded_after("from jetjobs import JetJobsError, RetryPolicy")


def test_the_heavy_libraries_are_loaded_once_the_app_is_asked_for() -> None:
    assert {"nats", "pydantic"} <= loaded_after("from jetjobs import JetJobs")


def test_the_help_of_the_command_line_loads_neither_nats_nor_pydantic() -> None:
    shown = "with contextlib.redirect_stdout(io.StringIO()): run(['--help'])"
    code = f"import contextlib, io\nfrom jetjobs.cli.command_tree import run\n{shown}"
    assert not loaded_after(code) & {"nats", "pydantic", "prometheus_client", "uvloop"}
