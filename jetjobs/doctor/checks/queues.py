"""Checks of what stands in the queues: paused, unserved, overdue, given up, incomplete, about to go."""

from __future__ import annotations

import asyncio

from jetjobs.doctor.finding import Answer, Check, Look, many
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.jetstream.messages.scan import check_direct_get, scan, scan_waiting
from jetjobs.jetstream.queues.inspection import stranded_sequences, stream_info
from jetjobs.jetstream.queues.queue_state import lane_states, pause_of, server_time_of
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.worker.leader.overdue_jobs import LATE_S
from jetjobs.worker.options import Phase

PAUSED_LONG_S = 3600.0
MOST_LATER = 10_000
"""So many jobs for later, and so many retries, are looked at in each queue."""
MOST_BODIES = 5_000
MOST_BYTES = 64 * 1024 * 1024
"""So many jobs of each queue, and so many dead letters, are asked for their body; the oldest. Bodies that stand
in the messages come along."""
LETTERS_OLD = 0.8
"""Part of its time after which a dead letter is about to be thrown away."""
LOOK_AGAIN_S = 0.3
"""Between two looks at what may be on its way out of a stream."""


async def paused(look: Look) -> list[Answer]:
    connection, names = look.jetstream.connection, look.jetstream.names
    found = []
    for queue in look.queues:
        lanes = await lane_states(connection, names, queue)
        pause = await pause_of(connection, names, queue, lanes)
        if pause is None:
            continue
        for_s = server_time_of(lanes) - pause.at
        if not pause.at:
            text = f"queue {queue} is paused, by other means than jetjobs"
        elif for_s > PAUSED_LONG_S:
            text = f"queue {queue} has been paused for {show_duration(for_s)}"
        else:
            continue
        text += f" ({pause.reason})" if pause.reason else ""
        found.append(Answer("warn", text, f"jetjobs queues resume {queue}"))
    return found or [Answer("ok", "none is paused for long")]


async def unserved(look: Look) -> list[Answer]:
    connection, names = look.jetstream.connection, look.jetstream.names
    workers = [w for w in await live_workers(connection, names) if w.phase in (Phase.READY, Phase.STARTING)]
    served = {queue for worker in workers for queue in worker.queues}
    found = []
    for queue in sorted(set(look.queues) - served):
        lanes = await lane_states(connection, names, queue)
        waiting = sum(lane.queued for lane in lanes if lane.lane in n.PULLED)
        if waiting:
            text = f"queue {queue}: {many(waiting)} waiting, and no worker takes any"
            found.append(Answer("warn", text, f"jetjobs worker -q {queue}"))
    return found or [Answer("ok", "no job waits without a worker")]


async def overdue(look: Look) -> list[Answer]:
    """Jobs for later that the server's clock has passed by."""
    names, connection = look.jetstream.names, look.jetstream.connection
    found = []
    for queue in look.queues:
        stream = names.work_stream(queue)
        if (info := await stream_info(connection, stream)) is None:
            continue
        await check_direct_get(connection, stream)
        now, late, latest_s = api.parse_time(info["ts"]), 0, 0.0
        async for message in scan_waiting(connection, names, queue, MOST_LATER):
            due_at = due_time(message.headers)
            if due_at is not None and now - due_at > LATE_S:
                late, latest_s = late + 1, max(latest_s, now - due_at)
        if late:
            text = (
                f"queue {queue}: {many(late)} for later should have started, up to {show_duration(latest_s)} ago"
            )
            hint = "a worker mends it within 10 minutes; free storage if it was full"
            found.append(Answer("warn", text, hint))
    return found or [Answer("ok", "no job for later is overdue")]


async def stranded(look: Look) -> list[Answer]:
    """Jobs past `max_deliver`, which the server keeps and delivers no more."""
    connection, names, found = look.jetstream.connection, look.jetstream.names, []
    for queue in look.queues:
        count = 0
        for lane in n.PULLED:
            if first := await stranded_sequences(connection, names, queue, lane):
                await asyncio.sleep(LOOK_AGAIN_S)
                count += len(set(first).intersection(await stranded_sequences(connection, names, queue, lane)))
        if count:
            text = f"queue {queue}: {many(count)} that the server delivers no more"
            hint = "the leader makes dead letters of them within minutes: jetjobs worker"
            found.append(Answer("fail", text, hint))
    return found or [Answer("ok", "every job can be delivered")]


async def letters(look: Look) -> list[Answer]:
    """Dead letters that the server will soon throw away."""
    names = look.jetstream.names
    info = await stream_info(look.jetstream.connection, names.dead_stream)
    if info is None:
        return []  # the plan says so
    state, most_s = info["state"], int(info["config"].get("max_age", 0)) / api.NS
    if int(state["messages"]) and most_s:
        age_s = api.parse_time(info["ts"]) - api.parse_time(state["first_ts"])
        if age_s > LETTERS_OLD * most_s:
            left = show_duration(max(0.0, most_s - age_s))
            text = f"the oldest of {many(int(state['messages']), 'dead letter')} is thrown away in {left}"
            hint = "jetjobs dead list; replay, export or delete them"
            return [Answer("warn", text, hint)]
    return [Answer("ok", many(int(state["messages"]), "dead letter"))]


async def objects(look: Look) -> list[Answer]:
    """Jobs and dead letters whose body is kept in the object store, and is not there."""
    jetstream = look.jetstream
    names, found = jetstream.names, []
    places = [
        (names.work_stream(q), names.queue_filter(q), f"queue {q}: {{}} without arguments") for q in look.queues
    ]
    places.append((names.dead_stream, names.dead_filter, "{} without arguments among the dead letters"))
    for stream, subject, text in places:
        if await stream_info(jetstream.connection, stream) is None:
            continue  # the plan says so
        missing, left = 0, MOST_BYTES
        async for message in scan(jetstream.connection, stream, subject, limit=MOST_BODIES):
            if (left := left - len(message.data)) < 0:
                break
            name = message.headers.get(h.PAYLOAD)
            if name and not await _is_kept(jetstream, name):
                # It may have ended since, and its object with it.
                missing += await at_sequence(jetstream.connection, stream, message.sequence) is not None
        if missing:
            hint = "they cannot run: cancel or delete them, and enqueue them anew"
            found.append(Answer("fail", text.format(many(missing)), hint))
    return found or [Answer("ok", "what is too large for a message is there")]


async def _is_kept(jetstream: JetStreamClient, name: str) -> bool:
    info = await jetstream.payloads.info(name)
    return info is not None and not info.deleted


CHECKS: tuple[Check, ...] = (paused, unserved, overdue, stranded, letters, objects)
