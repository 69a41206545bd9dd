"""`jetjobs enqueue TASK k=v k:=json`: store a job from the shell, checked against the task's signature."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jetjobs.cli.completion import priorities, queue_names, task_names
from jetjobs.cli.output import FAILED, json_line
from jetjobs.cli.state import run_async, state
from jetjobs.model.reading import read_json

if TYPE_CHECKING:
    from datetime import timedelta

    from jetjobs.define.handle import JobHandle
    from jetjobs.define.options import EnqueueOptions


def add_to(tree: typer.Typer) -> None:
    tree.command("enqueue")(enqueue)


def enqueue(
    task: Annotated[str, typer.Argument(help="Name of the task.", autocompletion=task_names)],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="k=text or k:=json.", metavar="[k=v | k:=json]...")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="All arguments as JSON, @file, or - for standard input.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(help="Queue to use instead of the task's.", autocompletion=queue_names)
    ] = None,
    priority: Annotated[str | None, typer.Option(help="high, normal or low.", autocompletion=priorities)] = None,
    delay: Annotated[str | None, typer.Option(help="Run after this long: 10s, 5m, 2h.")] = None,
    at: Annotated[str | None, typer.Option(help="Run at this time, ISO 8601 with a zone.")] = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key.")] = None,
    job_id: Annotated[str | None, typer.Option("--id", help="Id of your own.")] = None,
    count: Annotated[int, typer.Option("-n", help="How many copies.", min=1, max=1_000_000)] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result.")] = False,
    wait_for: Annotated[str, typer.Option("--wait-timeout", help="How long to wait.")] = "30s",
) -> None:
    """Store a job, and with --wait print its result."""
    options = _options(queue=queue, priority=priority, delay=delay, at=at, key=key, job_id=job_id)
    if count > 1 and (wait or key or job_id):
        raise typer.BadParameter("-n goes without --wait, --key and --id")
    values = read_arguments(arguments or [], data)
    patience = _duration(wait_for)
    code = run_async(lambda: _enqueue(task, values, options, count, patience if wait else None))
    if code:
        raise typer.Exit(code)


async def _enqueue(
    name: str, values: dict[str, Any], options: EnqueueOptions, count: int, patience: timedelta | None
) -> int:
    app = state.load_app(None, state.settings())
    task = app.find(name)
    call = task.options(**options)
    request = call.bind(**values)
    async with app:
        if count > 1:
            report = await app.enqueue_many([request] * count)
            report.raise_for_refused()
            if state.out.as_json:
                state.out.json({"stored": len(report.stored), "queue": request.options.get("queue", task.queue)})
            elif state.out.quiet:
                for handle in report.stored:
                    state.out.data(handle.id)
            else:
                state.out.data(f"{len(report.stored):,} jobs enqueued")
            return 0
        handle = await task.send(request)
        if patience is None:
            _show_stored(handle)
            return 0
        return await _wait(handle, patience)


def _show_stored(handle: JobHandle[Any]) -> None:
    if state.out.as_json:
        state.out.json(
            {"id": handle.id, "queue": handle.queue, "task": handle.task, "duplicate": handle.duplicate}
        )
    elif state.out.quiet:
        state.out.data(handle.id)
    else:
        state.out.data(f"{handle.id} {'was there already' if handle.duplicate else 'enqueued'} on {handle.queue}")


async def _wait(handle: JobHandle[Any], patience: timedelta) -> int:
    from jetjobs.cli.bar import showing
    from jetjobs.model.durations import show_duration
    from jetjobs.model.errors import JobFailed

    try:
        async with showing(handle):
            plain = await handle.shown_result(patience)
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
    return 0


def read_arguments(pairs: list[str], data: str | None) -> dict[str, Any]:
    """A task's arguments as they stand on a command line."""
    values = _read_data(data) if data is not None else {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{pair!r} is no argument: write k=text or k:=json")
        if name.endswith(":"):
            try:
                values[name[:-1]] = read_json(text)
            except ValueError as error:
                raise typer.BadParameter(f"{pair!r}: {text!r} is no JSON: {error}") from None
        else:
            values[name] = text
    return values


def _read_data(data: str) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if data == "-" else Path(data[1:]).read_text() if data.startswith("@") else data
        values = read_json(text)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"--data: {error}") from None
    if not isinstance(values, dict):
        raise typer.BadParameter("--data must be one JSON object: the task's arguments by name")
    return values


def _options(
    *,
    queue: str | None,
    priority: str | None,
    delay: str | None,
    at: str | None,
    key: str | None,
    job_id: str | None,
) -> EnqueueOptions:
    from datetime import datetime

    given: dict[str, Any] = {"queue": queue, "priority": priority, "key": key, "job_id": job_id}
    if delay is not None:
        given["delay"] = _duration(delay)
    if at is not None:
        try:
            given["run_at"] = datetime.fromisoformat(at)
        except ValueError:
            raise typer.BadParameter(f"--at {at!r} is no ISO 8601 time, as in 2027-01-31T09:00:00+01:00") from None
    options: EnqueueOptions = {k: v for k, v in given.items() if v is not None}  # type: ignore[assignment]
    return options


def _duration(text: str) -> timedelta:
    from jetjobs.model.durations import parse_duration

    try:
        return parse_duration(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
