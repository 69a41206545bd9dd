"""`jetjobs events` and `jetjobs top`: see what happens while it does."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import event_kinds, queue_names, task_names
from jetjobs.cli.state import run_async


def add_to(tree: typer.Typer) -> None:
    tree.command()(events)
    tree.command()(top)


def events(
    queue: Annotated[
        str | None, typer.Option(help="Only of jobs of this queue.", autocompletion=queue_names)
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", help="Only of jobs of this task.", autocompletion=task_names)
    ] = None,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only of this kind, or pattern: job.*", autocompletion=event_kinds)
    ] = None,
) -> None:
    """Follow what happens to jobs and workers, until Ctrl-C. JSON, one object a line, when not on a terminal."""
    from jetjobs.cli.run_events import events_command

    run_async(lambda: events_command(queue, task, kind or []))


def top(
    refresh: Annotated[str, typer.Option(help="Time between two looks.")] = "1s",
) -> None:
    """Queues, running jobs and workers, live. Keys: p pause, / filter, q quit. One look when not on a terminal."""
    from jetjobs.cli.run_top import top_command

    raise typer.Exit(run_async(lambda: top_command(refresh)))
