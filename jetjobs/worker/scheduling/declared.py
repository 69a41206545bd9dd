"""Store the schedules that the code declares, and delete those that the code no longer declares.

Every worker does this when it starts, not only the leader: apps may share a namespace, and the leader knows the
code of only one of them. A new leader does it again: after a rolling deploy it runs the new code, even if an old
worker was the last to start. Storing an unchanged schedule has no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.model.errors import BrokerError, JetJobsError, ScheduleConflict
from jetjobs.model.schedule.schedule import Schedule

_ATTEMPTS = 5
_log = logging.getLogger("jetjobs.schedules")


async def sync_declared(jetstream: JetStreamClient, app: str, declared: Mapping[str, Schedule]) -> None:
    """Make the stored schedules of `app` match its code. Paused schedules stay paused.

    Failures are only logged: they must not keep a worker from its jobs.
    """
    try:
        stored = {d.name: d for d in await jetstream.schedules.all()}
        for schedule in declared.values():
            try:
                wanted = schedule.model_copy(update={"declared_by": app})
                await _declare(jetstream, wanted, stored.get(schedule.name))
            except JetJobsError as error:  # continue with the others
                _warn(schedule, str(error))
        for definition in stored.values():
            if definition.name not in declared and _belongs_to(definition, app):
                await _drop(jetstream, definition.name, app)
    except BrokerError as error:
        extra = {"event": "schedule.unsynced", "error": str(error)}
        _log.warning("the declared schedules could not be stored", extra=extra)


async def _declare(jetstream: JetStreamClient, wanted: Schedule, stored: Definition | None) -> None:
    for _ in range(_ATTEMPTS):
        if stored is not None and stored.schedule is not None:
            if stored.schedule.declared_by != wanted.declared_by:
                _warn(wanted, f"it {_origin(stored.schedule)}")
                return
            if wanted.same_as(stored.schedule):
                return
            wanted = wanted.model_copy(update={"paused": stored.schedule.paused})
        try:
            await jetstream.schedules.check(wanted)
            await jetstream.schedules.put(wanted, stored)
            return
        except ScheduleConflict:
            # Another worker stored it at the same time, or it was deleted.
            stored = await jetstream.schedules.get(wanted.name)
    _warn(wanted, "other processes kept changing it")


async def _drop(jetstream: JetStreamClient, name: str, app: str) -> None:
    definition = await jetstream.schedules.get(name)
    if definition is None or not _belongs_to(definition, app):
        return
    try:
        await jetstream.schedules.delete(definition)
    except ScheduleConflict:
        return  # another worker was faster
    _log.info(
        "deleted a schedule that the code no longer declares",
        extra={"event": "schedule.deleted", "schedule": name},
    )


def _belongs_to(definition: Definition, app: str) -> bool:
    return definition.schedule is not None and definition.schedule.declared_by == app


def _origin(schedule: Schedule) -> str:
    return f"belongs to app {schedule.declared_by!r}" if schedule.declared_by else "was created at run time"


def _warn(schedule: Schedule, why: str) -> None:
    extra = {"event": "schedule.unsynced", "schedule": schedule.name, "error": why}
    _log.warning("a declared schedule could not be stored", extra=extra)
