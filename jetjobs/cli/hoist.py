"""Global options may stand anywhere in a line: here they are moved to its front."""

from __future__ import annotations

from collections.abc import Sequence

# These take a value.
_WITH_VALUE = frozenset({"--app", "-s", "--server", "--context", "--creds", "--config", "--timeout"})
_WITHOUT = frozenset({"--json", "--jsonl", "--quiet", "--no-color"})
# With these commands -q is short for --queues.
_OWN_Q = frozenset({"worker", "setup"})


def hoist(arguments: Sequence[str]) -> list[str]:
    """Move global options to the front, where the parser wants them.

    >>> hoist(["enqueue", "greet", "name=Ada", "--json"])
    ['--json', 'enqueue', 'greet', 'name=Ada']
    >>> hoist(["queues", "list", "-q"]), hoist(["worker", "-q", "mail"])
    (['-q', 'queues', 'list'], ['worker', '-q', 'mail'])
    """
    front: list[str] = []
    rest: list[str] = []
    items = iter(arguments)
    for item in items:
        if item == "--":
            rest.extend([item, *items])
        elif item == "-q":
            (rest if rest and rest[0] in _OWN_Q else front).append(item)
        elif item in _WITHOUT or (item.startswith("--") and item.partition("=")[0] in _WITH_VALUE and "=" in item):
            front.append(item)
        elif item in _WITH_VALUE:
            value = next(items, None)
            # Without a value it stays where it is: in front it would take the command for one.
            (rest if value is None else front).extend([item] if value is None else [item, value])
        else:
            rest.append(item)
    return front + rest


def before_dashes(arguments: list[str]) -> list[str]:
    """What stands before `--`."""
    return arguments[: arguments.index("--")] if "--" in arguments else arguments
