"""The tree of commands and the global options. A command's modules are imported when it is called."""

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
from jetjobs.cli.exit_codes import (
    APP_BROKEN,
    DONE,
    INTERRUPTED,
    READER_GONE,
    USAGE,
    AppImportError,
    exit_code,
)
from jetjobs.cli.global_options import before_dashes, hoist
from jetjobs.cli.state import run_async, state
from jetjobs.cli.terminal.options import read_duration
from jetjobs.cli.terminal.output import Output, unwritable, user_traceback
from jetjobs.model.errors import JetJobsError


class Entry(NamedTuple):
    """A command or group of commands: the names of its modules, and its line in `--help`."""

    modules: str
    help: str
    hidden: bool = False


_DEAD = Entry("dead replay", "List, replay, delete, export or import dead letters.")
ENTRIES = {
    "init": Entry("init", "Write a small project that runs."),
    "dev": Entry("dev", "Run nats-server and a worker that reloads on change."),
    "worker": Entry("worker", "Run the tasks of an app until SIGTERM or Ctrl-C."),
    "enqueue": Entry("enqueue", "Enqueue a job; with --wait, print its result."),
    "tasks": Entry("tasks", "List and show the tasks of running workers and of the app."),
    "jobs": Entry("jobs job_details watch", "List, show, cancel, reschedule or watch jobs."),
    "queues": Entry("queues", "List, show, pause, resume, purge or delete queues."),
    "schedules": Entry("schedules schedule_edits", "List, show, change, pause or run schedules."),
    "workers": Entry("workers", "List, show, quiet or stop workers."),
    "dead": _DEAD,
    "dlq": _DEAD._replace(hidden=True),
    "audit": Entry("audit", "List who changed what, and why."),
    "events": Entry("events", "Follow events of jobs and workers until Ctrl-C."),
    "top": Entry("top", "Show queues, running jobs and workers, live."),
    "http": Entry("http http_tokens", "Serve the HTTP API; manage its tokens."),
    "setup": Entry("setup", "Plan, apply or destroy what an app needs on the server."),
    "doctor": Entry("doctor", "Check server, streams, queues, schedules, workers and app."),
    "config": Entry("config", "Show settings and their sources."),
}
"""In the order of `--help`."""


class LazyGroup(TyperGroup):
    """Lists commands by name and help, and imports the modules of the command that is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in ENTRIES.items():
            self.add_command(TyperCommand(name=name, help=entry.help, hidden=entry.hidden))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, listed, rest = super().resolve_command(ctx, args)
        return name, load(name) if listed is not None and name is not None else None, rest


def load(name: str) -> Any:
    """The command or group of that name, as built by typer. Commands that are `async def` get an event loop."""
    entry = ENTRIES[name]
    combined = typer.Typer(name=name, help=entry.help, no_args_is_help=True, rich_markup_mode=None)
    for module in entry.modules.split():
        part: typer.Typer = import_module(f"jetjobs.cli.commands.{module}").commands
        combined.registered_commands += part.registered_commands
        combined.registered_groups += part.registered_groups
        if part.registered_callback is not None:
            combined.registered_callback = part.registered_callback
            combined.info.help = inspect.getdoc(part.registered_callback.callback)
    _run_on_event_loop(combined)
    group = typer.main.get_group(combined)
    return group.commands.get(name, group)


def _run_on_event_loop(group: typer.Typer) -> None:
    found: list[Any] = [*group.registered_commands, group.registered_callback]
    for command in found:
        if command is not None and inspect.iscoroutinefunction(command.callback):
            command.callback = _on_event_loop(command.callback)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        _run_on_event_loop(inner.typer_instance)


def _on_event_loop(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return run_async(lambda: function(*args, **kwargs))

    return call


tree = typer.Typer(
    name="jetjobs",
    cls=LazyGroup,
    help="Background jobs on NATS JetStream.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@tree.callback()
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    app: Annotated[str | None, typer.Option(help="The app to use.", metavar="MODULE:NAME")] = None,
    server: Annotated[
        str | None, typer.Option("-s", "--server", help="URL of the NATS server.", metavar="URL")
    ] = None,
    context: Annotated[str | None, typer.Option(help="Context of the nats CLI to use.", metavar="NAME")] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the queues. [default: the app's name]", metavar="NAME")
    ] = None,
    creds: Annotated[str | None, typer.Option(help="NATS credentials file.", metavar="FILE")] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="Configuration file.", metavar="FILE")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option(help="How long to wait for the server. [default: 5s]", metavar="DURATION")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    as_lines: Annotated[bool, typer.Option("--jsonl", help="Print each item as JSON on its own line.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only ids or names.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Do not use colors.")] = False,
) -> None:
    """Global options may appear before or after the command."""
    state.app, state.server, state.context, state.creds, state.config = app, server, context, creds, config_file
    state.namespace = namespace
    state.out = Output(as_json=as_json, lines=as_lines, quiet=quiet, colour=not no_color)
    state.timeout_s = None if timeout is None else read_duration("--timeout", timeout).total_seconds()


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
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
        state.out.error(str(error), error.hint, number)
        return number
    except AppImportError as error:
        assert error.__cause__ is not None
        state.out.note(user_traceback(error.__cause__).rstrip())
        state.out.error(str(error), error.hint, APP_BROKEN)
        return APP_BROKEN
    except typer.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except OSError as error:
        return unwritable(error)
    except SystemExit:
        # Typer exits with 1 when the reader of our output is gone, after wrapping standard output.
        if type(sys.stdout).__name__ == "PacifyFlushWrapper":
            return READER_GONE
        raise
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage_error(error)


def _usage_error(error: Any) -> int:
    """Report a usage error that typer found."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "jetjobs"
    text = error.format_message()
    if text.startswith("Usage:"):  # a group without a command
        if not state.out.as_json:
            state.out.note(text)
        text = "missing command"
    text = text.removeprefix("Invalid value: ")  # of a BadParameter without an option: its own text says more
    hint = f"{command} --help"
    if command == "jetjobs enqueue" and text.startswith("No such option"):
        hint = f"write arguments of the task as NAME=VALUE; {hint}"
    state.out.error(text[:1].lower() + text[1:].removesuffix("."), hint, USAGE)
    return USAGE
