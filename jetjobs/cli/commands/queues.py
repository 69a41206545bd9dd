"""`jetjobs queues`: counts and rates of queues; pause, resume, purge and delete them."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from jetjobs.cli.completion import queue_names
from jetjobs.cli.exit_codes import DONE, REFUSED
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.empty import NOT_SET_UP
from jetjobs.cli.terminal.options import Reason, Yes, optional, read_duration
from jetjobs.cli.terminal.palette import dead_style, late_style, long_wait, state_style
from jetjobs.cli.terminal.progress import progress
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.cli.terminal.table import Look
from jetjobs.cli.terminal.text import one_line, rate
from jetjobs.doctor.finding import many
from jetjobs.model.durations import show_duration
from jetjobs.model.public import json_value
from jetjobs.model.views.queue_info import QueueState

commands = typer.Typer()

Name = Annotated[str, typer.Argument(help="Name of the queue.", autocompletion=queue_names)]
Names = Annotated[list[str], typer.Argument(help="Names of queues.", autocompletion=queue_names)]
HEAD = (
    "QUEUE", "STATE", "QUEUED", "RUNNING", "SCHEDULED", "RETRYING", "DEAD", "OLDEST", "IN/s", "OUT/s", "WORKERS",
    "SLOTS",
)  # fmt: skip
_LOOK = Look(right=range(2, len(HEAD)), styles={1: state_style, 5: late_style, 6: dead_style, 7: long_wait})


@commands.command("list")
async def list_queues() -> None:
    """List all queues with their counts and rates."""
    async with state.reader() as app:
        found = await app.queues.list()
    if state.out.as_json:
        state.out.json({"items": [queue.summary() for queue in found], "cursor": None})
        return
    state.out.table(list(HEAD), [_row(queue) for queue in found], look=_LOOK)
    if not found:
        state.out.note(NOT_SET_UP)


@commands.command()
async def show(queue: Name) -> None:
    """Show one queue with its lanes and its pause. Estimates when a job enqueued now would start."""
    async with state.reader() as app:
        found = await app.queues.get(queue)
    out = state.out
    if out.as_json:
        out.json(found.as_dict())
        return
    for head, cell in zip(HEAD, _row(found), strict=True):
        out.data(f"{head.lower():<11}{cell}")
    starts = found.starts_in
    out.data(f"{'a new job':<11}{'starts in ' + show_duration(starts) if starts is not None else _why_not(found)}")
    if found.pause is not None:
        why = found.pause.reason or "no reason given"
        who = f"{why} ({found.pause.by or 'unknown'}, {json_value(found.pause.at) or 'unknown'})"
        out.data(f"{'paused':<11}{one_line(who, None)}")
    for lane in found.lanes:
        if lane.queued or lane.running or lane.waiting_pulls:
            counts = f"{lane.queued:,} queued, {lane.running:,} running, {many(lane.waiting_pulls, 'pull')} open"
            out.data(f"{'lane':<11}{lane.lane}: {counts}")


@commands.command()
async def pause(
    queues: Names,
    for_: Annotated[
        str | None,
        typer.Option(
            "--for", help="Resume automatically after this time. [default: until resumed]", metavar="DURATION"
        ),
    ] = None,
    reason: Reason = "",
) -> None:
    """Stop starting jobs of a queue. Running jobs finish, and jobs can still be enqueued."""
    lasting = optional(read_duration, "--for", for_)
    async with state.reader() as app:
        for name in queues:
            await app.queues.get(name, rates_over=0)  # all must exist, otherwise none is paused
        found = [await app.queues.pause(name, for_=lasting, reason=reason, by=operator()) for name in queues]
    if state.out.as_json:
        state.out.json({"items": [queue.as_dict() for queue in found]})
        return
    for queue in found:
        if state.out.quiet:
            state.out.data(queue.queue)
            continue
        state.out.data(f"{queue.queue}  {_state(queue)}, {queue.running} still running, {queue.queued:,} queued")


@commands.command()
async def resume(queues: Names, reason: Reason = "") -> None:
    """Start jobs of paused queues again."""
    async with state.reader() as app:
        for name in queues:
            await app.queues.get(name, rates_over=0)
        by = operator()
        resumed = {name: await app.queues.resume(name, by=by, reason=reason) for name in queues}
    if state.out.as_json:
        state.out.json({"items": [{"queue": name, "resumed": done} for name, done in resumed.items()]})
        return
    for name, done in resumed.items():
        state.out.data(name if state.out.quiet else f"{name}  {'resumed' if done else 'was not paused'}")


@commands.command()
async def purge(
    queue: Name,
    scheduled: Annotated[
        bool, typer.Option("--scheduled", help="Also delete scheduled and retrying jobs.")
    ] = False,
    reason: Reason = "",
    yes: Yes = False,
) -> int:
    """Permanently delete the waiting jobs of a queue. Running jobs and dead letters stay."""
    async with state.reader() as app:
        found = await app.queues.get(queue, rates_over=0)
        total = found.queued + (found.scheduled + found.retrying if scheduled else 0)
        what = f"permanently delete {many(total)} of queue {queue}"
        if not await confirmed(what, yes=yes, word=queue):
            return REFUSED
        with progress("deleted", found.queued) as step:
            by = operator()
            purged = await app.queues.purge(queue, scheduled=scheduled, by=by, reason=reason, step=step)
    if state.out.as_json:
        state.out.json({"queue": queue, **purged.as_dict()})
    elif state.out.quiet:
        state.out.data(queue)
    else:
        more = f", {purged.scheduled:,} scheduled or retrying" if scheduled else ""
        state.out.data(f"{many(purged.queued, 'queued job')} deleted{more}")
    return DONE


@commands.command()
async def delete(
    queue: Name,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete its jobs and dead letters, and if workers use it.")
    ] = False,
    reason: Reason = "",
) -> None:
    """Permanently delete a queue that is no longer used.

    Its lanes and done records are deleted with it. Refused while it holds jobs or dead letters, or
    workers or schedules use it.
    """
    async with state.reader() as app:
        found = await app.queues.delete(queue, force=force, by=operator(), reason=reason)
    jobs = found.queued + found.running + found.scheduled + found.retrying
    if state.out.as_json:
        state.out.json({"queue": queue, "jobs": jobs, "dead": found.dead})
    elif state.out.quiet:
        state.out.data(queue)
    else:
        lost = f" with {many(jobs)} and {many(found.dead, 'dead letter')}" if jobs or found.dead else ""
        state.out.data(f"queue {queue} deleted{lost}")


# Parts


def _row(queue: QueueState) -> list[str]:
    return [
        queue.queue,
        _state(queue),
        f"{queue.queued:,}",
        f"{queue.running:,}",
        f"{queue.scheduled:,}",
        f"{queue.retrying:,}",
        f"{queue.dead:,}",
        "-" if queue.oldest is None else show_duration(queue.oldest),
        rate(queue.in_per_s),
        rate(queue.out_per_s),
        str(queue.workers),
        f"{queue.busy}/{queue.slots}",
    ]


def _state(queue: QueueState) -> str:
    """The activity, and for how long a pause lasts."""
    until = queue.pause.until if queue.pause is not None else None
    return queue.activity + (f" {show_duration(max(timedelta(0), until - queue.at))}" if until else "")


def _why_not(queue: QueueState) -> str:
    if not queue.workers:
        return "waits: no worker takes jobs of this queue"
    if queue.pause is not None:
        return "waits until the queue is resumed"
    return "unknown: no job ended during the measurement"
