"""`jetjobs queues`: what stands in each queue and how it moves; pause, resume, purge."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import queue_names
from jetjobs.cli.state import run_async

commands = typer.Typer(help="Queues: what waits, runs and moves; pause or empty them.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of the queue.", autocompletion=queue_names)]
Names = Annotated[list[str], typer.Argument(help="Names of queues.", autocompletion=queue_names)]


def add_to(tree: typer.Typer) -> None:
    tree.add_typer(commands, name="queues")


@commands.command("list")
def list_queues() -> None:
    """List all queues with their counts and rates."""
    from jetjobs.cli.run_queues import list_command

    run_async(list_command)


@commands.command()
def show(queue: Name) -> None:
    """Show one queue: its lanes, its pause, and when a job enqueued now may start."""
    from jetjobs.cli.run_queues import show_command

    run_async(lambda: show_command(queue))


@commands.command()
def pause(
    queues: Names,
    for_: Annotated[
        str | None, typer.Option("--for", help="Resume by itself after: 30s, 10m, 1h. [default: never]")
    ] = None,
    reason: Annotated[str, typer.Option(help="Why: shown to whoever looks.")] = "",
) -> None:
    """Let no job of a queue start. What runs finishes, and jobs may be enqueued."""
    from jetjobs.cli.run_queues import pause_command

    run_async(lambda: pause_command(queues, for_, reason))


@commands.command()
def resume(queues: Names) -> None:
    """Let the jobs of paused queues start again."""
    from jetjobs.cli.run_queues import resume_command

    run_async(lambda: resume_command(queues))


@commands.command()
def purge(
    queue: Name,
    scheduled: Annotated[bool, typer.Option("--scheduled", help="Also the jobs for later, retries too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete the jobs that wait in a queue, for good. Running ones and dead letters stay."""
    from jetjobs.cli.run_queues import purge_command

    raise typer.Exit(run_async(lambda: purge_command(queue, scheduled=scheduled, yes=yes)))


@commands.command()
def stats(
    queue: Name,
    since: Annotated[str, typer.Option(help="Only jobs that ended within: 10m, 1h.")] = "1h",
) -> None:
    """How the jobs of a queue ended lately, by task, from the records that are still kept."""
    from jetjobs.cli.run_queues import stats_command

    run_async(lambda: stats_command(queue, since))
