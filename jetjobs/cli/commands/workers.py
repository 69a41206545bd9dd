"""`jetjobs workers`: list and show running workers, quiet and stop them."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.completion import queue_names, worker_names
from jetjobs.cli.exit_codes import DONE, FAILED, REFUSED
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.options import Reason, Yes
from jetjobs.cli.terminal.palette import state_style
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.cli.terminal.table import Look
from jetjobs.cli.terminal.text import one_line
from jetjobs.doctor.finding import many
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import ConfigError, QueueNotFound, WorkerNotFound, WorkerSilent
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.model.wire.validation import check_token

commands = typer.Typer()

Names = Annotated[
    list[str] | None,
    typer.Argument(help="Workers, as shown by `workers list`.", autocompletion=worker_names),
]
All = Annotated[bool, typer.Option("--all", help="All workers instead of named ones.")]
HEAD = ["WORKER", "PHASE", "QUEUES", "SLOTS", "LAG", "MEMORY", "UP", "HOST", "PID", "VERSION"]


@commands.command("list")
async def list_workers(
    queue: Annotated[
        str | None,
        typer.Option(
            "-q",
            "--queue",
            help="Only workers that take jobs of this queue.",
            metavar="QUEUE",
            autocompletion=queue_names,
        ),
    ] = None,
) -> None:
    """List running workers. A stopped worker disappears at once, a crashed one within 15 s."""
    if queue is not None:
        check_token("queue", queue)
    async with state.reader() as app:
        found = await app.workers.list(queue)
        if queue is not None and not found and queue not in await app.queues.names():
            raise QueueNotFound(f"queue {queue!r} does not exist", hint="list queues with `jetjobs queues list`")
    if state.out.as_json:
        state.out.json({"items": [record.summary() for record in found], "cursor": None})
        return
    look = Look(right=(3, 4, 5, 6, 8), styles={1: state_style})
    state.out.table(HEAD, [_row(record) for record in found], look=look)
    if not found:
        of_queue = f" for queue {queue!r}" if queue is not None else ""
        state.out.note(f"no running workers{of_queue}; start one with `jetjobs worker`")


def _row(record: WorkerRecord) -> list[str]:
    return [
        record.key,
        record.phase,
        ",".join(sorted(record.queues)),
        f"{record.busy}/{record.total}",
        show_duration(record.lag),
        _megabytes(record),
        _age(record.started_at),
        record.host,
        str(record.pid),
        record.version,
    ]


def _age(since: datetime | None) -> str:
    return show_duration(timedelta(0) if since is None else max(timedelta(0), datetime.now(UTC) - since))


@commands.command()
async def show(
    name: Annotated[str, typer.Argument(help="Name of the worker.", autocompletion=worker_names)],
) -> None:
    """Show one worker: its slots, tasks and running jobs."""
    async with state.reader() as app:
        record = await app.workers.get(name)
    out = state.out
    if out.as_json:
        out.json(record.as_dict())
        return
    facts = {
        "worker": record.key,
        "name": record.name,
        "phase": record.phase,
        "host": f"{record.host}, pid {record.pid}",
        "version": f"jetjobs {record.version}, Python {record.python}",
        "up": _age(record.started_at),
        "seen": _age(record.seen_at) + " ago",
        "slots": f"{record.busy}/{record.total}",
        "lease": show_duration(record.lease) if record.lease else "unknown",
        "lag": show_duration(record.lag),
        "memory": _megabytes(record),
    }
    for key, value in facts.items():
        out.data(f"{key:<10}{one_line(value, None)}")
    for reason in record.refused:
        out.data(f"{'refused':<10}{one_line(reason, None)}")
    for queue, slots in sorted(record.queues.items()):
        out.data(f"{'queue':<10}{queue} {slots.busy}/{slots.total}")
    for task, digest in sorted(record.tasks.items()):
        out.data(f"{'task':<10}{one_line(f'{task} {digest}', None)}")
    for job in record.running:
        what = f"{job.id} {job.task} for {_age(job.since)}"
        out.data(f"{'running':<10}{one_line(what, None)}")
    if record.busy > len(record.running) > 0:
        out.data(f"{'':<10}and {record.busy - len(record.running)} more")


@commands.command()
async def quiet(names: Names = None, all_workers: All = False, reason: Reason = "", yes: Yes = False) -> int:
    """Stop taking new jobs on workers. They finish their running jobs and stay until they are stopped."""
    return await _send_all("quiet", names, reason, all_workers=all_workers, yes=yes)


@commands.command()
async def stop(
    names: Names = None,
    all_workers: All = False,
    now: Annotated[
        bool, typer.Option("--now", help="Release running jobs immediately instead of waiting for them.")
    ] = False,
    reason: Reason = "",
    yes: Yes = False,
) -> int:
    """Stop workers gracefully, as SIGTERM does. A process supervisor may start them again."""
    return await _send_all("stop", names, reason, all_workers=all_workers, yes=yes, now=now)


async def _send_all(
    word: str, names: list[str] | None, reason: str, *, all_workers: bool, yes: bool, now: bool = False
) -> int:
    """Send a command to workers; returns the exit code. A silent worker does not hold up the others."""
    if bool(names) == all_workers:
        raise ConfigError("name workers or use --all")
    async with state.reader() as app:
        if all_workers:
            chosen = await app.workers.list()
        else:
            chosen = [await app.workers.get(name) for name in dict.fromkeys(names or [])]
        what = f"{word} {many(len(chosen), 'worker')}"
        if all_workers and chosen and not await confirmed(what, yes=yes):
            return REFUSED
        answers = await asyncio.gather(*(_send(app, record.key, word, reason, now) for record in chosen))
    if state.out.as_json:
        state.out.json({"items": answers})
    for answer in answers:
        if not answer["ok"]:
            state.out.note(one_line(f"{answer['worker']}: {answer.get('error', 'no reason given')}", None))
        elif state.out.quiet:
            state.out.data(answer["worker"])
        elif not state.out.as_json:
            phase = "stopping" if word == "stop" else str(answer.get("phase", "ok"))
            state.out.data(f"{answer['worker']}  {one_line(phase)}")
    return DONE if all(answer["ok"] for answer in answers) else FAILED


async def _send(app: JetJobs, key: str, word: str, reason: str, now: bool) -> dict[str, Any]:
    try:
        if word == "stop":
            answer = await app.workers.stop(key, now=now, by=operator(), reason=reason)
        else:
            answer = await app.workers.quiet(key, by=operator(), reason=reason)
    except (WorkerNotFound, WorkerSilent) as error:
        return {"worker": key, "ok": False, "error": str(error)}
    return {"worker": key, "ok": bool(answer.get("ok")), **answer}


def _megabytes(record: WorkerRecord) -> str:
    return f"{record.memory_bytes / 1_000_000:.0f} MB"
