"""What the `schedules` commands do."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from jetjobs.app import JetJobs
from jetjobs.cli.output import DONE, LONG_NAME, REFUSED, json_line, shorten
from jetjobs.cli.progress import ask
from jetjobs.cli.state import state
from jetjobs.model.cron import zone_of
from jetjobs.model.durations import parse_duration, show_duration
from jetjobs.model.errors import ConfigError, DefinitionError, JobNotFound, ResultError
from jetjobs.model.job import JobStatus
from jetjobs.model.names import check_schedule_name
from jetjobs.model.schedule import Schedule, make_schedule
from jetjobs.schedules import PutOptions, ScheduleInfo

HEAD = ["NAME", "STATE", "NEXT", "RULE", "LAST", "LATE", "MISSED", "TASK", "QUEUE"]
_NAME = 20
"""A long name is cut to so many columns of a terminal before state or next slot are left out."""
_UPCOMING = 5
_FACTS = ("rule", "tz", "task", "queue", "priority", "start", "end", "anchor", "jitter", "misfire", "overlap")


async def list_command() -> None:
    async with _reader() as app:
        found = await app.schedules.list()
        unreadable = [one.name for one in await app.jetstream.schedules.all() if one.schedule is None]
        now = await app.jetstream.server_clock.now()
    if unreadable:
        named = ", ".join(shorten(name, LONG_NAME) for name in unreadable[:5])
        state.out.note(f"{len(unreadable)} cannot be read, and are not planned: {named}")
    if state.out.as_json:
        state.out.json({"items": [_item(info) for info in found], "cursor": None})
        return
    state.out.table(HEAD, [_row(info, now) for info in found], shrink=(3, 7), least=_NAME)
    if not found and not unreadable:
        state.out.note("there are no schedules: declare one with task.cron(...), or jetjobs schedules put")


async def show_command(name: str) -> None:
    async with _reader() as app:
        info = await app.schedules.get(name)
        now = await app.jetstream.server_clock.now()
        job = await _last_job(app, info)
        slots = [] if info.schedule.paused else _slots(info.schedule, now, _UPCOMING)
    late_s = _started_late(info, job)
    out = state.out
    if out.as_json:
        more = {
            "last_job_state": str(job.state) if job is not None else None,
            "last_started_late_s": None if late_s is None else round(late_s, 3),
            "upcoming": [slot.isoformat() for slot in slots],
        }
        out.json({**_item(info), **more})
        return
    for key, value in _facts(info, now, job, late_s).items():
        out.data(f"{key:<12}{value}")
    for slot in slots:
        out.data(f"{'upcoming':<12}{_local(slot, info.schedule.tz)}  {_until(slot, now)}")


async def next_command(
    name: str | None, count: int, tz: str | None, *, cron: str | None, every: str | None
) -> None:
    tried = cron is not None or every is not None
    if tried == (name is not None):
        raise ConfigError("name a schedule, or give --cron or --every to try a rule out")
    if tz is not None:
        zone_of(tz)  # a wrong one is told without a server
    if tried:
        schedule, now = _tried(cron, every, tz), datetime.now(UTC)
    else:
        assert name is not None
        async with _reader() as app:
            schedule = (await app.schedules.get(name)).schedule
            now = await app.jetstream.server_clock.now()
    shown = tz or schedule.tz
    slots = _slots(schedule, now, count)
    out = state.out
    if out.as_json:
        items = [{"slot": slot.isoformat(), "local": _local(slot, shown)} for slot in slots]
        out.json({"schedule": name, "tz": shown, "items": items})
        return
    zone = zone_of(shown)
    rows = [
        [_local(slot, shown), _until(slot, now).removeprefix("in "), f"{slot.astimezone(zone):%a}", shown]
        for slot in slots
    ]
    out.table(["SLOT", "IN", "DAY", "ZONE"], rows)
    if schedule.paused:
        out.note("it is paused: these would be its slots")
    if len(slots) < count:
        out.note("there are no more slots: its end is reached")


async def run_command(name: str) -> None:
    async with _reader() as app:
        handle = await app.schedules.run_now(name)
    if state.out.as_json:
        state.out.json({"schedule": name, "id": handle.id, "queue": handle.queue, "task": handle.task})
    else:
        state.out.data(handle.id if state.out.quiet else f"{handle.id} enqueued on {handle.queue}")


async def pause_command(names: list[str], *, paused: bool) -> None:
    async with _reader() as app:
        before = {name: await app.schedules.get(name) for name in names}  # all are there, or none is changed
        change = app.schedules.pause if paused else app.schedules.resume
        found = [await change(name) for name in before]
        now = await app.jetstream.server_clock.now()
    if state.out.as_json:
        state.out.json({"items": [_item(info) for info in found]})
        return
    for info in found:
        name = info.schedule.name
        if before[name].schedule.paused is paused:
            text = "was paused already" if paused else "was not paused"
        else:
            text = "paused" if paused else f"resumed, next {_until(info.next, now)}"
        state.out.data(name if state.out.quiet else f"{name}  {text}")


async def put_command(name: str, task: str, given: dict[str, Any], revision: int | None) -> None:
    options = _present(given)
    for key in ("every", "jitter"):
        if key in options:
            options[key] = _duration(f"--{key}", options[key])
    for key in ("anchor", "start", "end"):
        if key in options:
            options[key] = _moment(f"--{key}", options[key])
    app = state.load_app(None, state.settings())
    app.find(task)
    async with app:
        before = await app.jetstream.schedules.get(check_schedule_name(name))
        info = await app.schedules.put(name, task, revision=revision, **cast("PutOptions", options))
        now = await app.jetstream.server_clock.now()
    if state.out.as_json:
        state.out.json(_item(info))
    elif state.out.quiet:
        state.out.data(name)
    else:
        upcoming = "paused" if info.schedule.paused else f"next {_until(info.next, now)}"
        if before is not None and before.schedule is not None and before.schedule.paused:
            upcoming += "" if info.schedule.paused else "; it was paused, and is on now"
        state.out.data(f"{name}  stored as revision {info.revision}, {upcoming}")


async def delete_command(names: list[str], *, yes: bool, force: bool) -> int:
    async with _reader() as app:
        wanted = list(dict.fromkeys(names))
        for name in wanted:
            await app.schedules.find_to_delete(name, force=force)  # all can be deleted, or none is
        what = f"delete {f'schedule {wanted[0]}' if len(wanted) == 1 else f'{len(wanted)} schedules'}"
        if not yes:
            if not sys.stdin.isatty():
                state.out.error(f"this would {what}", "say --yes", REFUSED)
                return REFUSED
            if not await ask(f"{what}?"):
                state.out.note("Nothing changed.")
                return REFUSED
        for name in wanted:
            await app.schedules.delete(name, force=force)
    if state.out.as_json:
        state.out.json({"items": [{"name": name, "deleted": True} for name in wanted]})
        return DONE
    for name in wanted:
        state.out.data(name if state.out.quiet else f"{name}  deleted")
    return DONE


# Parts


def _reader() -> JetJobs:
    """An app without tasks: all but `put` needs the server only."""
    return JetJobs("jetjobs-cli", settings=state.settings().settings)


def _item(info: ScheduleInfo) -> dict[str, Any]:
    return {**info.as_dict(), "state": info.state}


def _row(info: ScheduleInfo, now: datetime) -> list[str]:
    return [
        info.schedule.name,
        info.state,
        _until(info.next, now),
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
    if schedule.misfire == "all":
        details["misfire"] = f"all, up to {schedule.misfire_limit}"
    shown = {"name": schedule.name, "state": info.state}
    shown |= {key: str(details[key]) for key in _FACTS if details[key] is not None}
    shown["arguments"] = json_line(details["args"])
    shown["declared by"] = f"app {schedule.declared_by}" if schedule.declared_by else "-"
    shown["revision"] = str(info.revision)
    shown["last"] = f"{_local(info.last, schedule.tz)}  {_from_now(info.last, now)}" if info.last else "-"
    if info.last_job is not None:
        started = "" if late_s is None else f", started {show_duration(late_s)} late"
        shown["last job"] = (
            f"{info.last_job}  {str(job.state) + started if job is not None else 'no record any more'}"
        )
    shown["late"] = show_duration(info.late_s) if info.late_s >= 1 else "-"
    shown["missed"] = f"{info.missed:,}"
    return shown


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
    slot = schedule.after(now)
    while slot is not None and len(found) < count:
        found.append(slot)
        slot = schedule.after(slot)
    return found


def _local(slot: datetime, tz: str) -> str:
    """By the clock of the zone, with its distance from UTC."""
    return slot.astimezone(zone_of(tz)).isoformat()


def _from_now(moment: datetime | None, now: datetime) -> str:
    if moment is None:
        return "-"
    seconds = (moment - now).total_seconds()
    return f"in {show_duration(seconds)}" if seconds >= 0 else f"{show_duration(-seconds)} ago"


def _until(slot: datetime | None, now: datetime) -> str:
    """The same for a slot that was still to come when it was asked for: it may have come meanwhile."""
    return "now" if slot is not None and slot <= now else _from_now(slot, now)


def _tried(cron: str | None, every: str | None, tz: str | None) -> Schedule:
    """A schedule that is only looked at."""
    # With an interval the zone only says how slots are shown.
    zone = tz if every is None else None
    rule = {"cron": cron, "every": None if every is None else _duration("--every", every), "tz": zone}
    try:
        return make_schedule({"name": "tried", "task": "none", **_present(rule)})
    except DefinitionError as error:
        raise ConfigError(str(error).removeprefix("schedule 'tried': "), hint=error.hint) from None


def _present(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _duration(option: str, text: str) -> timedelta:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}") from None


def _moment(option: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r} is no ISO 8601 time, as in 2027-01-31T09:00:00+01:00") from None
    if moment.utcoffset() is None:
        raise ConfigError(f"{option} has no time zone", hint="write 2027-01-31T09:00:00+01:00 or …Z")
    return moment
