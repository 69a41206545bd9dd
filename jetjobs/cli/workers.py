"""`jetjobs workers`: which workers live and what they do; quiet them, stop them."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import queue_names, worker_names
from jetjobs.cli.state import run_async

commands = typer.Typer(help="Workers: what they do; quiet or stop them.", no_args_is_help=True)

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Names of workers, as `workers list` has them.", autocompletion=worker_names),
]
All = Annotated[bool, typer.Option("--all", help="All workers, instead of single names.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_to(tree: typer.Typer) -> None:
    tree.add_typer(commands, name="workers")


@commands.command("list")
def list_workers(
    queue: Annotated[
        str | None, typer.Option(help="Only those that work on this queue.", autocompletion=queue_names)
    ] = None,
) -> None:
    """List the workers that live. One that stopped is gone at once, one that died within 15 s."""
    from jetjobs.cli.run_workers import list_command

    run_async(lambda: list_command(queue))


@commands.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the worker.", autocompletion=worker_names)],
) -> None:
    """Show one worker: its slots, its tasks, what it runs."""
    from jetjobs.cli.run_workers import show_command

    run_async(lambda: show_command(name))


@commands.command()
def quiet(names: Names = None, all_workers: All = False, yes: Yes = False) -> None:
    """Let workers take no new work. They finish what runs, and stay until they are stopped."""
    from jetjobs.cli.run_workers import tell_command

    raise typer.Exit(run_async(lambda: tell_command("quiet", names, all_workers=all_workers, yes=yes)))


@commands.command()
def stop(
    names: Names = None,
    all_workers: All = False,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for running jobs: they are given back.")] = False,
    yes: Yes = False,
) -> None:
    """Let workers end in order, as by SIGTERM. Whoever supervises them may start them again."""
    from jetjobs.cli.run_workers import tell_command

    raise typer.Exit(run_async(lambda: tell_command("stop", names, all_workers=all_workers, yes=yes, now=now)))
