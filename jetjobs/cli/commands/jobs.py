"""`jetjobs jobs`: list jobs, wait for them, cancel or reschedule them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from jetjobs.admin.changes.bulk_changes import SUCCESS
from jetjobs.admin.partial_ids import complete_id
from jetjobs.app import JetJobs
from jetjobs.cli.commands.matching_jobs import (
    All,
    Bulk,
    Change,
    DryRun,
    Since,
    State,
    Where,
    check_choice,
    read_query,
)
from jetjobs.cli.completion import priorities
from jetjobs.cli.exit_codes import DONE, FAILED
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.empty import next_step
from jetjobs.cli.terminal.options import (
    Cursor,
    JobQueue,
    JobTask,
    Limit,
    Reason,
    Yes,
    read_duration,
    read_time,
    stripped,
)
from jetjobs.cli.terminal.palette import faint, state_style
from jetjobs.cli.terminal.table import Look
from jetjobs.cli.terminal.text import json_line
from jetjobs.cli.terminal.waiting import explaining
from jetjobs.define.options import check_delay, check_moment
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import ConfigError, JobCancelled, JobFailed
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.views.job_changes import CancelAnswer, MoveAnswer
from jetjobs.model.views.job_query import LIVE, JobQuery
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.subjects import check_priority
from jetjobs.model.wire.validation import check_token

commands = typer.Typer()

Id = Annotated[
    str, typer.Argument(help="Id of the job, or its beginning or end: 6 characters or more.", callback=stripped)
]
Ids = Annotated[
    list[str] | None, typer.Argument(help="Ids of jobs, or their beginnings or ends.", callback=stripped)
]
_NO_JOBS = "no live jobs; enqueue one with `jetjobs enqueue TASK`; --state succeeded or dead lists ended ones"
_NO_MATCH = "no jobs match; `jetjobs jobs list` without options lists all live jobs"


@commands.command("list")
async def list_jobs(
    job_state: State = None,
    queue: JobQueue = None,
    task: JobTask = None,
    since: Since = None,
    where: Where = None,
    key: Annotated[
        str | None,
        typer.Option(help="Only jobs with this idempotency key, in any state, newest first.", metavar="KEY"),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> None:
    """List jobs by state, oldest first within each. Does not affect the jobs."""
    query = read_query(job_state, queue, task, since, where, key)
    async with state.reader() as app:
        page = await app.jobs.page(query, limit=limit, cursor=cursor)
        found = page.items or page.cursor or cursor or page.unknown or page.secret
        empty = "" if found else await next_step(app, _NO_JOBS if query == JobQuery() else _NO_MATCH)
    out = state.out
    if out.as_json:
        out.json(page.as_dict())
    else:
        # A name with a number sign is only for reading: no command accepts it as an id.
        items = [item for item in page.items if not out.quiet or is_id(item.status.id)]
        rows = [_row(item.status) for item in items]
        head = ["ID", "STATE", "QUEUE", "TASK", "ATTEMPT", "AGE", "WORKER"]
        look = Look(right=(4, 5), ids=0, styles={1: state_style, 6: faint})
        out.table(head, rows, shrink=(6, 3, 2), look=look)
        if empty:
            out.note(empty)
    for path in page.unknown:
        out.note(f"none of the {page.scanned:,} jobs scanned has {path}")
    for path in page.secret:
        out.note(f"{path} is secret: it cannot be searched, and jobs that have it are not listed")
    if page.cursor is not None:
        short = len(page.items) < limit
        scanned = f"scanned {page.scanned:,} messages so far; " if short else ""
        out.note(f"{scanned}more: --cursor {page.cursor}")


@commands.command()
async def wait(
    job_id: Id,
    queue: JobQueue = None,
    task: JobTask = None,
    wait_timeout: Annotated[
        str, typer.Option(help="How long to wait for the job to end.", metavar="DURATION")
    ] = "1h",
) -> int:
    """Wait until a job has ended and print its result. Exit code 1 if it is dead or cancelled, 7 on timeout."""
    check_names([job_id], queue, task)
    limit = read_duration("--wait-timeout", wait_timeout)
    async with state.reader() as app:
        job_id = await complete_id(app.jetstream, job_id, queue, task)
        handle = await app.job(job_id, queue=queue, task=task)
        try:
            async with explaining(app, handle):
                result = await handle.shown_result(limit)
        except (JobFailed, JobCancelled) as error:
            state.out.error(str(error), None, FAILED)
            return FAILED
    if state.out.as_json:
        state.out.json({"id": job_id, "state": "succeeded", "result": result})
    else:
        state.out.data(json_line(result))
    return DONE


@commands.command()
async def cancel(
    ids: Ids = None,
    all_matching: All = False,
    job_state: State = None,
    queue: JobQueue = None,
    task: JobTask = None,
    since: Since = None,
    where: Where = None,
    reason: Reason = "",
    wait_timeout: Annotated[
        str, typer.Option(help="How long to wait for a running job to end.", metavar="DURATION")
    ] = "10s",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Cancel jobs in any state and print the outcome for each. Safe to repeat. --all cancels by filter."""
    check_choice(ids, all_matching, dry_run, job_state, since, where)
    limit, by = read_duration("--wait-timeout", wait_timeout), operator()

    async def cancel_one(app: JetJobs, job_id: str, queue: str | None, task: str | None) -> CancelAnswer:
        return await app.jobs.cancel(job_id, queue=queue, task=task, by=by, reason=reason, timeout=limit)

    if not ids:
        query = read_query(job_state, queue, task, since, where)
        bulk = Bulk("cancel", "cancelled", LIVE, cancel_one, by, reason)
        return await bulk.run(query, dry_run=dry_run, yes=yes)
    return await _each(ids, queue, task, cancel_one)


@commands.command()
async def reschedule(
    ids: Ids = None,
    at: Annotated[str | None, typer.Option(help="Run at this time, ISO 8601 with a zone.", metavar="TIME")] = None,
    delay: Annotated[
        str | None, typer.Option(help="Run after this delay: 10s, 5m, 2h.", metavar="DURATION")
    ] = None,
    now: Annotated[bool, typer.Option("--now", help="Run immediately.")] = False,
    all_matching: All = False,
    job_state: State = None,
    queue: JobQueue = None,
    task: JobTask = None,
    since: Since = None,
    where: Where = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Run scheduled or retrying jobs at another time or now. --all reschedules by filter."""
    check_choice(ids, all_matching, dry_run, job_state, since, where)
    if (at is not None) + (delay is not None) + now != 1:
        raise ConfigError("give exactly one of --at, --delay and --now")
    wanted, by = None if now else _moment(at, delay), operator()

    async def move(app: JetJobs, job_id: str, queue: str | None, task: str | None) -> MoveAnswer:
        if wanted is None:
            return await app.jobs.run_now(job_id, queue=queue, task=task, by=by, reason=reason)
        if isinstance(wanted, datetime):
            return await app.jobs.reschedule(job_id, wanted, queue=queue, task=task, by=by, reason=reason)
        return await app.jobs.reschedule(job_id, delay=wanted, queue=queue, task=task, by=by, reason=reason)

    if not ids:
        query = read_query(job_state, queue, task, since, where)
        waiting = (JobState.SCHEDULED, JobState.RETRYING)
        bulk = Bulk("reschedule", "moved", waiting, move, by, reason)
        return await bulk.run(query, dry_run=dry_run, yes=yes)
    return await _each(ids, queue, task, move)


@commands.command()
async def priority(
    job_id: Id,
    lane: Annotated[
        str, typer.Argument(help="high, normal or low.", metavar="PRIORITY", autocompletion=priorities)
    ],
    queue: JobQueue = None,
    task: JobTask = None,
    reason: Reason = "",
) -> int:
    """Change the priority of a waiting job."""
    check_priority(lane)
    by = operator()

    async def move(app: JetJobs, job_id: str, queue: str | None, task: str | None) -> MoveAnswer:
        return await app.jobs.set_priority(job_id, lane, queue=queue, task=task, by=by, reason=reason)

    return await _each([job_id], queue, task, move)


# Parts


async def _each(
    ids: list[str],
    queue: str | None,
    task: str | None,
    change: Change,
) -> int:
    """Change each job and print the outcome; returns the exit code."""
    check_names(ids, queue, task)
    async with state.reader() as app:
        whole = dict.fromkeys([await complete_id(app.jetstream, job_id, queue, task) for job_id in ids])
        for job_id in whole:
            await app.jobs.locate(job_id, queue, task)  # all must exist, otherwise nothing is changed
        answers = [await change(app, job_id, queue, task) for job_id in whole]
    out = state.out
    if out.as_json:
        out.json({"items": [one.as_dict() for one in answers], "cursor": None})
    for one in answers:
        line = f"{one.job_id} {one.outcome}" + (f": {one.detail}" if one.detail else "")
        if out.quiet and one.outcome in SUCCESS:
            out.data(one.job_id)
        elif out.quiet:
            out.note(line)
        elif not out.as_json:
            out.data(line)
    return DONE if all(one.outcome in SUCCESS for one in answers) else FAILED


def check_names(ids: list[str], queue: str | None, task: str | None) -> None:
    """ConfigError for an invalid id, queue or task name."""
    for job_id in ids:
        if not is_id(job_id):
            raise ConfigError(
                f"invalid job id {job_id!r:.140}", hint="an id has 1 to 128 letters, digits, '-' or '_'"
            )
    for what, token in (("queue", queue), ("task", task)):
        if token is not None:
            check_token(what, token)


def _row(status: JobStatus) -> list[str]:
    since = status.ended_at or status.enqueued_at
    age = "-" if since is None else show_duration(max(0.0, (datetime.now(UTC) - since).total_seconds()))
    return [
        status.id,
        str(status.state),
        status.queue,
        status.task,
        str(status.attempt),
        age,
        status.worker or "-",
    ]


def _moment(at: str | None, delay: str | None) -> datetime | timedelta:
    if at is not None:
        moment = read_time("--at", at)
        check_moment("--at", moment)
        return moment
    lasting = read_duration("--delay", delay or "")
    check_delay(lasting)
    return lasting
