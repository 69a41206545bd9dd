"""`app.schedules`: list schedules and change them at run time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Unpack

from jetjobs.define.handle import JobHandle
from jetjobs.define.options import ScheduleOptions
from jetjobs.define.router import Router
from jetjobs.define.schedule import schedule_of
from jetjobs.define.task import Task
from jetjobs.enqueue import queue_not_found, unconfirmed
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.leader_lock import lock_holder
from jetjobs.jetstream.messages.publisher import Unconfirmed
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.jetstream.schedules.ticks import tick_job
from jetjobs.model.durations import Duration
from jetjobs.model.errors import ConfigError, DefinitionError, ScheduleConflict, TopologyMissing
from jetjobs.model.job import Job
from jetjobs.model.masking import mask, read_paths
from jetjobs.model.public import Record, public
from jetjobs.model.schedule.plan import AHEAD, Mark, Tick, last_scheduled_time
from jetjobs.model.schedule.schedule import Schedule, time_token
from jetjobs.model.views.audit import DONE, UNCHANGED
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import JobId, new_run
from jetjobs.model.wire.validation import check_schedule_key, check_schedule_name

_TRIES = 5
LATE = timedelta(seconds=5)
"""A schedule is late when a scheduled time has been due and unplanned for this long."""


@public("jetjobs.admin")
class PutOptions(ScheduleOptions, total=False):
    """The options of a schedule, with its rule: either `cron` or `every`."""

    cron: str
    every: Duration


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class ScheduleInfo(Record):
    """A schedule and its current state."""

    schedule: Schedule
    revision: int
    """The revision of the definition. Pass it to `put` to change only the version you have read."""
    last: datetime | None
    """The scheduled time of the newest tick that is due; None when there is none or it was missed."""
    next: datetime | None
    """The next scheduled time; None when the schedule is paused or has ended."""
    late: timedelta = timedelta(0)
    """How long a scheduled time has been due and unplanned; zero while a leader plans."""
    missed: int = 0
    """How many scheduled times were skipped so far because they could not be planned in time."""
    planned_by: int | None = None
    """The revision whose ticks are placed; None before the first. While it differs from `revision`, the leader has
    not applied the change yet."""

    @property
    def state(self) -> Literal["on", "paused", "ended", "late"]:
        """`late`: a scheduled time has been due and unplanned for 5 seconds."""
        if self.schedule.paused:
            return "paused"
        if self.late >= LATE:
            return "late"
        return "on" if self.next is not None else "ended"

    @property
    def last_job(self) -> str | None:
        """The id of the job of the last tick."""
        return str(JobId(self.schedule.key, time_token(self.last))) if self.last is not None else None

    def as_dict(self) -> dict[str, Any]:
        """The JSON form, with secret arguments masked."""
        shown = self.schedule.model_dump(
            mode="json",
            exclude={"secret", "since", "takes_scheduled_time", "every", "jitter"},
        )
        every = self.schedule.every
        return {
            **shown,
            "args": mask(shown["args"], read_paths(self.schedule.secret)),
            "every_s": every.total_seconds() if every is not None else None,
            "jitter_s": self.schedule.jitter.total_seconds(),
            "revision": self.revision,
            "planned_by": self.planned_by,
            "last": self.last.isoformat() if self.last is not None else None,
            "last_job": self.last_job,
            "next": self.next.isoformat() if self.next is not None else None,
            "late_s": round(self.late.total_seconds(), 3),
            "missed": self.missed,
            "state": self.state,
        }


@public("jetjobs.admin")
class Schedules:
    """The schedules of one namespace."""

    def __init__(
        self, jetstream: JetStreamClient, registry: Router, handle: Callable[[Job], JobHandle[Any]]
    ) -> None:
        self._jetstream = jetstream
        self._audit = jetstream.audit
        self._registry = registry
        self._handle = handle

    # Reading

    async def list(self) -> list[ScheduleInfo]:
        """All schedules that can be read, by name."""
        definitions = await self._jetstream.schedules.all()
        marks: dict[str, dict[str, Mark]] = {}
        for queue in {d.schedule.queue for d in definitions if d.schedule is not None}:
            try:
                marks[queue] = await self._jetstream.ticks.marks(queue)
            except TopologyMissing:
                marks[queue] = {}
        now = await self._jetstream.server_clock.now()
        return [
            _info(definition, schedule, marks[schedule.queue].get(schedule.name, Mark()), now)
            for definition in definitions
            if (schedule := definition.schedule) is not None
        ]

    async def get(self, name: str) -> ScheduleInfo:
        """One schedule. ScheduleNotFound when it does not exist."""
        return await self._info(await self._find(name))

    def scheduled_times(self, schedule: Schedule, after: datetime) -> Iterator[datetime]:
        """The scheduled times after a given time, in UTC."""
        scheduled_time = schedule.after(after)
        while scheduled_time is not None:
            yield scheduled_time
            scheduled_time = schedule.after(scheduled_time)

    async def has_leader(self) -> bool:
        """Whether a worker is the leader.

        Without a leader, changes have no effect yet; ticks that are placed, up to a minute ahead, still fire.
        """
        return await lock_holder(self._jetstream.connection, self._jetstream.names.locks_bucket) is not None

    # Changing

    async def put(
        self,
        name: str,
        task: Task[Any, Any] | str,
        /,
        *,
        revision: int | None = None,
        by: str = "",
        reason: str = "",
        **options: Unpack[PutOptions],
    ) -> ScheduleInfo:
        """Create or replace a schedule; options that are not given get their defaults. The leader plans it.

        With a `revision`, as `get` returned it (0: the schedule does not exist), ScheduleConflict unless it is
        still current; without one, any version is replaced. ScheduleConflict too for a schedule that the code of
        an app declares. DefinitionError, InvalidArguments or UnknownTask for an invalid schedule, before anything
        is stored.
        """
        check_schedule_name(name)
        _check_revision(revision)
        known = self._registry.find(task) if isinstance(task, str) else task
        if "name" in options:
            raise DefinitionError("the name must be the first argument")
        wanted = schedule_of(known, name, options)
        async with self._audit.action("schedule.put", name, by=by, reason=reason) as outcome:
            info = await self._put(wanted, revision)
            outcome.detail = f"revision {info.revision}"
        return info

    async def _put(self, wanted: Schedule, revision: int | None) -> ScheduleInfo:
        name = wanted.name
        _check_end(wanted, await self._jetstream.server_clock.now())
        await self._jetstream.schedules.check(wanted)
        for tries_left in reversed(range(_TRIES if revision is None else 1)):
            there = await self._jetstream.schedules.get(name)
            _check_current(name, there, revision)
            if there is not None:
                hint = "change it there, or pause it; if that app is gone, delete the schedule first with --force"
                _check_not_declared(there, hint)
            try:
                there = await self._jetstream.schedules.put(wanted, there)
                break
            except ScheduleConflict:
                if not tries_left:
                    raise
        assert there is not None
        return await self._info(there)

    async def pause(self, name: str, *, by: str = "", reason: str = "") -> ScheduleInfo:
        """Plan no more ticks. The leader removes ticks that have not fired, within about a second.

        The schedule stays paused through deploys.
        """
        return await self._set_paused(name, True, by, reason)

    async def resume(self, name: str, *, by: str = "", reason: str = "") -> ScheduleInfo:
        """Plan its ticks again, from now on. Scheduled times during the pause do not count as missed."""
        return await self._set_paused(name, False, by, reason)

    async def delete(self, name: str, *, force: bool = False, by: str = "", reason: str = "") -> None:
        """Delete a schedule. The leader removes ticks that have not fired.

        ScheduleConflict for a schedule that the code of an app declares, unless `force` is given because that app
        is gone. If the app is not gone, its next worker stores the schedule again.
        """
        check_schedule_key(name)
        async with self._audit.action("schedule.delete", name, by=by, reason=reason):
            await self._jetstream.schedules.delete(await self.find_to_delete(name, force=force))

    async def find_to_delete(self, name: str, *, force: bool = False) -> Definition:
        """What `delete` would delete, with the same errors. Any key is accepted: it may be foreign data."""
        definition = await self._jetstream.schedules.find(check_schedule_key(name))
        if not force:
            hint = "delete it there, or pause it; if that app is gone, delete it with --force"
            _check_not_declared(definition, hint)
        return definition

    async def run_now(self, name: str, *, by: str = "", reason: str = "") -> JobHandle[Any]:
        """Enqueue one extra job of the schedule now, even if it is paused. Its ticks are not changed."""
        check_schedule_name(name)
        async with self._audit.action("schedule.run", name, by=by, reason=reason) as outcome:
            handle = await self._run_now(name)
            outcome.detail = f"job {handle.id}"
        return handle

    async def _run_now(self, name: str) -> JobHandle[Any]:
        schedule = _readable(await self._find(name))
        job = _extra_job(schedule, await self._jetstream.server_clock.now())
        publisher = self._jetstream.publisher
        try:
            await publisher.store(self._jetstream.names.work_stream(job.queue), publisher.outgoing(job))
        except TopologyMissing as error:
            raise queue_not_found(job.queue, error) from error
        except Unconfirmed as error:
            raise unconfirmed(job.id, error) from error
        return self._handle(job)

    # Parts

    async def _set_paused(self, name: str, paused: bool, by: str, reason: str) -> ScheduleInfo:
        check_schedule_name(name)
        action = "schedule.pause" if paused else "schedule.resume"
        async with self._audit.action(action, name, by=by, reason=reason) as outcome:
            definition, changed = await self._store_paused(name, paused)
            outcome.set(DONE if changed else UNCHANGED)
        return await self._info(definition)

    async def _store_paused(self, name: str, paused: bool) -> tuple[Definition, bool]:
        for tries_left in reversed(range(_TRIES)):
            definition = await self._find(name)
            schedule = _readable(definition)
            if schedule.paused is paused:
                break
            try:
                wanted = schedule.model_copy(update={"paused": paused})
                return await self._jetstream.schedules.put(wanted, definition), True
            except ScheduleConflict:
                if not tries_left:
                    raise
        return definition, False

    async def _find(self, name: str) -> Definition:
        return await self._jetstream.schedules.find(check_schedule_name(name))

    async def _info(self, definition: Definition) -> ScheduleInfo:
        schedule = _readable(definition)
        try:
            mark = await self._jetstream.ticks.mark(schedule.queue, schedule.name)
        except TopologyMissing:
            mark = Mark()
        return _info(definition, schedule, mark, await self._jetstream.server_clock.now())


def _info(definition: Definition, schedule: Schedule, mark: Mark, now: datetime) -> ScheduleInfo:
    last, planned_by = last_scheduled_time(schedule, mark, now), mark.revision or None
    if schedule.paused:
        return ScheduleInfo(schedule, definition.revision, last, None, timedelta(0), mark.missed, planned_by)
    # A schedule without a mark has not been planned yet.
    planned_until = mark.planned_until or datetime.fromtimestamp(definition.stored_at, UTC)
    planned_until = max(schedule.since, planned_until)
    first = schedule.after(planned_until)
    late = timedelta(0) if first is None else max(timedelta(0), now - first)
    # A mark further ahead than ticks are ever placed means that the clock went back or that the mark is foreign.
    upcoming = schedule.after(planned_until if planned_until - now > 2 * AHEAD else now)
    return ScheduleInfo(schedule, definition.revision, last, upcoming, late, mark.missed, planned_by)


def _readable(definition: Definition) -> Schedule:
    if definition.schedule is None:
        raise DefinitionError(
            f"schedule {definition.name!r} cannot be read: it was not written by this version of jetjobs",
            hint="replace or delete it",
        )
    return definition.schedule


def _check_revision(revision: object) -> None:
    # In Python, True is an int and 1.0 equals 1.
    if revision is not None and (not isinstance(revision, int) or isinstance(revision, bool) or revision < 0):
        raise ConfigError(f"invalid revision {revision!r}: use a whole number of at least 0")


def _check_current(name: str, there: Definition | None, revision: int | None) -> None:
    """ScheduleConflict when a revision was given and it is not the current one."""
    current = there.revision if there is not None and not there.deleted else 0
    if revision is not None and revision != current:
        raise ScheduleConflict(
            f"schedule {name!r} has changed: its revision is {current or 'none'}, not {revision}",
            hint="read it again and repeat the change",
        )


def _check_end(schedule: Schedule, now: datetime) -> None:
    """DefinitionError for a schedule that would never run. Declared schedules are exempt: code outlives dates."""
    if schedule.after(now) is None:
        raise DefinitionError(
            f"schedule {schedule.name!r} would never run: it has no scheduled time from now until its end",
            hint="set a later end, or none",
        )


def _check_not_declared(definition: Definition, hint: str) -> None:
    """ScheduleConflict for a schedule that an app's code declares: the next deploy would undo the change."""
    if definition.schedule is not None and definition.schedule.declared_by:
        raise ScheduleConflict(
            f"schedule {definition.name!r} is declared in the code of app {definition.schedule.declared_by!r}",
            hint=hint,
        )


def _extra_job(schedule: Schedule, now: datetime) -> Job:
    scheduled_time = now.replace(microsecond=0)
    job = tick_job(schedule, Tick(scheduled_time, scheduled_time), now.timestamp())
    headers = {name: value for name, value in job.headers.items() if name != h.OVERLAP}
    uid = f"{time_token(scheduled_time)}-{new_run()}"
    return job._replace(id=str(JobId(schedule.key, uid)), due_at=0.0, headers=headers)
