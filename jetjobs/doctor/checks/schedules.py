"""Checks of the schedules: whether each can be read, run and planned, and somebody does plan them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from jetjobs.admin.schedules import Schedules
from jetjobs.define.router import Router
from jetjobs.doctor.finding import Answer, Check, Look, many
from jetjobs.jetstream.messages.scan import check_direct_get
from jetjobs.jetstream.queues.inspection import stream_info
from jetjobs.jetstream.schedules.store import Definition
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.wire.subjects import kv_stream
from jetjobs.model.wire.validation import is_schedule_name

LATE_S = 60.0


async def readable(look: Look) -> list[Answer]:
    definitions = await _definitions(look)
    if definitions is None:
        bucket = look.jetstream.names.schedules_bucket
        text = f"the bucket {bucket} is not on the server: nothing is planned"
        return [Answer("fail", text, "jetjobs setup apply")]
    if broken := [d.name for d in definitions if d.schedule is None]:
        text = f"{_named(broken)} cannot be read, and {_is(broken)} not planned"
        hint = f"jetjobs schedules delete {shlex.quote(broken[0])}"
        if is_schedule_name(broken[0]):
            hint += ", or put another in its place"
        return [Answer("fail", text, hint)]
    paused = sum(d.schedule is not None and d.schedule.paused for d in definitions)
    text = many(len(definitions), "schedule") + (f", {paused:,} paused" if paused else "")
    return [Answer("ok", text)]


async def unknown_task(look: Look) -> list[Answer]:
    """Tasks that neither the app nor a worker that lives knows: their ticks would be dead letters."""
    definitions = await _definitions(look)
    if definitions is None:
        return []
    schedules = [d.schedule for d in definitions if d.schedule is not None]
    workers = await live_workers(look.jetstream.connection, look.jetstream.names)
    known = {task for worker in workers for task in worker.tasks} | {*(look.router.tasks if look.router else ())}
    if schedules and not workers and look.router is None:
        return [Answer("skip", "unknown_task: there is no app and no worker to ask")]
    if unknown := [s for s in schedules if s.task not in known]:
        of = sorted({s.task for s in unknown})
        text = f"{_named([s.name for s in unknown])}: no worker and not this app knows task {', '.join(of[:3])}"
        hint = f"start its worker, or {_deletion(unknown[0].name, unknown[0].declared_by)}"
        return [Answer("warn", text, hint)]
    return [Answer("ok", "every task is known")]


async def missing_queue(look: Look) -> list[Answer]:
    definitions = await _definitions(look)
    if definitions is None:
        return []
    schedules = [d.schedule for d in definitions if d.schedule is not None]
    if lost := [s for s in schedules if s.queue not in look.queues]:
        text = f"{_named([s.name for s in lost])}: queue {lost[0].queue} is not on the server"
        hint = f"jetjobs setup apply -q {lost[0].queue}"
        return [Answer("fail", text, hint)]
    return [Answer("ok", "every queue is there")]


async def lead(look: Look) -> list[Answer]:
    """Whether anybody can lead. A lock that never ends is found with the topology."""
    if await _definitions(look) is None:
        return []
    bucket = look.jetstream.names.locks_bucket
    if await stream_info(look.jetstream.connection, kv_stream(bucket)) is None:
        text = f"the bucket {bucket} is not on the server: nobody can lead, and nothing is planned"
        return [Answer("fail", text, "jetjobs setup apply")]
    return [Answer("ok", "the leader's lock can be taken")]


async def late(look: Look) -> list[Answer]:
    """Slots that have been due for long and that nobody has planned."""
    if await _definitions(look) is None:
        return []
    found = await Schedules(look.jetstream, look.router or Router(), _no_handle).list()
    behind = sorted((i for i in found if i.late_s > LATE_S and i.schedule.queue in look.queues), key=_latest)
    if behind:
        names = [info.schedule.name for info in behind]
        text = f"{_named(names)} {_is(names)} late, up to {show_duration(behind[0].late_s)}: nobody plans"
        hint = "start a worker without --no-schedules, or one with --slots 0; if one runs, see --only topology"
        return [Answer("fail", text, hint)]
    return [Answer("ok", "none is late by more than a minute")]


async def declared(look: Look) -> list[Answer]:
    """What the code declares stands on the server, and is its own."""
    wanted = look.router.declared_schedules if look.router is not None else {}
    definitions = await _definitions(look)
    if definitions is None:
        return []
    there = {d.name: d.schedule for d in definitions}
    app = getattr(look.router, "name", "")
    found = []
    if missing := sorted(set(wanted) - set(there)):
        text = f"{_named(missing)} {_is(missing)} declared in code, and not on the server"
        found.append(Answer("warn", text, "a worker stores it when it starts"))
    owned = {name: schedule.declared_by for name in wanted if (schedule := there.get(name)) is not None}
    if app and (others := sorted(name for name, owner in owned.items() if owner != app)):
        owner = owned[others[0]]
        whose = f"app {owner}" if owner else "somebody who made it at run time"
        text = f"{_named(others)} {_is(others)} declared in code, but on the server belongs to {whose}"
        hint = f"give it another name, or {_deletion(others[0], owner)}"
        found.append(Answer("warn", text, hint))
    return found or [Answer("ok", f"{many(len(wanted), 'schedule')} of the code on the server")]


async def _definitions(look: Look) -> list[Definition] | None:
    """Those on the server; None where there is no bucket, of which `readable` tells."""
    await check_direct_get(look.jetstream.connection, kv_stream(look.jetstream.names.schedules_bucket))
    try:
        return await look.jetstream.schedules.all()
    except TopologyMissing:
        return None


def _named(names: Sequence[str]) -> str:
    listed = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
    return f"schedule{'' if len(names) == 1 else 's'} {listed}"


def _deletion(name: str, owner: str) -> str:
    """The command that deletes a schedule, whoever it belongs to."""
    return f"jetjobs schedules delete {name}{' --force' if owner else ''}"


def _is(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _latest(info: Any) -> float:
    return -float(info.late_s)


def _no_handle(job: Any) -> Any:
    raise AssertionError("the doctor enqueues nothing")


CHECKS: tuple[Check, ...] = (readable, unknown_task, missing_queue, lead, late, declared)
