"""`jetjobs jobs`: where jobs stand; cancel them, or move those that wait."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import priorities, queue_names, states, task_names
from jetjobs.cli.state import run_async

commands = typer.Typer(help="Jobs: where they stand; cancel or move them.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Id of the job.")]
Ids = Annotated[list[str], typer.Argument(help="Ids of jobs.")]
Queue = Annotated[
    str | None,
    typer.Option(help="Only of this queue; also tells jobs of one id apart.", autocompletion=queue_names),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="Only of this task; also tells jobs of one id apart.", autocompletion=task_names),
]


def add_to(tree: typer.Typer) -> None:
    tree.add_typer(commands, name="jobs")


@commands.command("list")
def list_jobs(
    job_state: Annotated[
        str | None,
        typer.Option(
            "--state",
            help="queued, running, scheduled, retrying, succeeded, cancelled or dead. [default: all live]",
            autocompletion=states,
        ),
    ] = None,
    queue: Queue = None,
    task: TaskName = None,
    since: Annotated[str | None, typer.Option(help="Only those that came to where they stand within: 1h.")] = None,
    where: Annotated[list[str] | None, typer.Option(help="Only with this argument: args.user_id=7.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    cursor: Annotated[str | None, typer.Option(help="Go on from here, as the last list said.")] = None,
) -> None:
    """List jobs by where they stand, oldest first in each place. Nothing is held or taken."""
    from jetjobs.cli.run_jobs import Selection, list_command

    chosen = Selection(job_state, queue, task, since, tuple(where or ()))
    run_async(lambda: list_command(chosen, limit, cursor))


@commands.command()
def show(job_id: Id, queue: Queue = None, task: TaskName = None) -> None:
    """Show all that is known of one job."""
    from jetjobs.cli.run_jobs import show_command

    run_async(lambda: show_command(job_id, queue, task))


@commands.command()
def wait(
    job_id: Id,
    queue: Queue = None,
    task: TaskName = None,
    timeout: Annotated[str, typer.Option("--for", help="How long to wait: 30s, 5m.")] = "1h",
) -> None:
    """Wait until a job has ended, and print its result. Exit code 1 if it is dead or cancelled, 7 if not."""
    from jetjobs.cli.run_jobs import wait_command

    raise typer.Exit(run_async(lambda: wait_command(job_id, queue, task, timeout)))


@commands.command()
def watch(
    ids: Annotated[list[str] | None, typer.Argument(help="Ids of jobs. [default: all that run, live]")] = None,
    queue: Queue = None,
    task: TaskName = None,
) -> None:
    """Follow jobs until all have ended. Exit code 0 if all succeeded, else 1. Without ids: what runs, live."""
    from jetjobs.cli.run_watch import watch_command

    raise typer.Exit(run_async(lambda: watch_command(ids or [], queue, task)))


@commands.command()
def cancel(
    ids: Ids,
    queue: Queue = None,
    task: TaskName = None,
    reason: Annotated[str, typer.Option(help="Why: kept with the job.")] = "",
    timeout: Annotated[str, typer.Option("--for", help="How long to wait for one that runs.")] = "10s",
) -> None:
    """Cancel jobs wherever they stand. The answer says what became of each; repeating it changes nothing."""
    from jetjobs.cli.run_jobs import cancel_command

    raise typer.Exit(run_async(lambda: cancel_command(ids, queue, task, reason, timeout)))


@commands.command()
def run(ids: Ids, queue: Queue = None, task: TaskName = None) -> None:
    """Let scheduled or retrying jobs run now."""
    from jetjobs.cli.run_jobs import run_command

    raise typer.Exit(run_async(lambda: run_command(ids, queue, task)))


@commands.command()
def reschedule(
    job_id: Id,
    at: Annotated[str | None, typer.Option(help="ISO 8601 time with a zone.")] = None,
    delay: Annotated[str | None, typer.Option(help="From now: 10m, 2h.")] = None,
    queue: Queue = None,
    task: TaskName = None,
) -> None:
    """Let a scheduled or retrying job run at another time."""
    from jetjobs.cli.run_jobs import reschedule_command

    raise typer.Exit(run_async(lambda: reschedule_command(job_id, queue, task, at, delay)))


@commands.command()
def priority(
    job_id: Id,
    lane: Annotated[str, typer.Argument(help="high, normal or low.", autocompletion=priorities)],
    queue: Queue = None,
    task: TaskName = None,
) -> None:
    """Change the priority of a job that waits."""
    from jetjobs.cli.run_jobs import priority_command

    raise typer.Exit(run_async(lambda: priority_command(job_id, lane, queue, task)))
