"""`jetjobs events`: follow events of jobs and workers as they happen."""

from __future__ import annotations

import contextlib
import sys
from typing import Annotated

import typer

from jetjobs.cli.completion import event_kinds, queue_names, task_names
from jetjobs.cli.state import state
from jetjobs.cli.terminal.palette import BLUE, CYAN, DEAD, FAINT, GREEN, LATE, PAUSED
from jetjobs.cli.terminal.text import short_id
from jetjobs.doctor.finding import many
from jetjobs.model.durations import show_duration
from jetjobs.model.events import ConnectionLost, ConnectionRestored, Event
from jetjobs.model.views.live_events import LiveEvent, event_subjects
from jetjobs.model.wire.lenient_json import write_json
from jetjobs.model.wire.subjects import Names

_STYLES = {
    "job.started": CYAN, "job.progress": FAINT, "job.succeeded": GREEN, "job.retried": LATE, "job.snoozed": BLUE,
    "job.parked": PAUSED, "job.released": PAUSED, "job.cancelled": PAUSED, "job.suspected": PAUSED,
    "job.dead_lettered": DEAD, "job.lease_lost": DEAD, "worker.ready": GREEN, "worker.quiet": PAUSED,
    "worker.recycling": PAUSED,
}  # fmt: skip


_PROGRESS = "job.progress"

commands = typer.Typer()


@commands.command()
async def events(
    queue: Annotated[
        str | None,
        typer.Option(
            "-q", "--queue", help="Only events of jobs of this queue.", metavar="QUEUE", autocompletion=queue_names
        ),
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task", help="Only events of jobs of this task.", metavar="TASK", autocompletion=task_names
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            help="Only events of this kind or pattern, such as job.*; may be repeated.",
            metavar="KIND",
            autocompletion=event_kinds,
        ),
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Also the progress of jobs, as --kind job.progress does.")
    ] = False,
) -> None:
    """Follow events of jobs and workers until Ctrl-C. JSON, one object per line, when not on a terminal."""
    kind = [*(kind or []), _PROGRESS] if kind and progress else kind
    event_subjects(Names("any"), queue, task, kind or [])  # reports an invalid filter before connecting
    as_json = state.out.as_json or not sys.stdout.isatty()
    app = await state.server_app()
    app.observe(_note_outage)
    async with (
        app,
        contextlib.aclosing(app.events(queue=queue, task=task, kinds=kind or [], begun=_note)) as following,
    ):
        async for event in following:
            if not (kind or progress) and event.kind == _PROGRESS:
                continue  # a few a second of each job would drown the others
            print(write_json(event.as_dict()) if as_json else line(event), flush=True)


def _note_outage(event: Event) -> None:
    """Report outages: without events, the user must know whether the connection is lost."""
    if isinstance(event, ConnectionLost):
        state.out.note(f"connection lost ({event.error}); events are missed until it is restored")
    elif isinstance(event, ConnectionRestored):
        state.out.note(f"connection restored after {show_duration(event.outage_s)}")


def _note(workers: int) -> None:
    state.out.note(f"following {many(workers, 'worker')}; press Ctrl-C to stop")


def line(event: LiveEvent) -> str:
    """One event as a line for people. Texts from outside cannot break the line or control the terminal."""
    paint, style = state.out.paint, _STYLES.get(event.kind, "")
    clock = paint(event.at.astimezone().strftime("%H:%M:%S"), FAINT)
    parts = [clock, paint(_plain(f"{event.kind:<17}"), style)]
    if event.job_id:
        parts += [_plain(f"{event.queue}/{event.task}"), paint(_plain(short_id(event.job_id)), FAINT)]
    parts += [paint(_plain(event.worker), FAINT), *map(_plain, _facts(event))]
    if event.error_type:
        parts.append(paint(_plain(f"{event.error_type}: {event.error}"), style))
    if event.skipped:
        parts.append(f"({event.skipped:,} earlier ones were left out)")
    return "  ".join(part for part in parts if part)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)


def _facts(event: LiveEvent) -> list[str]:
    facts = [event.detail, event.reason]
    if event.attempt > 1:
        facts.append(f"attempt {event.attempt}")
    if event.kind == "job.started" and event.wait is not None:
        facts.append(f"waited {show_duration(event.wait)}")
    if event.run_time is not None:
        facts.append(f"ran {show_duration(event.run_time)}")
    if event.retry_in is not None:
        word = "retry" if event.kind == "job.retried" else "next try"
        facts.append(f"{word} in {show_duration(event.retry_in)}")
    if event.progress is not None:
        facts.append(f"{int(event.progress * 100)} % {event.message}".rstrip())
    return facts
