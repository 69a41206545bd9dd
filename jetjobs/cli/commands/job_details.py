"""`jetjobs jobs show`: everything known about one job, laid out for reading."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import typer

from jetjobs.admin.partial_ids import complete_id
from jetjobs.cli.commands.jobs import Id, check_names
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import JobQueue, JobTask
from jetjobs.cli.terminal.palette import DEAD, FAINT, LATE, state_style
from jetjobs.cli.terminal.progress import line as bar_line
from jetjobs.cli.terminal.text import ago, json_line
from jetjobs.model.durations import show_duration
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.wire.lenient_json import as_time

commands = typer.Typer()

_TIMES = ("enqueued_at", "due_at", "started_at", "ended_at")
_FACTS = ("queue", "task", "lane", "attempt", "crashes", "worker")
_ORIGIN = ("schedule", "scheduled_time", "parent", "root", "key", "callback")


@commands.command()
async def show(job_id: Id, queue: JobQueue = None, task: JobTask = None) -> None:
    """Show everything known about one job. Includes its arguments and the error of every attempt."""
    check_names([job_id], queue, task)
    async with state.reader() as app:
        job_id = await complete_id(app.jetstream, job_id, queue, task)
        status = await app.jobs.get(job_id, queue=queue, task=task)
    if state.out.as_json:
        state.out.json(status.as_dict())
        return
    details = status.as_dict()
    state.out.fact("id", status.id)
    state.out.fact("state", str(status.state), state_style(str(status.state)))
    _named(details, _FACTS)
    if status.priority not in (None, status.lane):
        state.out.fact("priority", str(status.priority))
    _show_times(status, details)
    _show_progress(status)
    _named(details, ("reason", "how"), {"reason": DEAD if status.state is JobState.DEAD else LATE})
    last = status.history[-1] if status.history else {}
    if status.error != f"{last.get('type')}: {last.get('text')}" or not sys.stdout.isatty():  # it follows below
        _named(details, ("error",), {"error": DEAD})
    _named(details, _ORIGIN)
    _show_sent(status)
    if status.cancel is not None:
        requested = "" if status.state is JobState.CANCELLED else "requested "
        why = f"{requested}by {status.cancel['by'] or '-'}: {status.cancel['reason'] or '-'}"
        state.out.fact("cancel", why)
    if status.state is JobState.SUCCEEDED:
        state.out.fact("result", json_line(status.result))
    _show_history(status)


def _named(details: Mapping[str, Any], names: tuple[str, ...], styles: Mapping[str, str] | None = None) -> None:
    for name in names:
        if details[name] not in (None, "", 0):
            state.out.fact(name, str(details[name]), (styles or {}).get(name, ""))


def _show_times(status: JobStatus, details: Mapping[str, Any]) -> None:
    """On a terminal how long ago each time was; elsewhere the times alone."""
    now = datetime.now(UTC)
    for name in _TIMES:
        moment = getattr(status, name)
        if moment is not None:
            state.out.fact(name, _moment(moment, now) if sys.stdout.isatty() else str(details[name]))
    if status.started_at is not None and status.ended_at is not None and sys.stdout.isatty():
        state.out.fact("ran for", show_duration(max(0.0, (status.ended_at - status.started_at).total_seconds())))


def _moment(moment: datetime, now: datetime) -> str:
    return f"{ago(moment, now):<14}{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def _show_progress(status: JobStatus) -> None:
    if status.progress is None and not status.message:
        return
    if status.progress is not None and sys.stdout.isatty():
        state.out.fact("progress", bar_line(status, shutil.get_terminal_size().columns - 14))
        return
    share = f"{status.progress:.0%}" if status.progress is not None else ""
    state.out.fact("progress", " ".join(filter(None, (share, status.message))))


def _show_sent(status: JobStatus) -> None:
    """Arguments and headers. Text instead of arguments says where they are."""
    if isinstance(status.arguments, str):
        state.out.fact("arguments", status.arguments)
    elif status.arguments is not None:
        state.out.fact("arguments", json_line(status.arguments))
    for name, value in (status.headers or {}).items():
        state.out.fact("header", f"{name}: {value}")


def _show_history(status: JobStatus) -> None:
    out, now = state.out, datetime.now(UTC)
    for entry in status.history:
        error = f"{entry.get('type')}: {entry.get('text', '')}"
        if sys.stdout.isatty():
            where = f" on {entry['worker']}" if entry.get("worker") else ""
            out.fact("failed", f"attempt {entry.get('attempt')}, {ago(as_time(entry.get('at')), now)}{where}")
            out.fact("", error, DEAD)
        else:
            out.fact("failed", f"attempt {entry.get('attempt')}: {error}")
    for entry in status.replays:
        when = as_time(entry.get("at"))
        at = f"{ago(when, now)} " if when is not None and sys.stdout.isatty() else ""
        out.fact("replayed", f"{at}by {entry.get('by') or '-'}: {entry.get('why') or '-'}")
    if status.traceback is not None:
        out.data("")
        show_traceback(status.traceback)


def show_traceback(text: str) -> None:
    """The frames as they are; on a terminal the places in them are faint and the error is red."""
    error = False
    for number, line in enumerate(text.rstrip().split("\n")):
        error = error or (number > 0 and not line.startswith(" ") and line != "")
        style = DEAD if error else FAINT if not line.startswith("    ") else ""
        state.out.data(state.out.paint(line, style), painted=True)
