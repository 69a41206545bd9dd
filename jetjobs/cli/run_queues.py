"""What the `queues` commands do."""

from __future__ import annotations

import getpass
import os
import socket
import sys
from datetime import UTC, datetime, timedelta

from jetjobs.app import JetJobs
from jetjobs.cli.output import DONE, REFUSED, one_line
from jetjobs.cli.progress import ask_text, progress
from jetjobs.cli.state import state
from jetjobs.doctor.finding import many
from jetjobs.model.durations import parse_duration, show_duration
from jetjobs.model.errors import ConfigError
from jetjobs.model.presence import iso
from jetjobs.model.queue import QueueState, Spread

HEAD = (
    "QUEUE", "STATE", "QUEUED", "RUNNING", "SCHEDULED", "RETRYING", "DEAD", "OLDEST", "IN/s", "OUT/s", "WORKERS",
    "SLOTS",
)  # fmt: skip


async def list_command() -> None:
    async with _reader() as app:
        found = await app.queues.list()
    if state.out.as_json:
        state.out.json({"items": [queue.summary() for queue in found], "cursor": None})
        return
    state.out.table(list(HEAD), [_row(queue) for queue in found])
    if not found:
        state.out.note("there are no queues: jetjobs setup apply makes those of your tasks")


def _row(queue: QueueState) -> list[str]:
    return [
        queue.queue,
        _state(queue),
        f"{queue.queued:,}",
        f"{queue.running:,}",
        f"{queue.scheduled:,}" if queue.retrying_exact else f"≤{queue.scheduled:,}",
        f"{queue.retrying:,}" if queue.retrying_exact else f"≥{queue.retrying:,}",
        f"{queue.dead:,}",
        "-" if queue.oldest_s is None else show_duration(queue.oldest_s),
        _rate(queue.in_per_s),
        _rate(queue.out_per_s),
        str(queue.workers),
        f"{queue.busy}/{queue.slots}",
    ]


async def show_command(name: str) -> None:
    async with _reader() as app:
        queue = await app.queues.get(name)
    out = state.out
    if out.as_json:
        out.json(queue.details())
        return
    for head, cell in zip(HEAD, _row(queue), strict=True):
        out.data(f"{head.lower():<11}{cell}")
    starts = queue.starts_in_s
    out.data(f"{'a new job':<11}{'starts in ' + show_duration(starts) if starts is not None else _why_not(queue)}")
    if queue.pause is not None:
        why = queue.pause.reason or "no reason given"
        who = f"{why} ({queue.pause.by or 'unknown'}, {iso(queue.pause.at) or 'unknown'})"
        out.data(f"{'paused':<11}{one_line(who, None)}")
    for lane in queue.lanes:
        if lane.queued or lane.running or lane.waiting_pulls:
            counts = f"{lane.queued:,} queued, {lane.running:,} running, {many(lane.waiting_pulls, 'pull')} open"
            out.data(f"{'lane':<11}{lane.lane}: {counts}")


async def pause_command(names: list[str], for_: str | None, reason: str) -> None:
    lasting = None if for_ is None else _duration("--for", for_)
    async with _reader() as app:
        for name in names:
            await app.queues.get(name, rates_s=0)  # all of them are there, or none is paused
        found = [
            await app.queues.pause(name, for_=lasting, reason=reason, by=f"{_user()}@{socket.gethostname()}")
            for name in names
        ]
    if state.out.as_json:
        state.out.json({"items": [queue.details() for queue in found]})
        return
    for queue in found:
        if state.out.quiet:
            state.out.data(queue.queue)
            continue
        state.out.data(f"{queue.queue}  {_state(queue)}, {queue.running} still running, {queue.queued:,} wait")


async def resume_command(names: list[str]) -> None:
    async with _reader() as app:
        for name in names:
            await app.queues.get(name, rates_s=0)
        resumed = {name: await app.queues.resume(name) for name in names}
    if state.out.as_json:
        state.out.json({"items": [{"queue": name, "resumed": done} for name, done in resumed.items()]})
        return
    for name, done in resumed.items():
        state.out.data(name if state.out.quiet else f"{name}  {'resumed' if done else 'was not paused'}")


async def purge_command(name: str, *, scheduled: bool, yes: bool) -> int:
    async with _reader() as app:
        queue = await app.queues.get(name, rates_s=0)
        total = queue.queued + (queue.later if scheduled else 0)
        if not yes:
            what = f"delete {many(total)} of queue {name} for good"
            if not sys.stdin.isatty():
                state.out.error(f"this would {what}", "say --yes", REFUSED)
                return REFUSED
            if await ask_text(f"This will {what}. Type the queue's name to go on: ") != name:
                state.out.note("Nothing changed.")
                return REFUSED
        with progress("deleted", queue.queued) as step:

            def steps(count: int) -> None:
                for _ in range(count):
                    step()

            purged = await app.queues.purge(name, scheduled=scheduled, step=steps)
    if state.out.as_json:
        state.out.json({"queue": name, "purged": purged.queued, "purged_scheduled": purged.scheduled})
    elif state.out.quiet:
        state.out.data(name)
    else:
        more = f", {purged.scheduled:,} scheduled" if scheduled else ""
        state.out.data(f"{many(purged.queued, 'queued job')} deleted{more}")
    return DONE


async def stats_command(name: str, since: str) -> None:
    lasting = _duration("--since", since)
    async with _reader() as app:
        found = await app.queues.stats(name, since=lasting)
    out = state.out
    if out.as_json:
        tasks = [task.to_json() for task in found.tasks]
        out.json({"queue": name, "since": iso(found.since), "complete": found.complete, "items": tasks})
        return
    head = ["TASK", "SUCCEEDED", "DEAD", "WAIT p50", "p95", "max", "RUN p50", "p95", "max"]
    rows = [[t.task, f"{t.succeeded:,}", f"{t.dead:,}", *_times(t.wait), *_times(t.run)] for t in found.tasks]
    out.table(head, rows)
    if not found.complete:
        out.note("more ended than is looked at: these are the newest 10,000")


# Parts


def _reader() -> JetJobs:
    """An app without tasks: reading needs the server only."""
    return JetJobs("jetjobs-cli", settings=state.settings().settings)


def _state(queue: QueueState) -> str:
    if queue.pause is None:
        return "running"
    until = queue.pause.until
    return f"paused {show_duration(max(0.0, until - queue.at))}" if until else "paused"


def _why_not(queue: QueueState) -> str:
    if not queue.workers:
        return "waits for a worker: none works on this queue"
    if queue.pause is not None:
        return "waits for jetjobs queues resume"
    return "unknown: nothing has ended while we looked"


def _rate(value: float | None) -> str:
    return "-" if value is None else "0" if not value else f"{value:,.1f}"


def _times(times: Spread | None) -> list[str]:
    return ["-"] * 3 if times is None else [show_duration(value) for value in times]


def _duration(option: str, text: str) -> timedelta:
    try:
        lasting = parse_duration(text)
        _ = datetime.now(UTC) + lasting
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"{option}: {error}") from None
    return lasting


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"uid {os.getuid()}"
