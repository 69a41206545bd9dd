"""Global options: where they may appear on the command line."""

from __future__ import annotations

from collections.abc import Sequence

_WITH_VALUE = frozenset(
    {"--app", "-s", "--server", "--context", "--namespace", "--creds", "--config", "--timeout"}
)
_FLAGS = frozenset({"--json", "--jsonl", "--quiet", "--no-color"})


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move global options to the front, where the parser expects them. Users may write them anywhere.

    >>> hoist(["enqueue", "greet", "name=Ada", "--json"])
    ['--json', 'enqueue', 'greet', 'name=Ada']
    """
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        name, equals, _ = item.partition("=")
        if item == "--":
            rest.extend([item, *items])
        elif item in _FLAGS or (equals and name.startswith("--") and name in _WITH_VALUE):
            front.append(item)
        elif item in _WITH_VALUE:
            value = next(items, None)
            # Without a value the option stays in place: at the front it would take the command as its value.
            (rest if value is None else front).extend([item] if value is None else [item, value])
        else:
            rest.append(item)
    return front + rest


def before_dashes(arguments: list[str]) -> list[str]:
    """The arguments before `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments
