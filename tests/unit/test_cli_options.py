"""An option means the same in every command: one type, one placeholder, one subject of its help text."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import pytest
import typer

from jetjobs.cli.command_tree import tree
from jetjobs.cli.global_options import hoist
from jetjobs.cli.reference import commands

SHARED = {
    "--all": "All ",
    "--at": "Run at this time",
    "--cron": "Cron expression",
    "--cursor": "Continue from here",
    "--data": "All arguments as one JSON object",
    "--delay": "Run after this delay",
    "--died-of": "with this reason",
    "--dry-run": "Only print what would be done",
    "--error-type": "with this error type",
    "--every": "Interval",
    "--force": "Also ",
    "--key": "dempotency key",
    "--limit": "Maximum number of rows",
    "--log-format": "auto, console or json",
    "--log-level": "debug, info, warning or error",
    "--name": "Name of th",
    "--now": "immediately",
    "--priority": "high, normal or low",
    "--queue": "ueue",
    "--reason": "Why, in your words",
    "--replicas": "Replicas of each stream",
    "--since": "within this time",
    "--slots": "Jobs to run at once",
    "--state": "queued, running, scheduled",
    "--task": "of this task",
    "--tz": "Time zone",
    "--wait-timeout": "How long to wait for",
    "--where": "Only jobs with this argument",
    "--yes": "Do not ask for confirmation",
    "-n": "Number of",
}
"""Options of more than one command, and the words that every help text of the option contains."""

SHORT = {
    "-c": "--slots",
    "-n": "",
    "-p": "--processes",
    "-q": "--queue",
    "-s": "--server",
    "-y": "--yes",
}
"""Each short option, and the long one it abbreviates."""


class Use(NamedTuple):
    command: str
    spellings: frozenset[str]
    shape: tuple[Any, ...]
    """Type and placeholder of the value, whether it is a flag, whether it may be repeated."""
    help: str


def uses() -> dict[str, list[Use]]:
    """Every option by each of its names, with the commands that have it."""
    found: dict[str, list[Use]] = defaultdict(list)
    for name, command in [("", typer.main.get_command(tree)), *((one.name, one.click) for one in commands())]:
        for option in command.params:
            if option.opts[0].startswith("-"):
                names = frozenset([*option.opts, *option.secondary_opts])
                kind = option.type_descriptor.annotation
                use = Use(name, names, (kind, option.metavar, option.is_flag, option.multiple), option.help)
                for spelling in names:
                    found[spelling].append(use)
    return dict(found)


USES = uses()
REPEATED = sorted(name for name, found in USES.items() if len(found) > 1)


@pytest.mark.parametrize("name", REPEATED)
def test_an_option_has_one_type_and_one_placeholder(name: str) -> None:
    shapes = {use.command: use.shape for use in USES[name]}
    assert len(set(shapes.values())) == 1, shapes
    spellings = {use.command: use.spellings for use in USES[name]}
    assert len(set(spellings.values())) == 1, spellings


@pytest.mark.parametrize("name", sorted({*SHARED, *(name for name in REPEATED if name not in SHORT)}))
def test_an_option_has_one_meaning(name: str) -> None:
    for use in USES[name]:
        assert SHARED[name] in use.help, f"jetjobs {use.command} {name}: {use.help!r}"


def test_a_short_option_abbreviates_one_long_option() -> None:
    found = {name: USES[name][0].spellings - {name} for name in USES if not name.startswith("--")}
    assert found == {short: {long} - {""} for short, long in SHORT.items()}


def test_no_command_reuses_a_global_option() -> None:
    for name, found in USES.items():
        if any(use.command == "" for use in found):
            assert len(found) == 1, name


def test_every_global_option_may_appear_after_the_command() -> None:
    for name, (use, *_) in USES.items():
        kind, _, flag, _ = use.shape
        if use.command == "" and not name.endswith("-completion") and name != "--version":
            words = [name] if flag else [name, "value"]
            assert hoist(["worker", *words]) == [*words, "worker"], (name, kind)


@pytest.mark.parametrize("name", sorted(name for name in USES if name.startswith("--")))
def test_an_option_with_a_value_has_a_placeholder(name: str) -> None:
    for use in USES[name]:
        _, metavar, flag, _ = use.shape
        assert flag or metavar, f"jetjobs {use.command} {name}"
