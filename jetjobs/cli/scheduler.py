"""`jetjobs scheduler`: plan schedules without running jobs, until told to stop."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.state import run_async, state


def add_to(tree: typer.Typer) -> None:
    tree.command("scheduler")(scheduler)


def scheduler(
    app: Annotated[
        str | None, typer.Argument(help="MODULE:NAME of the app; found by itself when there is one.")
    ] = None,
    name: Annotated[str, typer.Option(help="Name of this scheduler. [default: HOST-PID]")] = "",
    http: Annotated[
        str | None, typer.Option(help="HOST:PORT of /livez, /readyz, /metrics, or off. [default: off]")
    ] = None,
    provision: Annotated[
        str | None,
        typer.Option(help="apply: create what is missing; verify: refuse if it is; off. [default: apply]"),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error. [default: info]")] = None,
    log_format: Annotated[str | None, typer.Option(help="auto, console or json. [default: auto]")] = None,
) -> None:
    """Plan the schedules, without running jobs, until SIGTERM or Ctrl-C.

    Workers do so too, unless they are started with --no-schedules. One of all of them leads; when it
    ends, another takes over.
    """
    flags = {
        "worker.http": http,
        "worker.provision": provision,
        "observe.log_level": log_level,
        "observe.log_format": log_format,
    }
    target = state.load_app(app, state.settings(flags))
    from jetjobs.cli.run_worker import run_scheduler

    raise typer.Exit(run_async(lambda: run_scheduler(target, name)))
