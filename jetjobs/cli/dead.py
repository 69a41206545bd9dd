"""`jetjobs dead` (or `dlq`): look at dead letters, replay, delete, export and import them."""

from __future__ import annotations

from typing import Annotated

import typer

from jetjobs.cli.completion import dead_ids, queue_names, task_names
from jetjobs.cli.state import run_async

commands = typer.Typer(help="Dead letters: jobs that will not run again by themselves.", no_args_is_help=True)

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of jobs.", autocompletion=dead_ids)]
Queue = Annotated[str | None, typer.Option(help="Only of this queue.", autocompletion=queue_names)]
TaskName = Annotated[str | None, typer.Option("--task", help="Only of this task.", autocompletion=task_names)]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Only those that died so: exhausted, permanent, crashed, ...")
]
ErrorType = Annotated[str | None, typer.Option(help="Only of this error, with or without its module.")]
Since = Annotated[str | None, typer.Option(help="Only those that died within: 1h, 2d.")]
All = Annotated[bool, typer.Option("--all", help="All that match; without a filter, all there are.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def add_to(tree: typer.Typer) -> None:
    tree.add_typer(commands, name="dead")
    tree.add_typer(commands, name="dlq", hidden=True)


@commands.command("list")
def list_letters(
    queue: Queue = None,
    task: TaskName = None,
    reason: Reason = None,
    error_type: ErrorType = None,
    since: Since = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=10_000)] = 50,
    cursor: Annotated[int, typer.Option(help="Go on from here, as the last list said.", min=1)] = 1,
    group: Annotated[bool, typer.Option("--group", help="Count by task, reason and error instead.")] = False,
) -> None:
    """List dead letters in the order of their death."""
    from jetjobs.cli.letter_choice import Selection
    from jetjobs.cli.run_dead import list_command

    chosen = Selection(None, queue, task, reason, error_type, since)
    run_async(lambda: list_command(chosen, limit, cursor, group))


@commands.command()
def show(
    job_id: Annotated[str, typer.Argument(help="Id of the job.", autocompletion=dead_ids)],
    queue: Queue = None,
    task: TaskName = None,
) -> None:
    """Show one dead letter whole: cause, history, replays, headers, arguments."""
    from jetjobs.cli.letter_choice import Selection
    from jetjobs.cli.run_dead import show_command

    run_async(lambda: show_command(job_id, Selection(queue=queue, task=task)))


@commands.command()
def replay(
    ids: Ids = None,
    all_matching: All = False,
    queue: Queue = None,
    task: TaskName = None,
    died_of: Annotated[str | None, typer.Option("--died-of", help="Only those with this reason of death.")] = None,
    error_type: ErrorType = None,
    since: Since = None,
    to_queue: Annotated[
        str | None,
        typer.Option(help="Enqueue on this queue instead of their own.", autocompletion=queue_names),
    ] = None,
    rate: Annotated[float, typer.Option(help="At most so many a second; 0 for no limit.", min=0)] = 0,
    reason: Annotated[str, typer.Option("--reason", help="Why: kept with the job.")] = "",
    data: Annotated[str | None, typer.Option(help="Other arguments, as one JSON object; for a single id.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Enqueue dead jobs again under their own ids, from their first attempt. Safe to interrupt and repeat."""
    from jetjobs.cli.letter_choice import Selection
    from jetjobs.cli.run_replay import ReplayOptions, replay_command

    chosen = Selection(ids, queue, task, died_of, error_type, since, all_matching)
    options = ReplayOptions(to_queue, rate, reason, data, dry_run, yes)
    raise typer.Exit(run_async(lambda: replay_command(chosen, options)))


@commands.command()
def delete(
    ids: Ids = None,
    all_matching: All = False,
    queue: Queue = None,
    task: TaskName = None,
    reason: Reason = None,
    error_type: ErrorType = None,
    since: Since = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete dead letters for good."""
    from jetjobs.cli.letter_choice import Selection
    from jetjobs.cli.run_replay import delete_command

    chosen = Selection(ids, queue, task, reason, error_type, since, all_matching)
    raise typer.Exit(run_async(lambda: delete_command(chosen, dry_run=dry_run, yes=yes)))


@commands.command("export")
def export_letters(
    file: Annotated[str, typer.Argument(help="File to write, one JSON object a line; - for standard output.")],
    queue: Queue = None,
    task: TaskName = None,
    reason: Reason = None,
    error_type: ErrorType = None,
    since: Since = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it is there.")] = False,
) -> None:
    """Write dead letters whole to a file. They stay where they are."""
    from jetjobs.cli.letter_choice import Selection
    from jetjobs.cli.run_letter_files import export_command

    chosen = Selection(None, queue, task, reason, error_type, since)
    raise typer.Exit(run_async(lambda: export_command(chosen, file, force=force)))


@commands.command("import")
def import_letters(
    file: Annotated[str, typer.Argument(help="File that `export` wrote; - for standard input.")],
) -> None:
    """Put exported letters back. One that is there already is left alone."""
    from jetjobs.cli.run_letter_files import import_command

    raise typer.Exit(run_async(lambda: import_command(file)))
