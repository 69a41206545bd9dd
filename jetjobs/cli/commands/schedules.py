"""`jetjobs schedules`: what runs by the calendar, and when next."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.app import JetJobs
from jetjobs.cli.completion import schedule_names
from jetjobs.cli.state import state
from jetjobs.cli.terminal.options import optional, present, read_duration
from jetjobs.cli.terminal.output import LONG_NAME, json_line, shorten
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import ConfigError, DefinitionError, JobNotFound, ResultError
from jetjobs.model.job import JobStatus
from jetjobs.model.schedule.cron import zone_of
from jetjobs.model.schedule.schedule import Schedule, make_schedule

commands = typer.Typer()

Name = Annotated[str, typer.Argument(help="Name of the schedule.", autocompletion=schedule_names)]
Cron = Annotated[str | None, typer.Option(help='Cron expression, as in "0 9 * * 1-5".')]
Every = Annotated[str | None, typer.Option(help="Interval instead of a cron expression: 30s, 5m, 1d.")]
HEAD = ["NAME", "STATE", "NEXT", "RULE", "LAST", "LATE", "MISSED", "TASK", "QUEUE"]
_NAME = 20
"""A long name is cut to so many columns of a terminal before state or next scheduled time are left out."""
_UPCOMING = 5
_FACTS = ("rule", "tz", "task", "queue", "priority", "start", "end", "jitter", "misfire", "overlap")


@commands.command("list")
async def list_schedules() -> None:
    """List all schedules: when each ran last and runs next, whether it is late, what was missed."""
    async with state.reader() as app:
        found = await app.schedules.list()
        unreadable = [one.name for one in await app.jetstream.schedules.all() if one.schedule is None]
        now = await app.jetstream.server_clock.now()
    if unreadable:
        named = ", ".join(shorten(name, LONG_NAME) for name in unreadable[:5])
        state.out.note(f"{len(unreadable)} cannot be read, and are not planned: {named}")
    if state.out.as_json:
        state.out.json({"items": [as_item(info) for info in found], "cursor": None})
        return
    state.out.table(HEAD, [_row(info, now) for info in found], shrink=(3, 7), least=_NAME)
    if not found and not unreadable:
        state.out.note("there are no schedules: declare one with task.cron(...), or jetjobs schedules put")


@commands.command()
async def show(name: Name) -> None:
    """Show one schedule: its rule and policies, the job of its last tick, the next five scheduled times."""
    async with state.reader() as app:
        info = await app.schedules.get(name)
        now = await app.jetstream.server_clock.now()
        job = await _last_job(app, info)
        scheduled_times = [] if info.schedule.paused else _slots(info.schedule, now, _UPCOMING)
    late_s = _started_late(info, job)
    out = state.out
    if out.as_json:
        more = {
            "last_job_state": str(job.state) if job is not None else None,
            "last_started_late_s": None if late_s is None else round(late_s, 3),
            "upcoming": [scheduled_time.isoformat() for scheduled_time in scheduled_times],
        }
        out.json({**as_item(info), **more})
        return
    for key, value in _facts(info, now, job, late_s).items():
        out.data(f"{key:<12}{value}")
    for scheduled_time in scheduled_times:
        out.data(f"{'upcoming':<12}{_local(scheduled_time, info.schedule.tz)}  {until(scheduled_time, now)}")


@commands.command("next")
async def next_scheduled_times(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of the schedule; none with --cron or --every.", autocompletion=schedule_names),
    ] = None,
    count: Annotated[int, typer.Option("-n", help="How many scheduled times.", min=1, max=1000)] = 5,
    tz: Annotated[
        str | None, typer.Option(help="Time zone to show them in. [default: the schedule's own]", metavar="ZONE")
    ] = None,
    cron: Cron = None,
    every: Every = None,
) -> None:
    """Print the next scheduled times of a schedule, or of a rule that you want to try out."""
    tried = cron is not None or every is not None
    if tried == (name is not None):
        raise ConfigError("name a schedule, or give --cron or --every to try a rule out")
    if tz is not None:
        zone_of(tz)  # a wrong one is told without a server
    if tried:
        schedule, now = _tried(cron, every, tz), datetime.now(UTC)
    else:
        assert name is not None
        async with state.reader() as app:
            schedule = (await app.schedules.get(name)).schedule
            now = await app.jetstream.server_clock.now()
    shown = tz or schedule.tz
    scheduled_times = _slots(schedule, now, count)
    out = state.out
    if out.as_json:
        items = [
            {"scheduled_time": scheduled_time.isoformat(), "local": _local(scheduled_time, shown)}
            for scheduled_time in scheduled_times
        ]
        out.json({"schedule": name, "tz": shown, "items": items})
        return
    zone = zone_of(shown)
    rows = [
        [
            _local(scheduled_time, shown),
            until(scheduled_time, now).removeprefix("in "),
            f"{scheduled_time.astimezone(zone):%a}",
            shown,
        ]
        for scheduled_time in scheduled_times
    ]
    out.table(["SCHEDULED", "IN", "DAY", "ZONE"], rows)
    if schedule.paused:
        out.note("it is paused: these would be its scheduled times")
    if len(scheduled_times) < count:
        out.note("there are no more scheduled times: its end is reached")


# Parts


def as_item(info: ScheduleInfo) -> dict[str, Any]:
    return {**info.as_dict(), "state": info.state}


def _row(info: ScheduleInfo, now: datetime) -> list[str]:
    return [
        info.schedule.name,
        info.state,
        until(info.next, now),
        info.schedule.rule_text,
        _from_now(info.last, now),
        show_duration(info.late_s) if info.late_s >= 1 else "-",
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
    shown["revision"] = str(info.revision) if info.planned_by == info.revision else _unseen(info)
    shown["last"] = f"{_local(info.last, schedule.tz)}  {_from_now(info.last, now)}" if info.last else "-"
    if info.last_job is not None:
        started = "" if late_s is None else f", started {show_duration(late_s)} late"
        ended = f"{job.state}{started}" if job is not None else "no record any more"
        shown["last job"] = f"{info.last_job}  {ended}"
    shown["late"] = show_duration(info.late_s) if info.late_s >= 1 else "-"
    shown["missed"] = f"{info.missed:,}"
    return shown


def _unseen(info: ScheduleInfo) -> str:
    planned = f"planned by {info.planned_by}" if info.planned_by is not None else "not planned yet"
    return f"definition {info.revision}, {planned}: waiting for a leader"


async def _last_job(app: JetJobs, info: ScheduleInfo) -> JobStatus | None:
    if info.last_job is None:
        return None
    try:
        return await app.jobs.get(info.last_job)
    except (JobNotFound, ResultError):
        return None  # its record has expired or cannot be read, or the task keeps none


def _started_late(info: ScheduleInfo, job: JobStatus | None) -> float | None:
    """How long after it was due the last tick began; None when that is not known."""
    if job is None or job.started_at is None or info.last is None:
        return None
    return max(0.0, (job.started_at - info.schedule.due(info.last)).total_seconds())


def _slots(schedule: Schedule, now: datetime, count: int) -> list[datetime]:
    found: list[datetime] = []
    scheduled_time = schedule.after(now)
    while scheduled_time is not None and len(found) < count:
        found.append(scheduled_time)
        scheduled_time = schedule.after(scheduled_time)
    return found


def _local(scheduled_time: datetime, tz: str) -> str:
    """By the clock of the zone, with its distance from UTC."""
    return scheduled_time.astimezone(zone_of(tz)).isoformat()


def _from_now(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "-"
    seconds = (moment - now).total_seconds()
    return f"in {show_duration(seconds)}" if seconds >= 0 else f"{show_duration(-seconds)} ago"


def until(scheduled_time: datetime | None, now: datetime) -> str:
    """The same for a scheduled time that was still to come when it was asked for: it may have come meanwhile."""
    return "now" if scheduled_time is not None and scheduled_time <= now else _from_now(scheduled_time, now)


def _tried(cron: str | None, every: str | None, tz: str | None) -> Schedule:
    """A schedule that is only looked at."""
    # With an interval the zone only says how scheduled times are shown.
    zone = tz if every is None else None
    rule = {"cron": cron, "every": optional(read_duration, "--every", every), "tz": zone}
    try:
        return make_schedule({"name": "tried", "task": "none", **present(rule)})
    except DefinitionError as error:
        raise ConfigError(str(error).removeprefix("schedule 'tried': "), hint=error.hint) from None
