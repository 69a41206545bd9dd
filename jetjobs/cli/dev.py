"""`jetjobs dev`: an embedded server, a worker that reloads, and a file by which other terminals find them."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.state import run_async


def add_to(tree: typer.Typer) -> None:
    tree.command("dev")(dev)


def dev(
    app: Annotated[
        str | None, typer.Argument(help="MODULE:NAME of the app; found by itself when there is one.")
    ] = None,
    reload: Annotated[bool, typer.Option(help="Restart the worker when a Python file changes.")] = True,
    store: Annotated[str, typer.Option(help="Folder of the server's data, or memory.")] = ".jetjobs/nats",
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin with an empty store.")] = False,
    slots: Annotated[int, typer.Option("-c", "--slots", help="Jobs to run at once.", min=1)] = 10,
) -> None:
    """Run everything on this machine: nats-server, a worker, reload on change. Ctrl-C stops all in order."""
    from jetjobs.cli.run_dev import DevOptions, run_dev

    raise typer.Exit(run_async(lambda: run_dev(DevOptions(app, reload, store, fresh, slots))))
