"""The schedules that the code declares: stored where they differ, deleted where the code drops them.

Each worker does so when it starts, not only the leader: apps may share a namespace, and the leader knows the code
of one of them. A worker that takes the lead does so again: after a rolling deploy the one that leads is of the new
code, even if one of the old was the last to start. Storing what stands there already changes nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.model.errors import BrokerError, JetJobsError, ScheduleConflict
from jetjobs.model.schedule.schedule import Schedule

_TRIES = 5
_log = logging.getLogger("jetjobs.schedules")


async def sync_declared(jetstream: JetStreamClient, app: str, declared: Mapping[str, Schedule]) -> None:
    """Make the bucket say what the code of `app` says. Paused schedules stay paused. Failures are logged: they
    must not keep a worker from its jobs."""
    try:
        there = {d.name: d for d in await jetstream.schedules.all()}
        for schedule in declared.values():
            try:
                wanted = schedule.model_copy(update={"declared_by": app})
                await _declare(jetstream, wanted, there.get(schedule.name))
            except JetJobsError as error:  # the others must not wait for it
                _warn(schedule, str(error))
        for definition in there.values():
            if definition.name not in declared and _is_of(definition, app):
                await _drop(jetstream, definition.name, app)
    except BrokerError as error:
        extra = {"event": "schedule.unsynced", "error": str(error)}
        _log.warning("the schedules of the code could not be stored", extra=extra)


async def _declare(jetstream: JetStreamClient, wanted: Schedule, there: Definition | None) -> None:
    for _ in range(_TRIES):
        if there is not None and there.schedule is not None:
            if there.schedule.declared_by != wanted.declared_by:
                _warn(wanted, f"it belongs to {_owner(there.schedule)}")
                return
            if wanted.same_as(there.schedule):
                return
            wanted = wanted.model_copy(update={"paused": there.schedule.paused})
        try:
            await jetstream.schedules.check(wanted)
            await jetstream.schedules.put(wanted, there)
            return
        except ScheduleConflict:
            # Another worker does the same, or one was deleted.
            there = await jetstream.schedules.get(wanted.name)
    _warn(wanted, "others kept changing it")


async def _drop(jetstream: JetStreamClient, name: str, app: str) -> None:
    definition = await jetstream.schedules.get(name)
    if definition is None or not _is_of(definition, app):
        return
    try:
        await jetstream.schedules.delete(definition)
    except ScheduleConflict:
        return  # another worker was first
    _log.info("a schedule that the code dropped is deleted", extra={"event": "schedule.deleted", "schedule": name})


def _is_of(definition: Definition, app: str) -> bool:
    return definition.schedule is not None and definition.schedule.declared_by == app


def _owner(schedule: Schedule) -> str:
    return f"app {schedule.declared_by!r}" if schedule.declared_by else "somebody who made it at run time"


def _warn(schedule: Schedule, why: str) -> None:
    extra = {"event": "schedule.unsynced", "schedule": schedule.name, "error": why}
    _log.warning("a schedule of the code could not be stored", extra=extra)
