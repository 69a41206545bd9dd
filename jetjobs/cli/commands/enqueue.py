"""`jetjobs enqueue`: enqueue a job from the shell, checked against the task's signature."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, cast

import typer

from jetjobs.app import JetJobs
from jetjobs.cli.completion import task_names
from jetjobs.cli.exit_codes import DONE, FAILED
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import (
    Arguments,
    Data,
    OtherQueue,
    Priority,
    optional,
    present,
    read_arguments,
    read_duration,
    read_time,
)
from jetjobs.cli.terminal.progress import showing
from jetjobs.cli.terminal.text import json_line
from jetjobs.cli.terminal.waiting import explaining
from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import JobFailed

commands = typer.Typer()


@commands.command()
async def enqueue(
    task: Annotated[str, typer.Argument(help="Name of the task.", autocompletion=task_names)],
    arguments: Arguments = None,
    data: Data = None,
    queue: OtherQueue = None,
    priority: Priority = None,
    delay: Annotated[
        str | None, typer.Option(help="Run after this delay: 10s, 5m, 2h.", metavar="DURATION")
    ] = None,
    at: Annotated[str | None, typer.Option(help="Run at this time, ISO 8601 with a zone.", metavar="TIME")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: at most one live job has it.", metavar="KEY")
    ] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", help="Id of the job. [default: generated]", metavar="ID")
    ] = None,
    callback: Annotated[
        str | None, typer.Option(help="Call this URL when the job has ended: a webhook.", metavar="URL")
    ] = None,
    count: Annotated[int, typer.Option("-n", help="Number of copies.", min=1, max=1_000_000, metavar="N")] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False,
    wait_for: Annotated[
        str, typer.Option("--wait-timeout", help="How long to wait for the job to end.", metavar="DURATION")
    ] = "30s",
) -> int:
    """Enqueue a job; with --wait, print its result."""
    if count > 1 and (wait or key or job_id):
        raise typer.BadParameter("-n cannot be combined with --wait, --key or --id")
    given = {
        "queue": queue,
        "priority": priority,
        "key": key,
        "job_id": job_id,
        "callback": callback,
        "delay": optional(read_duration, "--delay", delay),
        "run_at": optional(read_time, "--at", at),
    }
    options = cast("EnqueueOptions", present(given))
    values = read_arguments(arguments or [], data)
    limit = read_duration("--wait-timeout", wait_for)
    app = state.load_app()
    found = app.find(task)
    request = found.options(**options).bind(**values)
    async with app:
        if count > 1:
            report = await app.enqueue_many([request] * count)
            report.raise_for_refused()
            _show_many([handle.id for handle in report.stored], request.options.get("queue", found.queue))
            return DONE
        handle = await found.send(request)
        if wait:
            return await _wait(app, handle, limit)
        _show_stored(handle)
        return DONE


def _show_many(ids: list[str], queue: str) -> None:
    if state.out.as_json:
        state.out.json({"stored": len(ids), "queue": queue})
    elif state.out.quiet:
        for job_id in ids:
            state.out.data(job_id)
    else:
        state.out.data(f"{len(ids):,} jobs enqueued")


def _show_stored(handle: JobHandle[Any]) -> None:
    if state.out.as_json:
        state.out.json(
            {"id": handle.id, "queue": handle.queue, "task": handle.task, "duplicate": handle.duplicate}
        )
    elif state.out.quiet:
        state.out.data(handle.id)
    else:
        state.out.data(f"{handle.id} {'already exists' if handle.duplicate else 'enqueued'} on {handle.queue}")


async def _wait(app: JetJobs, handle: JobHandle[Any], limit: timedelta) -> int:
    try:
        async with showing(handle), explaining(app, handle):
            plain = await handle.shown_result(limit)
    except JobFailed as error:
        if state.out.as_json:
            failure = {
                "reason": error.reason,
                "type": error.error_type,
                "text": error.text,
                "traceback": error.traceback,
            }
            state.out.json({"id": handle.id, "state": "dead", "error": failure})
        else:
            line = f"{handle.id} dead ({error.reason}): {error.error_type}: {error.text}"
            state.out.data(handle.id if state.out.quiet else line)
            if error.traceback:
                state.out.note(error.traceback.rstrip())
        return FAILED
    status = await handle.status()
    took = (status.ended_at - status.started_at).total_seconds() if status.ended_at and status.started_at else 0.0
    if state.out.as_json:
        state.out.json({"id": handle.id, "state": "succeeded", "run_s": took, "result": plain})
    elif state.out.quiet:
        state.out.data(handle.id)
    else:
        state.out.data(f"{handle.id} succeeded in {show_duration(took)} → {json_line(plain)}")
    return DONE
