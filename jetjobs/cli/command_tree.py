"""The tree of commands and its global options. A command's module is imported when the command is called."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from jetjobs import __version__
from jetjobs.cli.state import STALE_DEV_FILE, before_dashes, hoist, run_async, state
from jetjobs.cli.terminal.options import read_duration
from jetjobs.cli.terminal.output import (
    APP_BROKEN,
    DONE,
    INTERRUPTED,
    READER_GONE,
    UNREACHABLE,
    USAGE,
    AppImportError,
    Output,
    exit_code,
    unwritable,
    user_traceback,
)
from jetjobs.model.errors import JetJobsError


class Entry(NamedTuple):
    """A command or a group of them: the modules that hold it, by name, and what `--help` says of it."""

    modules: str
    help: str
    hidden: bool = False


_DEAD = Entry("dead replay", "Dead letters: jobs that will not run again by themselves.")
ENTRIES = {
    "dev": Entry("dev", "Run everything on this machine: nats-server, a worker, reload on change."),
    "worker": Entry("worker", "Run the tasks of an app until SIGTERM or Ctrl-C."),
    "enqueue": Entry("enqueue", "Store a job, and with --wait print its result."),
    "jobs": Entry("jobs watch", "Jobs: where they stand; cancel or move them."),
    "queues": Entry("queues", "Queues: what waits, runs and moves; pause or empty them."),
    "schedules": Entry(
        "schedules schedule_edits", "Schedules: what runs by the calendar, and when next; change or pause it."
    ),
    "workers": Entry("workers", "Workers: what they do; quiet or stop them."),
    "dead": _DEAD,
    "dlq": _DEAD._replace(hidden=True),
    "events": Entry("events", "Follow what happens to jobs and workers, until Ctrl-C."),
    "top": Entry("top", "Queues, running jobs and workers, live."),
    "setup": Entry("setup", "Streams, lanes and buckets on the server."),
    "doctor": Entry("doctor", "Look at server, streams, queues, workers and app."),
    "config": Entry("config", "Settings and where they come from."),
}
"""In the order of `--help`."""


class LazyGroup(TyperGroup):
    """Lists its commands by name and help, and imports the modules of the one that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in ENTRIES.items():
            self.add_command(TyperCommand(name=name, help=entry.help, hidden=entry.hidden))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, load(name) if listed is not None and name is not None else None, rest


def load(name: str) -> Any:
    """The command or group of that name, as typer makes it. Commands that are `async def` get an event loop."""
    entry = ENTRIES[name]
    together = typer.Typer(name=name, help=entry.help, no_args_is_help=True, rich_markup_mode=None)
    for module in entry.modules.split():
        together.registered_commands += import_module(
            f"jetjobs.cli.commands.{module}"
        ).commands.registered_commands
    for command in together.registered_commands:
        if inspect.iscoroutinefunction(command.callback):
            command.callback = _on_event_loop(command.callback)
    group = typer.main.get_group(together)
    return group.commands.get(name, group)


def _on_event_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run_async(lambda: function(*args, **kwargs))

    return call


tree = typer.Typer(
    name="jetjobs",
    cls=LazyGroup,
    help="Jobs on NATS JetStream: run workers, enqueue jobs, set up streams.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@tree.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    app: Annotated[str | None, typer.Option(help="MODULE:NAME of the app.", metavar="M:O")] = None,
    server: Annotated[str | None, typer.Option("-s", "--server", help="URL of the NATS server.")] = None,
    context: Annotated[str | None, typer.Option(help="Context of the nats command line to use.")] = None,
    creds: Annotated[str | None, typer.Option(help="Path of a NATS credentials file.")] = None,
    config_file: Annotated[Path | None, typer.Option("--config", help="Configuration file.")] = None,
    timeout: Annotated[str | None, typer.Option(help="How long to wait for the server. [default: 5s]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
    as_lines: Annotated[bool, typer.Option("--jsonl", help="JSON, one object of a list a line.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Ids or names only.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour.")] = False,
) -> None:
    """Global options may stand before or after the command."""
    state.app, state.server, state.context, state.creds, state.config = app, server, context, creds, config_file
    state.from_dev_file = False
    state.out = Output(as_json=as_json, lines=as_lines, quiet=quiet, colour=not no_color)
    state.timeout_s = None if timeout is None else read_duration("--timeout", timeout).total_seconds()


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    ordered = hoist(arguments) or ["--help"]
    if "--version" in before_dashes(ordered):
        print(f"jetjobs {__version__}")
        return DONE
    state.out = Output(as_json=bool({"--json", "--jsonl"} & {*before_dashes(ordered)}))
    try:
        code = tree(args=ordered, prog_name="jetjobs", standalone_mode=False)
        return code if isinstance(code, int) else DONE
    except JetJobsError as error:
        number = exit_code(error)
        hint = error.hint
        if number == UNREACHABLE and state.from_dev_file:
            hint = STALE_DEV_FILE
        state.out.error(str(error), hint, number)
        return number
    except AppImportError as error:
        assert error.__cause__ is not None
        state.out.note(user_traceback(error.__cause__).rstrip())
        state.out.error(f"the app {str(error)!r} cannot be imported", None, APP_BROKEN)
        return APP_BROKEN
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        return unwritable(error)
    except SystemExit:
        # Typer ends so, with a 1, when nobody reads what we write any more; and puts a wrapper around the output.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            return READER_GONE
        raise
    except Exception as error:
        shown = getattr(error, "format_message", None)  # typer's own usage errors
        if shown is None:
            raise
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "jetjobs"
        text = shown()
        if text.startswith("Usage:"):  # only a group was named
            if not state.out.as_json:
                state.out.note(text)
            text = f"{command}: which command?"
        state.out.error(text, f"{command} --help", USAGE)
        return USAGE
