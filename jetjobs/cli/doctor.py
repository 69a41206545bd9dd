"""`jetjobs doctor`: is all well, and what to do where it is not."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.state import run_async


def add_to(tree: typer.Typer) -> None:
    tree.command("doctor")(doctor)


def doctor(
    app: Annotated[
        str | None, typer.Argument(help="MODULE:NAME of the app; found by itself if there is one.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(help="Only these areas: nats, topology, queues, schedules, workers, app.", metavar="A,B"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
) -> None:
    """Look at server, streams, queues, workers and app. Changes nothing. Exit code 1 when something failed."""
    from jetjobs.cli.run_doctor import doctor_command

    raise typer.Exit(run_async(lambda: doctor_command(app, only, strict=strict)))
