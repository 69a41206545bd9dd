"""`jetjobs schedules`: list and show schedules and their scheduled times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from jetjobs.admin.schedule_details import (
    local_time,
    next_times,
    schedule_details,
    times_as_dict,
    unstored_schedule,
)
from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.cli.completion import schedule_names
from jetjobs.cli.state import state
from jetjobs.cli.terminal.empty import next_step, or_empty
from jetjobs.cli.terminal.options import optional, read_duration
from jetjobs.cli.terminal.palette import late_style, state_style
from jetjobs.cli.terminal.table import Look
from jetjobs.cli.terminal.text import LONG_NAME, ago, json_line, shorten
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import ConfigError
from jetjobs.model.job import JobStatus
from jetjobs.model.schedule.cron import zone_of

commands = typer.Typer()

Name = Annotated[str, typer.Argument(help="Name of the schedule.", autocompletion=schedule_names)]
Cron = Annotated[str | None, typer.Option(help='Cron expression, such as "0 9 * * 1-5".', metavar="CRON")]
Every = Annotated[
    str | None, typer.Option(help="Interval instead of a cron expression: 30s, 5m, 1d.", metavar="DURATION")
]
HEAD = ["NAME", "STATE", "NEXT", "RULE", "LAST", "LATE", "MISSED", "TASK", "QUEUE"]
_LOOK = Look(right=(2, 4, 5, 6), styles={1: state_style, 5: late_style, 6: late_style})
_NAME = 20
"""Columns that a long name keeps on a terminal, so that state and next scheduled time remain."""
_NO_SCHEDULES = (
    "no schedules; declare one with task.cron(...) and start a worker, or create one with `jetjobs schedules put`"
)
_FACTS = ("rule", "tz", "task", "queue", "priority", "start", "end", "jitter", "misfire", "overlap")


@commands.command("list")
async def list_schedules() -> None:
    """List all schedules with their last and next run. Also shows lateness and missed runs."""
    async with state.reader() as app:
        found = await or_empty(app, app.schedules.list(), [])
        definitions = await or_empty(app, app.jetstream.schedules.all(), [])
        unreadable = [one.name for one in definitions if one.schedule is None]
        now = await app.jetstream.server_clock.now() if found else datetime.now(UTC)
        empty = "" if definitions else await next_step(app, _NO_SCHEDULES)
    if unreadable:
        named = ", ".join(shorten(name, LONG_NAME) for name in unreadable[:5])
        state.out.note(f"{len(unreadable)} cannot be read and are not planned: {named}")
    if state.out.as_json:
        state.out.json({"items": [info.as_dict() for info in found], "cursor": None})
        return
    state.out.table(HEAD, [_row(info, now) for info in found], shrink=(3, 7), least=_NAME, look=_LOOK)
    if empty:
        state.out.note(empty)


@commands.command()
async def show(name: Name) -> None:
    """Show one schedule with its rule and policies. Also shows its last job and the next five scheduled times."""
    async with state.reader() as app:
        found = await schedule_details(app, name)
    out, info, now = state.out, found.info, found.now
    if out.as_json:
        out.json(found.as_dict())
        return
    for key, value in _facts(info, now, found.job, found.started_late_s).items():
        out.data(f"{key:<12}{value}")
    for scheduled_time in found.upcoming:
        out.data(f"{'upcoming':<12}{local_time(scheduled_time, info.schedule.tz)}  {until(scheduled_time, now)}")


@commands.command("next")
async def next_scheduled_times(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the schedule; omit it with --cron or --every.", autocompletion=schedule_names
        ),
    ] = None,
    count: Annotated[int, typer.Option("-n", help="Number of scheduled times.", min=1, max=1000, metavar="N")] = 5,
    tz: Annotated[
        str | None,
        typer.Option(help="Time zone to show the times in. [default: the schedule's own]", metavar="ZONE"),
    ] = None,
    cron: Cron = None,
    every: Every = None,
) -> None:
    """Print the next scheduled times of a schedule. --cron or --every gives a rule instead."""
    rule_given = cron is not None or every is not None
    if rule_given == (name is not None):
        raise ConfigError("name a schedule, or give a rule with --cron or --every")
    if tz is not None:
        zone_of(tz)  # reports an unknown zone before connecting
    if rule_given:
        rule = {"cron": cron, "every": optional(read_duration, "--every", every), "tz": tz}
        schedule, now = unstored_schedule(rule), datetime.now(UTC)
    else:
        assert name is not None
        async with state.reader() as app:
            schedule = (await app.schedules.get(name)).schedule
            now = await app.jetstream.server_clock.now()
    shown = tz or schedule.tz
    scheduled_times = next_times(schedule, now, count)
    out = state.out
    if out.as_json:
        out.json(times_as_dict(name, shown, scheduled_times))
        return
    zone = zone_of(shown)
    rows = [
        [
            local_time(scheduled_time, shown),
            until(scheduled_time, now).removeprefix("in "),
            f"{scheduled_time.astimezone(zone):%a}",
            shown,
        ]
        for scheduled_time in scheduled_times
    ]
    out.table(["SCHEDULED", "IN", "DAY", "ZONE"], rows)
    if schedule.paused:
        out.note("the schedule is paused: these times apply once it is resumed")
    if len(scheduled_times) < count:
        out.note("no further scheduled times: the schedule ends")


# Parts


def _late(info: ScheduleInfo) -> str:
    return show_duration(info.late) if info.late >= timedelta(seconds=1) else "-"


def _row(info: ScheduleInfo, now: datetime) -> list[str]:
    return [
        info.schedule.name,
        info.state,
        until(info.next, now),
        info.schedule.rule_text,
        ago(info.last, now),
        _late(info),
        f"{info.missed:,}",
        info.schedule.task,
        info.schedule.queue,
    ]


def _facts(info: ScheduleInfo, now: datetime, job: JobStatus | None, late_s: float | None) -> dict[str, str]:
    details, schedule = info.as_dict(), info.schedule
    details["rule"] = f"cron {schedule.cron}" if schedule.cron is not None else schedule.rule_text
    details["jitter"] = show_duration(schedule.jitter.total_seconds()) if schedule.jitter else None
    shown = {"name": schedule.name, "state": info.state}
    shown |= {key: str(details[key]) for key in _FACTS if details[key] is not None}
    shown["arguments"] = json_line(details["args"])
    shown["declared by"] = f"app {schedule.declared_by}" if schedule.declared_by else "-"
    shown["revision"] = str(info.revision) if info.planned_by == info.revision else _not_planned_yet(info)
    shown["last"] = f"{local_time(info.last, schedule.tz)}  {ago(info.last, now)}" if info.last else "-"
    if info.last_job is not None:
        started = "" if late_s is None else f", started {show_duration(late_s)} late"
        ended = f"{job.state}{started}" if job is not None else "record expired"
        shown["last job"] = f"{info.last_job}  {ended}"
    shown["late"] = _late(info)
    shown["missed"] = f"{info.missed:,}"
    return shown


def _not_planned_yet(info: ScheduleInfo) -> str:
    planned = f"planned with revision {info.planned_by}" if info.planned_by is not None else "not planned yet"
    return f"{info.revision}, {planned}: waiting for a leader"


def until(scheduled_time: datetime | None, now: datetime) -> str:
    """How long until a scheduled time; `now` if it has passed since it was computed."""
    if scheduled_time is None:
        return "-"
    seconds = (scheduled_time - now).total_seconds()
    return f"in {show_duration(seconds)}" if seconds > 0 else "now"
