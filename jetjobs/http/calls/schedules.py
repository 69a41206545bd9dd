"""Schedules and tasks over HTTP: list, show and change them."""

from __future__ import annotations

from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from jetjobs.admin.schedule_details import next_times, schedule_details, times_as_dict, unstored_schedule
from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.admin.task_list import ScheduledTask, find_task
from jetjobs.admin.task_list import list_tasks as read_tasks
from jetjobs.http.calls.call import Answer, Call, unprocessable
from jetjobs.http.models.admin_requests import DeleteQuery, NewSchedule, NextQuery, ReasonBody, RuleQuery
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import ScheduleNotFound, TopologyMissing, UnknownTask
from jetjobs.model.wire.validation import check_schedule_name


async def list_schedules(call: Call) -> Answer:
    """List all schedules with their last and next run."""
    try:
        found = await call.app.schedules.list()
    except TopologyMissing:
        found = []  # nothing is set up yet
    items = [info.as_dict() for info in found if call.access.sees(info.schedule.queue)]
    return Answer(HTTPStatus.OK, {"items": items, "cursor": None})


async def show_schedule(call: Call) -> Answer:
    """Show one schedule with its last job and its next scheduled times."""
    await _schedule(call)
    return Answer(HTTPStatus.OK, (await schedule_details(call.app, call.path["schedule"])).as_dict())


async def put_schedule(call: Call, body: NewSchedule) -> Answer:
    """Create or replace a schedule.

    Members that are not given have their defaults. With `revision`, only that revision is replaced.
    """
    name = call.path["schedule"]
    try:
        task = await call.services.catalog.resolve(body.task)
    except UnknownTask as error:
        raise unprocessable(error, "task") from error
    call.require_queue(body.queue or task.queue)
    there = await call.app.jetstream.schedules.get(check_schedule_name(name))
    if there is not None and there.schedule is not None and not call.access.sees(there.schedule.queue):
        raise _not_found(name)  # of another queue: it is not visible, and must not be replaced
    options: Any = body.options()
    revision, reason = body.revision, body.reason
    info = await call.app.schedules.put(name, task, revision=revision, by=call.by, reason=reason, **options)
    return Answer(HTTPStatus.OK, info.as_dict())


async def delete_schedule(call: Call, query: DeleteQuery) -> Answer:
    """Delete a schedule. Jobs that it has enqueued stay.

    409 for a schedule that the code of an app declares, unless `force` is given because that app is gone.
    """
    name = (await _schedule(call)).schedule.name
    await call.app.schedules.delete(name, force=query.force, by=call.by, reason=query.reason)
    return Answer(HTTPStatus.OK, {"name": name, "deleted": True})


async def pause_schedule(call: Call, body: ReasonBody) -> Answer:
    """Pause a schedule until it is resumed. It stays paused across deploys."""
    name = (await _schedule(call)).schedule.name
    return Answer(HTTPStatus.OK, (await call.app.schedules.pause(name, by=call.by, reason=body.reason)).as_dict())


async def resume_schedule(call: Call, body: ReasonBody) -> Answer:
    """Resume a paused schedule with its next scheduled time."""
    name = (await _schedule(call)).schedule.name
    return Answer(HTTPStatus.OK, (await call.app.schedules.resume(name, by=call.by, reason=body.reason)).as_dict())


async def run_schedule(call: Call, body: ReasonBody) -> Answer:
    """Enqueue a job of a schedule now. Its scheduled runs are not changed."""
    name = (await _schedule(call)).schedule.name
    job = await call.app.schedules.run_now(name, by=call.by, reason=body.reason)
    answer = {"schedule": name, "id": job.id, "queue": job.queue, "task": job.task}
    return Answer(HTTPStatus.CREATED, answer, {"Location": f"{call.root}/api/v1/jobs/{job.id}"})


async def schedule_times(call: Call, query: NextQuery) -> Answer:
    """List the next scheduled times of a schedule, in its zone or in `tz`."""
    schedule = (await _schedule(call)).schedule
    now = await call.app.jetstream.server_clock.now()
    times = next_times(schedule, now, query.count)
    return Answer(HTTPStatus.OK, times_as_dict(schedule.name, query.tz or schedule.tz, times))


async def rule_times(call: Call, query: RuleQuery) -> Answer:
    """List the next scheduled times of a rule that is not stored: `cron` or `every`."""
    every = None if query.every is None else parse_duration(query.every)
    schedule = unstored_schedule({"cron": query.cron, "every": every, "tz": query.tz})
    times = next_times(schedule, datetime.now(UTC), query.count)
    return Answer(HTTPStatus.OK, times_as_dict(None, query.tz or schedule.tz, times))


async def _schedule(call: Call) -> ScheduleInfo:
    """The schedule of the path, if the caller may see its queue."""
    name = call.path["schedule"]
    info = await call.app.schedules.get(name)
    if not call.access.sees(info.schedule.queue):
        raise _not_found(name)
    return info


def _not_found(name: str) -> ScheduleNotFound:
    return ScheduleNotFound(f"no schedule {name!r}", hint="GET /api/v1/schedules lists them")


# Tasks


async def list_tasks(call: Call) -> Answer:
    """List the tasks of running workers and of the app."""
    items = [task.summary() for task in await _tasks(call)]
    return Answer(HTTPStatus.OK, {"items": items, "cursor": None})


async def show_task(call: Call) -> Answer:
    """Show one task: its signature, the JSON schema of its arguments, its retry policy, and who has it."""
    return Answer(HTTPStatus.OK, find_task(await _tasks(call), call.path["task"]).as_dict())


async def _tasks(call: Call) -> list[ScheduledTask]:
    declared = [task.definition for name, task in call.app.tasks.items() if name == task.name]
    found = await read_tasks(call.app, declared)
    if call.access.queues is None:
        return found
    return [task for task in found if task.info.definition and call.access.sees(task.info.definition.queue)]
