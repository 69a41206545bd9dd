"""The public names: complete, importable, and loaded on first use."""

from __future__ import annotations

import ast
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType

import pytest

import jetjobs
import jetjobs.admin
import jetjobs.errors
import jetjobs.events
import jetjobs.testing
from jetjobs.model import errors as model_errors
from jetjobs.model import events as model_events

PUBLIC = [
    "BrokerUnavailable", "CallNext", "Context", "Depends", "EnqueueError", "EnqueueReport", "Failed", "Flow",
    "FlowFailed", "FlowHandle", "FlowState", "FlowStatus", "INJECTED", "InvalidArguments", "JetJobs",
    "JetJobsError", "JobCancelled", "JobFailed", "JobHandle", "JobNotFound",
    "JobRequest", "JobState", "JobStatus", "Middleware", "Observer", "Reject", "ResultNotReady", "Retry",
    "RetryPolicy", "Router", "Schedule", "Secret", "Settings", "Snooze", "Task", "Worker", "current_job",
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


def names_in(homes: dict[str, str]) -> list[str]:
    return sorted(name for names in homes.values() for name in names.split())


def test_homes_hold_exactly_the_public_names() -> None:
    assert names_in(jetjobs._HOMES) == PUBLIC
    assert names_in(jetjobs.admin._HOMES) == sorted(jetjobs.admin.__all__)
    assert not {*names_in(jetjobs._ANNOTATION_HOMES)} & {*PUBLIC}


@pytest.mark.parametrize("module", [jetjobs, jetjobs.admin], ids=lambda module: module.__name__)
def test_typing_imports_and_homes_say_the_same(module: ModuleType) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING")
    typed = {
        alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert typed == module._HOME_OF


def test_the_facades_of_errors_and_events_are_complete() -> None:
    errors = {name for name, value in vars(model_errors).items() if is_error(value) and name[0] != "_"} - {
        "ChildRaised"
    }
    signals = {"Reject", "Retry", "Signal", "Snooze"}
    assert {*jetjobs.errors.__all__} == errors | signals | {"PERMANENT", "TRANSIENT", "Classifier", "Verdict"}
    events = {kind.__name__ for kind in typing.get_args(model_events.Event)}
    assert {*jetjobs.events.__all__} == events | {"ErrorInfo", "Event", "LiveEvent", "Observer"}


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, jetjobs.errors.JetJobsError | jetjobs.errors.Signal)


def loaded_after(statement: str) -> set[str]:
    script = f"import sys\n{statement}\nprint(*sorted(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in ran.stdout.split()}


def test_importing_the_package_loads_neither_nats_nor_pydantic() -> None:
    assert not loaded_after("import jetjobs") & {"nats", "pydantic", "dotenv", "typer", "asyncio"}


def test_errors_are_had_without_nats() -> None:
    assert "nats" not in loaded_after(
        "from jetjobs import JetJobsError, RetryPolicy; import jetjobs.errors, jetjobs.events"
    )


def test_the_heavy_libraries_are_loaded_once_the_app_is_asked_for() -> None:
    assert {"nats", "pydantic"} <= loaded_after("from jetjobs import JetJobs")


def test_the_help_of_the_command_line_loads_neither_nats_nor_pydantic() -> None:
    shown = "with contextlib.redirect_stdout(io.StringIO()): run(['--help'])"
    code = f"import contextlib, io\nfrom jetjobs.cli.command_tree import run\n{shown}"
    assert not loaded_after(code) & {"nats", "pydantic", "prometheus_client", "uvloop"}
