"""Arguments and options that several commands share, and how their values are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from jetjobs.cli.completion import priorities, queue_names, task_names
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import ConfigError
from jetjobs.model.wire.lenient_json import read_json

T = TypeVar("T")
App = Annotated[
    str | None, typer.Argument(help="MODULE:NAME of the app. [default: the only app in tasks.py, jobs.py, ...]")
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="Arguments of the task: k=text or k:=json.", metavar="k=v|k:=json"),
]
Data = Annotated[
    str | None,
    typer.Option(help="All arguments as one JSON object, @FILE, or - for standard input.", metavar="JSON"),
]
JobQueue = Annotated[
    str | None,
    typer.Option(
        "-q",
        "--queue",
        help="Jobs of this queue.",
        metavar="QUEUE",
        autocompletion=queue_names,
    ),
]
JobTask = Annotated[
    str | None,
    typer.Option(
        "--task",
        help="Jobs of this task.",
        metavar="TASK",
        autocompletion=task_names,
    ),
]
OtherQueue = Annotated[
    str | None,
    typer.Option(
        "-q",
        "--queue",
        help="Queue to use instead of the task's own.",
        metavar="QUEUE",
        autocompletion=queue_names,
    ),
]
Priority = Annotated[
    str | None, typer.Option(help="Priority: high, normal or low.", metavar="PRIORITY", autocompletion=priorities)
]
Reason = Annotated[str, typer.Option(help="Why, in your words; recorded and shown.", metavar="TEXT")]
Limit = Annotated[int, typer.Option(help="Maximum number of rows.", min=1, max=10_000, metavar="N")]
Cursor = Annotated[
    str | None, typer.Option(help="Continue from here, as printed by the previous list.", metavar="CURSOR")
]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask for confirmation.")]


def stripped(given: Any) -> Any:
    """An id, or several, without the white space that copying has added."""
    return given.strip() if isinstance(given, str) else given and [one.strip() for one in given]


def read_duration(option: str, text: str) -> timedelta:
    """ConfigError for an invalid duration, or one that exceeds the calendar."""
    try:
        duration = parse_duration(text)
        _ = datetime.now(UTC) - duration, datetime.now(UTC) + duration
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option}: {error}") from None
    return duration


def read_since(text: str | None) -> datetime | None:
    """The time at which the period of `--since` begins."""
    return None if text is None else datetime.now(UTC) - read_duration("--since", text)


def read_time(option: str, text: str) -> datetime:
    """ConfigError unless the text is an ISO 8601 time with a zone."""
    hint = "write 2027-01-31T09:00:00+01:00 or 2027-01-31T08:00:00Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option}: invalid ISO 8601 time {text!r}", hint=hint) from None
    if moment.utcoffset() is None:
        raise ConfigError(f"{option}: {text!r} has no time zone", hint=hint)
    return moment


def optional(read: Callable[[str, str], T], option: str, text: str | None) -> T | None:
    """The value of an option that may be absent."""
    return None if text is None else read(option, text)


def present(values: dict[str, Any]) -> dict[str, Any]:
    """Only the options that were given."""
    return {key: value for key, value in values.items() if value is not None}


def read_arguments(pairs: list[str], data: str | None) -> dict[str, Any]:
    """A task's arguments from `--data` and from `k=v` and `k:=json`, which take precedence."""
    values = read_data(data) if data is not None else {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"invalid argument {pair!r}: write k=text or k:=json")
        if name.endswith(":"):
            try:
                values[name[:-1]] = read_json(text)
            except ValueError as error:
                raise typer.BadParameter(f"invalid JSON in {pair!r}: {error}") from None
        else:
            values[name] = text
    return values


def read_data(data: str) -> dict[str, Any]:
    """The JSON object that `--data` gives, in a file or on standard input if it says so."""
    try:
        text = sys.stdin.read() if data == "-" else Path(data[1:]).read_text() if data.startswith("@") else data
        values = read_json(text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--data: {error}") from None
    if not isinstance(values, dict):
        raise typer.BadParameter("--data must be one JSON object: the task's arguments by name")
    return values
