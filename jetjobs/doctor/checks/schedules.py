"""Checks of the schedules: unreadable, without a task or queue, late, or not stored."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jetjobs.admin.schedules import Schedules
from jetjobs.define.router import Router
from jetjobs.doctor.finding import Check, CheckContext, CheckResult, many
from jetjobs.jetstream.messages.scan import check_direct_get
from jetjobs.jetstream.queues.inspection import stream_info
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.wire.subjects import kv_stream
from jetjobs.model.wire.validation import is_schedule_name

LATE = timedelta(minutes=1)


async def readable(context: CheckContext) -> list[CheckResult]:
    definitions = await _definitions(context)
    if definitions is None:
        bucket = context.jetstream.names.schedules_bucket
        text = f"bucket {bucket} does not exist: nothing is planned"
        return [CheckResult("fail", text, "jetjobs setup apply")]
    if broken := [d.name for d in definitions if d.schedule is None]:
        text = f"{_named(broken)} cannot be read and {_is(broken)} not planned"
        hint = f"jetjobs schedules delete {shlex.quote(broken[0])}"
        if is_schedule_name(broken[0]):
            hint += ", or replace it"
        return [CheckResult("fail", text, hint)]
    paused = sum(d.schedule is not None and d.schedule.paused for d in definitions)
    text = many(len(definitions), "schedule") + (f", {paused:,} paused" if paused else "")
    return [CheckResult("ok", text)]


async def unknown_task(context: CheckContext) -> list[CheckResult]:
    """Finds schedules whose task neither the app nor a running worker has: their jobs would be dead-lettered."""
    definitions = await _definitions(context)
    if definitions is None:
        return []
    schedules = [d.schedule for d in definitions if d.schedule is not None]
    workers = await live_workers(context.jetstream.connection, context.jetstream.names)
    known = {task for worker in workers for task in worker.tasks} | {
        *(context.router.tasks if context.router else ())
    }
    if schedules and not workers and context.router is None:
        return [CheckResult("skip", "unknown_task: no app was given and no worker is running")]
    if unknown := [s for s in schedules if s.task not in known]:
        tasks = sorted({s.task for s in unknown})[:3]
        listed = f"task {tasks[0]}" if len(tasks) == 1 else f"tasks {', '.join(tasks)}"
        text = f"{_named([s.name for s in unknown])}: neither this app nor a running worker has {listed}"
        hint = f"start a worker that has it, or {_deletion(unknown[0].name, unknown[0].declared_by)}"
        return [CheckResult("warn", text, hint)]
    return [CheckResult("ok", "every task exists")]


async def missing_queue(context: CheckContext) -> list[CheckResult]:
    definitions = await _definitions(context)
    if definitions is None:
        return []
    schedules = [d.schedule for d in definitions if d.schedule is not None]
    if lost := [s for s in schedules if s.queue not in context.queues]:
        text = f"{_named([s.name for s in lost])}: queue {lost[0].queue} does not exist"
        hint = f"jetjobs setup apply -q {lost[0].queue}"
        return [CheckResult("fail", text, hint)]
    return [CheckResult("ok", "every queue exists")]


async def lead(context: CheckContext) -> list[CheckResult]:
    """Checks that a worker can become the leader. The check `locks` finds a lock that never expires."""
    if await _definitions(context) is None:
        return []
    bucket = context.jetstream.names.locks_bucket
    if await stream_info(context.jetstream.connection, kv_stream(bucket)) is None:
        text = f"bucket {bucket} does not exist: no worker can lead, and nothing is planned"
        return [CheckResult("fail", text, "jetjobs setup apply")]
    return [CheckResult("ok", "a worker can take the leader lock")]


async def late(context: CheckContext) -> list[CheckResult]:
    """Finds scheduled times that have passed and were not planned."""
    if await _definitions(context) is None:
        return []
    found = await Schedules(context.jetstream, context.router or Router(), _no_handle).list()
    behind = [info for info in found if info.late > LATE and info.schedule.queue in context.queues]
    behind.sort(key=lambda info: info.late, reverse=True)
    if behind:
        names = [info.schedule.name for info in behind]
        text = f"{_named(names)} {_is(names)} late by up to {show_duration(behind[0].late)}: no worker plans"
        hint = "start a worker without --no-schedules; if one is running, see `jetjobs doctor --only topology`"
        return [CheckResult("fail", text, hint)]
    return [CheckResult("ok", "no schedule is late by more than a minute")]


async def declared(context: CheckContext) -> list[CheckResult]:
    """Checks that the declared schedules are on the server and belong to this app."""
    wanted = context.router.declared_schedules if context.router is not None else {}
    definitions = await _definitions(context)
    if definitions is None:
        return []
    stored = {d.name: d.schedule for d in definitions}
    app = getattr(context.router, "name", "")
    found = []
    if missing := sorted(set(wanted) - set(stored)):
        text = f"{_named(missing)} {_is(missing)} declared in code but not on the server"
        found.append(CheckResult("warn", text, "start a worker: it stores declared schedules"))
    owned = {name: schedule.declared_by for name in wanted if (schedule := stored.get(name)) is not None}
    if app and (others := sorted(name for name, owner in owned.items() if owner != app)):
        owner = owned[others[0]]
        belongs = f"belongs to app {owner} on the server" if owner else "was created at run time"
        text = f"{_named(others)} {_is(others)} declared in code but {belongs}"
        hint = f"use another name, or {_deletion(others[0], owner)}"
        found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", f"{many(len(wanted), 'declared schedule')} on the server")]


async def _definitions(context: CheckContext) -> list[Definition] | None:
    """The definitions on the server; None without a bucket, which `readable` reports."""
    await check_direct_get(context.jetstream.connection, kv_stream(context.jetstream.names.schedules_bucket))
    try:
        return await context.jetstream.schedules.all()
    except TopologyMissing:
        return None


def _named(names: Sequence[str]) -> str:
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    return f"schedule{'' if len(names) == 1 else 's'} {listed}"


def _deletion(name: str, owner: str) -> str:
    """The command that deletes a schedule of any owner."""
    return f"jetjobs schedules delete {name}{' --force' if owner else ''}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _no_handle(job: Any) -> Any:
    raise AssertionError("the doctor does not enqueue")


CHECKS: tuple[Check, ...] = (readable, unknown_task, missing_queue, lead, late, declared)
