"""Every type that a public method takes or returns can be imported from a public module."""

from __future__ import annotations

import ast
import importlib
import inspect
import pickle
import sys
import typing
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jetjobs
import jetjobs.admin
import jetjobs.errors
import jetjobs.events
import jetjobs.http
import jetjobs.testing
from jetjobs.model.views.error_text import describe

MODULES: tuple[ModuleType, ...] = (
    jetjobs,
    jetjobs.errors,
    jetjobs.events,
    jetjobs.admin,
    jetjobs.http,
    jetjobs.testing,
)

INTERNAL = {
    "AuditLog.action": "how the operations record themselves",
    "JetJobs.jetstream": "the connection, for jetjobs' own admin and testing modules",
    "JetJobs.enqueuer": "stores jobs in the name of a caller, for the HTTP API",
    "JetJobs.send_by": "`send` for the HTTP API",
    "JetJobs.send_many_by": "`enqueue_many` for the HTTP API",
    "Flow.decode": "what `FlowHandle.result` returns",
    "Flow.plan": "what the app stores",
    "FlowHandle.attach": "called by the app, which makes handles",
    "JobHandle.attach": "called by the app, which makes handles",
    "Tokens.find": "what the HTTP API asks for each request; `Access` is its own",
    "Schedule.rule": "the calendar or interval behind `after` and `before`",
    "Schedules.find_to_delete": "what the command line asks before it deletes",
}
"""Public by name only, with the reason."""


def public_names() -> Iterator[tuple[str, Any]]:
    for module in MODULES:
        for name in module.__all__:
            yield f"{module.__name__}.{name}", getattr(module, name)


def importable() -> list[Any]:
    for_annotations = [name for names in jetjobs._ANNOTATION_HOMES.values() for name in names.split()]
    return [value for _, value in public_names()] + [getattr(jetjobs, name) for name in for_annotations]


PUBLIC = importable()
CLASSES = {f"{kind.__module__}.{kind.__qualname__}": kind for kind in PUBLIC if isinstance(kind, type)}


@cache
def typing_only(module: str) -> dict[str, Any]:
    """The names that a module imports for type checkers alone."""
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text())
    blocks = [node for node in tree.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    return {
        alias.name: getattr(importlib.import_module(node.module), alias.name)
        for block in blocks
        for node in block.body
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def types_in(hint: Any) -> Iterator[type]:
    """The jetjobs classes in an annotation, through generics, unions, Annotated, Unpack and callables."""
    if isinstance(hint, list | tuple):
        for each in hint:
            yield from types_in(each)
        return
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == "jetjobs":
        yield hint
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return
    if origin is not None:
        yield from types_in(origin)
        yield from types_in(typing.get_args(hint))


def functions_of(kind: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] != "jetjobs":
            continue
        for name, member in vars(base).items():
            if name.startswith("_") and name != "__call__":
                continue
            if isinstance(member, staticmethod | classmethod):
                member = member.__func__
            function = getattr(member, "fget", None) or getattr(member, "func", None) or member
            if inspect.isfunction(function):
                yield f"{kind.__name__}.{name}", function
                yield from ((f"{kind.__name__}.{name}", each) for each in typing.get_overloads(function))


def public_hints() -> Iterator[tuple[str, Any]]:
    for full_name, value in public_names():
        if inspect.isfunction(value):
            yield from ((full_name, hint) for hint in hints_of(value).values())
    for kind in CLASSES.values():
        for name, function in functions_of(kind):
            yield from ((name, hint) for hint in hints_of(function).values())
        if not issubclass(kind, BaseException):
            fields = typing.get_type_hints(kind, include_extras=True)
            yield from ((f"{kind.__name__}.{name}", hint) for name, hint in fields.items() if name[0] != "_")


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, localns=typing_only(function.__module__), include_extras=True)


def test_every_type_of_a_public_method_can_be_imported() -> None:
    missing = {
        f"{name}: {kind.__module__}.{kind.__qualname__}"
        for name, hint in public_hints()
        if name not in INTERNAL
        for kind in types_in(hint)
        if not any(kind is each for each in PUBLIC)
    }
    assert not missing, "\n" + "\n".join(sorted(missing))


def test_the_walk_sees_nested_types() -> None:
    hint = typing.Optional[dict[str, list[tuple[jetjobs.JobState, Callable[[jetjobs.Context], jetjobs.Task]]]]]  # type: ignore[type-arg]  # noqa: UP045
    assert {*types_in(hint)} == {jetjobs.JobState, jetjobs.Context, jetjobs.Task}
    assert ("JobHandle.status", jetjobs.JobStatus) in [*public_hints()]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_public_class_is_found_under_its_own_name(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    assert sys.modules[module] in MODULES
    assert getattr(sys.modules[module], attribute) is CLASSES[name]


@pytest.mark.parametrize("name", sorted(CLASSES))
def test_a_public_class_survives_pickling_and_type_hints(name: str) -> None:
    kind = CLASSES[name]
    assert pickle.loads(pickle.dumps(kind)) is kind
    typing.get_type_hints(kind, include_extras=True)


def test_errors_go_over_the_wire_under_their_public_name() -> None:
    assert describe(jetjobs.errors.UnknownTask("no task")).type == "jetjobs.errors.UnknownTask"
    assert describe(jetjobs.JobFailed("x", reason="", error_type="", text="", traceback="")).type == (
        "jetjobs.errors.JobFailed"
    )
    assert describe(jetjobs.Reject("no")).type == "jetjobs.errors.Reject"


def test_an_error_of_the_users_own_keeps_its_module() -> None:
    class Mine(jetjobs.JetJobsError):
        pass

    assert describe(Mine("x")).type.startswith(f"{__name__}.")


@pytest.mark.parametrize("module", MODULES[:5], ids=lambda m: m.__name__)
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "python.md").read_text()
    assert [name for name in module.__all__ if f"`{name}`" not in page] == []
