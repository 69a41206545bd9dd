"""What several commands share: options, how durations and times are read, and who runs the command."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypeVar

import typer

from jetjobs.cli.completion import priorities, queue_names
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import ConfigError

T = TypeVar("T")
App = Annotated[str | None, typer.Argument(help="MODULE:NAME of the app; found by itself when there is one.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="k=text or k:=json.", metavar="[k=v | k:=json]...")]
Data = Annotated[str | None, typer.Option(help="All arguments as JSON, @file, or - for standard input.")]
OtherQueue = Annotated[
    str | None, typer.Option(help="Queue to use instead of the task's.", autocompletion=queue_names)
]
Priority = Annotated[str | None, typer.Option(help="high, normal or low.", autocompletion=priorities)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def read_duration(option: str, text: str) -> timedelta:
    """ConfigError for what is no duration, or longer than the calendar."""
    try:
        duration = parse_duration(text)
        _ = datetime.now(UTC) - duration, datetime.now(UTC) + duration
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option}: {error}") from None
    return duration


def optional(read: Callable[[str, str], T], option: str, text: str | None) -> T | None:
    """The value of an option that may be left out."""
    return None if text is None else read(option, text)


def present(values: dict[str, Any]) -> dict[str, Any]:
    """Without the options that were left out."""
    return {key: value for key, value in values.items() if value is not None}


def read_since(text: str | None) -> datetime | None:
    """The time from which `--since` counts."""
    return None if text is None else datetime.now(UTC) - read_duration("--since", text)


def read_time(option: str, text: str) -> datetime:
    """ConfigError for what is no ISO 8601 time with a zone."""
    hint = "write 2027-01-31T09:00:00+01:00 or …Z"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no ISO 8601 time", hint=hint) from None
    if moment.utcoffset() is None:
        raise ConfigError(f"{option} has no time zone", hint=hint)
    return moment


def operator() -> str:
    """Who runs this command, for the record."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"
