"""The tree of commands and its global options. Imports nothing heavy: `--help` must be quick."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from jetjobs import __version__
from jetjobs.cli import (
    config,
    dead,
    dev,
    doctor,
    enqueue,
    jobs,
    live,
    queues,
    scheduler,
    schedules,
    setup,
    worker,
    workers,
)
from jetjobs.cli.hoist import before_dashes, hoist
from jetjobs.cli.output import (
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
from jetjobs.cli.state import STALE_DEV_FILE, state

tree = typer.Typer(
    name="jetjobs",
    help="Jobs on NATS JetStream: run workers, enqueue jobs, set up streams.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
dev.add_to(tree)
worker.add_to(tree)
scheduler.add_to(tree)
enqueue.add_to(tree)
jobs.add_to(tree)
queues.add_to(tree)
schedules.add_to(tree)
workers.add_to(tree)
dead.add_to(tree)
live.add_to(tree)
setup.add_to(tree)
doctor.add_to(tree)
config.add_to(tree)


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
    from jetjobs.model.durations import parse_duration

    state.app, state.server, state.context, state.creds, state.config = app, server, context, creds, config_file
    state.from_dev_file = False
    state.out = Output(as_json=as_json, lines=as_lines, quiet=quiet, colour=not no_color)
    try:
        state.timeout_s = None if timeout is None else parse_duration(timeout).total_seconds()
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def run(arguments: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    from jetjobs.model.errors import JetJobsError

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
