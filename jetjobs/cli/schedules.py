"""`jetjobs schedules`: what runs by the calendar and when next; change it, pause it, run it now."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import priorities, queue_names, schedule_names, task_names
from jetjobs.cli.state import run_async

commands = typer.Typer(
    help="Schedules: what runs by the calendar, and when next; change or pause it.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="Name of the schedule.", autocompletion=schedule_names)]
Names = Annotated[list[str], typer.Argument(help="Names of schedules.", autocompletion=schedule_names)]
Cron = Annotated[str | None, typer.Option(help='Cron expression, as in "0 9 * * 1-5".')]
Every = Annotated[str | None, typer.Option(help="Interval instead of a cron expression: 30s, 5m, 1d.")]


def add_to(tree: typer.Typer) -> None:
    tree.add_typer(commands, name="schedules")


@commands.command("list")
def list_schedules() -> None:
    """List all schedules: when each ran last and runs next, whether it is late, what was missed."""
    from jetjobs.cli.run_schedules import list_command

    run_async(list_command)


@commands.command()
def show(name: Name) -> None:
    """Show one schedule: its rule and policies, the job of its last tick, the next five slots."""
    from jetjobs.cli.run_schedules import show_command

    run_async(lambda: show_command(name))


@commands.command("next")
def next_slots(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the schedule; none with --cron or --every.", autocompletion=schedule_names),
    ] = None,
    count: Annotated[int, typer.Option("-n", help="How many slots.", min=1, max=1000)] = 5,
    tz: Annotated[
        str | None, typer.Option(help="Time zone to show them in. [default: the schedule's own]", metavar="ZONE")
    ] = None,
    cron: Cron = None,
    every: Every = None,
) -> None:
    """Print the next slots of a schedule, or of a rule that you want to try out."""
    from jetjobs.cli.run_schedules import next_command

    run_async(lambda: next_command(name, count, tz, cron=cron, every=every))


@commands.command()
def run(name: Name) -> None:
    """Enqueue a job of a schedule at once, besides its ticks."""
    from jetjobs.cli.run_schedules import run_command

    run_async(lambda: run_command(name))


@commands.command()
def pause(names: Names) -> None:
    """Let no tick of a schedule run until it is resumed; it stays paused through deploys."""
    from jetjobs.cli.run_schedules import pause_command

    run_async(lambda: pause_command(names, paused=True))


@commands.command()
def resume(names: Names) -> None:
    """Let the ticks of paused schedules run again, from now on."""
    from jetjobs.cli.run_schedules import pause_command

    run_async(lambda: pause_command(names, paused=False))


@commands.command()
def put(
    name: Name,
    task: Annotated[str, typer.Argument(help="Name of the task.", autocompletion=task_names)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="k=text or k:=json.", metavar="[k=v | k:=json]...")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="All arguments as JSON, @file, or - for standard input.")
    ] = None,
    cron: Cron = None,
    every: Every = None,
    tz: Annotated[
        str | None, typer.Option(help="Time zone of the cron expression. [default: UTC]", metavar="ZONE")
    ] = None,
    anchor: Annotated[str | None, typer.Option(help="From where --every counts, ISO 8601 with a zone.")] = None,
    queue: Annotated[
        str | None, typer.Option(help="Queue to use instead of the task's.", autocompletion=queue_names)
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low.", autocompletion=priorities)] = None,
    start: Annotated[str | None, typer.Option(help="No slot before this, ISO 8601 with a zone.")] = None,
    end: Annotated[str | None, typer.Option(help="No slot after this, ISO 8601 with a zone.")] = None,
    jitter: Annotated[str | None, typer.Option(help="Each tick is due up to so much after its slot: 30s.")] = None,
    misfire: Annotated[
        str | None,
        typer.Option(help="Of slots that nobody could plan in time: last, all or skip. [default: last]"),
    ] = None,
    misfire_limit: Annotated[
        int | None, typer.Option(help="With --misfire all: so many at most. [default: 100]")
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(help="While an earlier tick is alive: allow or skip. [default: allow]"),
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Pause it from the beginning.")] = False,
    revision: Annotated[
        int | None,
        typer.Option(help="Only over this revision, as `show` tells it; 0: only if there is none.", min=0),
    ] = None,
) -> None:
    """Make a schedule, or put another in its place: what is not given has its default."""
    from jetjobs.cli.enqueue import read_arguments
    from jetjobs.cli.run_schedules import put_command

    given = {
        "args": read_arguments(arguments or [], data),
        "cron": cron,
        "every": every,
        "tz": tz,
        "anchor": anchor,
        "queue": queue,
        "priority": priority,
        "start": start,
        "end": end,
        "jitter": jitter,
        "misfire": misfire,
        "misfire_limit": misfire_limit,
        "overlap": overlap,
        "paused": paused or None,
    }
    run_async(lambda: put_command(name, task, given, revision))


@commands.command()
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also those that code declares: for an app that is gone.")
    ] = False,
) -> None:
    """Delete schedules. Jobs of ticks that have fired stay."""
    from jetjobs.cli.run_schedules import delete_command

    raise typer.Exit(run_async(lambda: delete_command(names, yes=yes, force=force)))
