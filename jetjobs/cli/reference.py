"""Generates docs/reference/cli.md from the tree of commands: `python -m jetjobs.cli.reference` prints it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any, NamedTuple

import typer

from jetjobs.cli import exit_codes
from jetjobs.cli.command_tree import ENTRIES, load, tree

COLUMNS = 100
HEAD = """# Command-line reference

<!-- Generated from the code by `make docs`. Do not edit. -->

Every command with its arguments and options. See [the guide](../how-to/cli.md) for how to use them
and [cli-json.md](cli-json.md) for the output of `--json`. `jetjobs dlq` is an alias of
`jetjobs dead`.

Durations are written `250ms`, `10s`, `5m`, `2h` or `1d`, times in ISO 8601 with a zone.
"""


EXIT_CODES = {
    exit_codes.DONE: "done; a worker stopped gracefully",
    exit_codes.FAILED: "the operation or the awaited job failed; a job could not be cancelled or moved;"
    " `doctor` found a failure; a worker released running jobs when it stopped, or one of its"
    " lifespans raised",
    exit_codes.USAGE: "invalid usage, settings or arguments; an invalid id, or one that several jobs have;"
    " a cursor of another list; a missing dependency",
    exit_codes.UNREACHABLE: "NATS cannot be reached, refuses the credentials, is too old or has no JetStream",
    exit_codes.APP_BROKEN: "the app raised while it was imported",
    exit_codes.NOT_FOUND: "no such job, task, queue, lane, schedule, worker or dead letter",
    exit_codes.REFUSED: "a stream, consumer or bucket is missing or differs; a schedule was changed since, or is"
    " declared in code; confirmation was refused, or `--yes` is missing",
    exit_codes.TIMED_OUT: "the job did not end, or the worker did not answer, in time",
    exit_codes.RECYCLED: "a worker stopped gracefully because of"
    " [stuck threads](../how-to/operations.md#stuck-threads): start it again",
    exit_codes.INTERRUPTED: "interrupted, as by Ctrl-C",
    exit_codes.READER_GONE: "the reader of the output went away, as `head` does; nothing is printed about it",
}


class Command(NamedTuple):
    """A command that can be run."""

    words: tuple[str, ...]
    click: Any
    """The command object that typer built."""

    @property
    def name(self) -> str:
        return " ".join(self.words)


def commands() -> Iterator[Command]:
    """Every command of the tree, in the order of `--help`, without aliases."""
    for name, entry in ENTRIES.items():
        if entry.hidden:
            continue
        yield from _commands((name,), load(name))


def _commands(words: tuple[str, ...], found: Any) -> Iterator[Command]:
    inner = getattr(found, "commands", {})
    if not inner or found.invoke_without_command:
        yield Command(words, found)
    for word, one in inner.items():
        yield from _commands((*words, word), one)


def markdown() -> str:
    """The whole page."""
    root = typer.main.get_command(tree)
    parts = [
        HEAD,
        _section("jetjobs", "", "Global options. They may appear before or after the command.", root),
    ]
    group = ""
    for command in commands():
        if command.words[0] != group:
            group = command.words[0]
            if len(command.words) > 1:
                parts.append(f"## `jetjobs {group}`\n\n{ENTRIES[group].help}\n")
        usage = " ".join(["jetjobs", *command.words, *(_usage(p) for p in _arguments(command.click))])
        level = "###" if len(command.words) > 1 else "##"
        parts.append(_section(f"jetjobs {command.name}", usage, command.click.help, command.click, level))
    codes = [[str(code), meaning] for code, meaning in EXIT_CODES.items()]
    parts.append(f"## Exit codes\n\n{_table(['Code', 'Meaning'], codes)}\n")
    return "\n".join(parts)


def _section(title: str, usage: str, text: str, command: Any, level: str = "##") -> str:
    lines = [f"{level} `{title}`", ""]
    if usage and usage != title:
        lines += ["```", usage, "```", ""]
    lines += [textwrap.fill(" ".join(part.split()), COLUMNS) + "\n" for part in text.split("\n\n")]
    arguments = [[f"`{_usage(p)}`", p.help or ""] for p in _arguments(command)]
    if arguments:
        lines += [_table(["Argument", "Meaning"], arguments), ""]
    options = [[_spelling(p), *_default(p)] for p in _options(command)]
    if options:
        lines += [_table(["Option", "Default", "Meaning"], options), ""]
    return "\n".join(lines)


def _arguments(command: Any) -> list[Any]:
    return [p for p in command.params if not p.opts[0].startswith("-")]


def _options(command: Any) -> list[Any]:
    return [p for p in command.params if p.opts[0].startswith("-") and not p.hidden]


def _usage(argument: Any) -> str:
    text = argument.metavar or argument.name.upper()
    return (text if argument.required else f"[{text}]") + ("..." if argument.nargs == -1 else "")


def _spelling(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if option.is_flag:
        return names
    return f"{names[:-1]} {option.metavar}`"


def _default(option: Any) -> tuple[str, str]:
    """The default and the meaning. The default of a setting is part of the help text."""
    text = option.help or ""
    if " [default: " in text:
        meaning, _, default = text.partition(" [default: ")
        return default.rstrip("]"), meaning
    if option.secondary_opts:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`", text
    omitted = option.is_flag or option.default in (None, "", 0)
    return "" if omitted else f"`{option.default}`", text


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    print(markdown(), end="")
