"""One schedule with its last job and its next scheduled times, and the scheduled times of any rule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from jetjobs.admin.operations import Operations
from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.model.errors import ConfigError, DefinitionError, JobNotFound, ResultError
from jetjobs.model.job import JobStatus
from jetjobs.model.schedule.cron import zone_of
from jetjobs.model.schedule.schedule import Schedule, make_schedule

SHOWN_TIMES = 5


class ScheduleDetails(NamedTuple):
    """A schedule at one moment of the server's clock."""

    info: ScheduleInfo
    now: datetime
    job: JobStatus | None
    """The job of the last tick; None if its record has expired or cannot be read, or the task keeps none."""
    upcoming: list[datetime]

    @property
    def started_late_s(self) -> float | None:
        """How long after its due time the last job started; None if unknown."""
        if self.job is None or self.job.started_at is None or self.info.last is None:
            return None
        return max(0.0, (self.job.started_at - self.info.schedule.due(self.info.last)).total_seconds())

    def as_dict(self) -> dict[str, Any]:
        late_s = self.started_late_s
        return {
            **self.info.as_dict(),
            "last_job_state": str(self.job.state) if self.job is not None else None,
            "last_started_late_s": None if late_s is None else round(late_s, 3),
            "upcoming": [moment.isoformat() for moment in self.upcoming],
        }


async def schedule_details(app: Operations, name: str) -> ScheduleDetails:
    """ScheduleNotFound if the schedule does not exist."""
    info = await app.schedules.get(name)
    now = await app.jetstream.server_clock.now()
    job = None
    if info.last_job is not None:
        try:
            job = await app.jobs.get(info.last_job)
        except (JobNotFound, ResultError):
            job = None
    times = [] if info.schedule.paused else next_times(info.schedule, now, SHOWN_TIMES)
    return ScheduleDetails(info, now, job, times)


def next_times(schedule: Schedule, now: datetime, count: int) -> list[datetime]:
    """The next scheduled times, in UTC."""
    found: list[datetime] = []
    moment = schedule.after(now)
    while moment is not None and len(found) < count:
        found.append(moment)
        moment = schedule.after(moment)
    return found


def local_time(moment: datetime, tz: str) -> str:
    """Local time in the zone, with its UTC offset."""
    return moment.astimezone(zone_of(tz)).isoformat()


def times_as_dict(name: str | None, tz: str, times: Iterable[datetime]) -> dict[str, Any]:
    """Scheduled times as JSON."""
    items = [{"scheduled_time": one.isoformat(), "local": local_time(one, tz)} for one in times]
    return {"schedule": name, "tz": tz, "items": items}


def unstored_schedule(rule: Mapping[str, Any]) -> Schedule:
    """A schedule with this rule that is not stored, for its scheduled times. ConfigError for an invalid rule."""
    # With an interval, the zone only affects how scheduled times are shown.
    given = {key: value for key, value in rule.items() if value is not None}
    if "every" in given:
        given.pop("tz", None)
    try:
        return make_schedule({"name": "tried", "task": "none", **given})
    except DefinitionError as error:
        raise ConfigError(str(error).removeprefix("schedule 'tried': "), hint=error.hint) from None
