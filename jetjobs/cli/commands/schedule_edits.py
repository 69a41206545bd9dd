"""`jetjobs schedules`: create, replace, delete, pause and resume schedules, or run one now."""

from __future__ import annotations

from typing import Annotated, cast

import typer

from jetjobs.admin.schedules import PutOptions
from jetjobs.app import JetJobs
from jetjobs.cli.commands.schedules import Cron, Every, Name, until
from jetjobs.cli.completion import schedule_names, task_names
from jetjobs.cli.exit_codes import DONE, REFUSED
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.options import (
    Arguments,
    Data,
    OtherQueue,
    Priority,
    Reason,
    Yes,
    optional,
    present,
    read_arguments,
    read_duration,
    read_time,
)
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.model.wire.validation import check_schedule_name

commands = typer.Typer()

Names = Annotated[list[str], typer.Argument(help="Names of schedules.", autocompletion=schedule_names)]


@commands.command()
async def run(name: Name, reason: Reason = "") -> None:
    """Enqueue a job of a schedule now. Its scheduled runs are not changed."""
    async with state.reader() as app:
        handle = await app.schedules.run_now(name, by=operator(), reason=reason)
    if state.out.as_json:
        state.out.json({"schedule": name, "id": handle.id, "queue": handle.queue, "task": handle.task})
    else:
        state.out.data(handle.id if state.out.quiet else f"{handle.id} enqueued on {handle.queue}")


@commands.command()
async def pause(names: Names, reason: Reason = "") -> None:
    """Pause schedules until they are resumed. They stay paused across deploys."""
    await _pause(names, reason, paused=True)


@commands.command()
async def resume(names: Names, reason: Reason = "") -> None:
    """Resume paused schedules with their next scheduled time."""
    await _pause(names, reason, paused=False)


async def _pause(names: list[str], reason: str, *, paused: bool) -> None:
    async with state.reader() as app:
        # All must exist, otherwise none is changed.
        before = {name: await app.schedules.get(name) for name in names}
        change = app.schedules.pause if paused else app.schedules.resume
        by = operator()
        found = [await change(name, by=by, reason=reason) for name in before]
        await _note_no_leader(app)
        now = await app.jetstream.server_clock.now()
    if state.out.as_json:
        state.out.json({"items": [info.as_dict() for info in found]})
        return
    for info in found:
        name = info.schedule.name
        if before[name].schedule.paused is paused:
            text = "was already paused" if paused else "was not paused"
        else:
            text = "paused" if paused else f"resumed, next {until(info.next, now)}"
        state.out.data(name if state.out.quiet else f"{name}  {text}")


@commands.command()
async def put(
    name: Name,
    task: Annotated[str, typer.Argument(help="Name of the task.", autocompletion=task_names)],
    arguments: Arguments = None,
    data: Data = None,
    cron: Cron = None,
    every: Every = None,
    tz: Annotated[
        str | None, typer.Option(help="Time zone of the cron expression. [default: UTC]", metavar="ZONE")
    ] = None,
    queue: OtherQueue = None,
    priority: Priority = None,
    start: Annotated[
        str | None, typer.Option(help="No scheduled time before this, ISO 8601 with a zone.", metavar="TIME")
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="No scheduled time after this, ISO 8601 with a zone.", metavar="TIME")
    ] = None,
    jitter: Annotated[
        str | None, typer.Option(help="Delay each run by a random time up to this: 30s.", metavar="DURATION")
    ] = None,
    misfire: Annotated[
        str | None,
        typer.Option(
            help="Which missed scheduled times still run: last, all or skip. [default: last]", metavar="POLICY"
        ),
    ] = None,
    overlap: Annotated[
        str | None,
        typer.Option(
            help="Whether to run while an earlier run is live: allow or skip. [default: allow]", metavar="POLICY"
        ),
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Create it paused.")] = False,
    revision: Annotated[
        int | None,
        typer.Option(help="Replace only this revision, as shown by `show`; 0 only creates.", min=0, metavar="N"),
    ] = None,
    reason: Reason = "",
) -> None:
    """Create or replace a schedule. Options that are not given have their defaults."""
    given = {
        "args": read_arguments(arguments or [], data),
        "cron": cron,
        "every": optional(read_duration, "--every", every),
        "tz": tz,
        "queue": queue,
        "priority": priority,
        "start": optional(read_time, "--start", start),
        "end": optional(read_time, "--end", end),
        "jitter": optional(read_duration, "--jitter", jitter),
        "misfire": misfire,
        "overlap": overlap,
        "paused": paused or None,
    }
    await _store(name, task, cast("PutOptions", present(given)), revision, reason)


async def _store(name: str, task: str, options: PutOptions, revision: int | None, reason: str) -> None:
    app = state.load_app()
    app.find(task)
    async with app:
        before = await app.jetstream.schedules.get(check_schedule_name(name))
        info = await app.schedules.put(name, task, revision=revision, by=operator(), reason=reason, **options)
        await _note_no_leader(app)
        now = await app.jetstream.server_clock.now()
    if state.out.as_json:
        state.out.json(info.as_dict())
    elif state.out.quiet:
        state.out.data(name)
    else:
        upcoming = "paused" if info.schedule.paused else f"next {until(info.next, now)}"
        if before is not None and before.schedule is not None and before.schedule.paused:
            upcoming += "" if info.schedule.paused else "; it was paused and is now on"
        state.out.data(f"{name}  stored as revision {info.revision}, {upcoming}")


@commands.command()
async def delete(
    names: Names,
    yes: Yes = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also delete schedules declared in code, for an app that is gone.")
    ] = False,
    reason: Reason = "",
) -> int:
    """Delete schedules. Jobs already enqueued by them stay."""
    async with state.reader() as app:
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            await app.schedules.find_to_delete(
                name, force=force
            )  # all must be deletable, otherwise none is deleted
        what = f"delete {f'schedule {wanted[0]}' if len(wanted) == 1 else f'{len(wanted)} schedules'}"
        if not await confirmed(what, yes=yes):
            return REFUSED
        for name in wanted:
            await app.schedules.delete(name, force=force, by=operator(), reason=reason)
    if state.out.as_json:
        state.out.json({"items": [{"name": name, "deleted": True} for name in wanted]})
        return DONE
    for name in wanted:
        state.out.data(name if state.out.quiet else f"{name}  deleted")
    return DONE


async def _note_no_leader(app: JetJobs) -> None:
    if not await app.schedules.has_leader():
        state.out.note(
            "no leader: this takes effect once a worker leads. Runs already placed, up to 60 s ahead, still fire"
        )
