"""Checks of the jobs in queues: paused, unserved, overdue, stranded, incomplete, about to expire."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from jetjobs.doctor.finding import Check, CheckContext, CheckResult, many
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.jetstream.messages.scan import check_direct_get, count_on, page, scan, scan_waiting
from jetjobs.jetstream.queues.inspection import stranded_sequences, stream_info
from jetjobs.jetstream.queues.queue_state import lane_states, pause_of, server_time_of
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.worker.leader.overdue_jobs import LATE_S
from jetjobs.worker.options import Phase

PAUSED_LONG = timedelta(hours=1)
MAX_WAITING = 10_000
"""Jobs read in each of the lanes `later` and `retry` of a queue."""
MAX_BODIES = 5_000
MAX_BYTES = 64 * 1024 * 1024
"""The oldest jobs of each queue and the oldest dead letters whose bodies are checked, up to both limits. Bodies
inside messages are read along with them."""
OLD_LETTER = 0.8
"""Share of its retention after which a dead letter is about to expire."""
GROWING = timedelta(hours=1)
"""Dead letters of this time are reported: there are more of them than before."""
RECHECK_S = 0.3
"""Time between two checks of a message that may just be leaving the stream."""


async def paused(context: CheckContext) -> list[CheckResult]:
    connection, names = context.jetstream.connection, context.jetstream.names
    found = []
    for queue in context.queues:
        lanes = await lane_states(connection, names, queue)
        pause = await pause_of(connection, names, queue, lanes)
        if pause is None:
            continue
        lasting = timedelta(0) if pause.at is None else server_time_of(lanes) - pause.at
        if pause.at is None:
            text = f"queue {queue} was paused without jetjobs"
        elif lasting > PAUSED_LONG:
            text = f"queue {queue} has been paused for {show_duration(lasting)}"
        else:
            continue
        text += f" ({pause.reason})" if pause.reason else ""
        found.append(CheckResult("warn", text, f"jetjobs queues resume {queue}"))
    return found or [CheckResult("ok", "no queue has been paused for long")]


async def unserved(context: CheckContext) -> list[CheckResult]:
    connection, names = context.jetstream.connection, context.jetstream.names
    workers = [w for w in await live_workers(connection, names) if w.phase in (Phase.READY, Phase.STARTING)]
    served = {queue for worker in workers for queue in worker.queues}
    found = []
    for queue in sorted(set(context.queues) - served):
        lanes = await lane_states(connection, names, queue)
        waiting = sum(lane.queued for lane in lanes if lane.lane in n.PULLED)
        later = 0
        for lane in n.WAITING:
            later += await count_on(connection, names.work_stream(queue), names.lane_filter(queue, lane))
        if waiting or later:
            more = f"{many(waiting)} waiting" if waiting else f"{many(later)} scheduled or retrying"
            text = f"queue {queue}: {more} and no running worker"
            found.append(CheckResult("warn", text, f"start one with `jetjobs worker -q {queue}`"))
    return found or [CheckResult("ok", "every queue with jobs has a worker")]


async def overdue(context: CheckContext) -> list[CheckResult]:
    """Finds scheduled jobs and retries that are due but were not fired by the server."""
    names, connection = context.jetstream.names, context.jetstream.connection
    found = []
    for queue in context.queues:
        stream = names.work_stream(queue)
        if (info := await stream_info(connection, stream)) is None:
            continue
        await check_direct_get(connection, stream)
        now, late, latest_s = api.parse_time(info["ts"]), 0, 0.0
        async for message in scan_waiting(connection, names, queue, MAX_WAITING):
            due_at = due_time(message.headers)
            if due_at is not None and now - due_at > LATE_S:
                late, latest_s = late + 1, max(latest_s, now - due_at)
        if late:
            text = f"queue {queue}: {many(late)} overdue by up to {show_duration(latest_s)}"
            hint = "a worker moves them within 10 minutes; if storage is full, free some"
            found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", "no scheduled job is overdue")]


async def stranded(context: CheckContext) -> list[CheckResult]:
    """Finds jobs past `max_deliver`, which the server keeps but no longer delivers."""
    connection, names, found = context.jetstream.connection, context.jetstream.names, []
    for queue in context.queues:
        count = 0
        for lane in n.PULLED:
            if first := await stranded_sequences(connection, names, queue, lane):
                await asyncio.sleep(RECHECK_S)
                count += len(set(first).intersection(await stranded_sequences(connection, names, queue, lane)))
        if count:
            text = f"queue {queue}: {many(count)} that the server no longer delivers"
            hint = "a running worker dead-letters them within minutes: `jetjobs worker`"
            found.append(CheckResult("fail", text, hint))
    return found or [CheckResult("ok", "the server delivers every job")]


async def letters(context: CheckContext) -> list[CheckResult]:
    """Finds dead letters that will soon expire, and new ones."""
    names = context.jetstream.names
    info = await stream_info(context.jetstream.connection, names.dead_stream)
    if info is None:
        return []  # reported by the check `plan`
    state, max_age_s = info["state"], int(info["config"].get("max_age", 0)) / api.NS
    if int(state["messages"]) and max_age_s:
        age_s = api.parse_time(info["ts"]) - api.parse_time(state["first_ts"])
        if age_s > OLD_LETTER * max_age_s:
            left = show_duration(max(0.0, max_age_s - age_s))
            text = f"the oldest of {many(int(state['messages']), 'dead letter')} expires in {left}"
            hint = "replay, export or delete them: `jetjobs dead list`"
            return [CheckResult("warn", text, hint)]
    if new := await _letters_since(context, api.parse_time(info["ts"]) - GROWING.total_seconds()):
        text = f"{many(new, 'new dead letter')} in the last hour, {int(state['messages']):,} in all"
        return [CheckResult("warn", text, "see why: `jetjobs dead list --group --since 1h`")]
    return [CheckResult("ok", f"{many(int(state['messages']), 'dead letter')}, none in the last hour")]


async def _letters_since(context: CheckContext, moment: float) -> int:
    connection, names = context.jetstream.connection, context.jetstream.names
    await check_direct_get(connection, names.dead_stream)
    since = datetime.fromtimestamp(moment, UTC).isoformat()
    first = await page(connection, names.dead_stream, names.dead_filter, 1, 1, since)
    return first[0].following + 1 if first else 0


async def objects(context: CheckContext) -> list[CheckResult]:
    """Finds jobs and dead letters whose body is missing from the object store."""
    jetstream = context.jetstream
    names, found = jetstream.names, []
    places = [
        (names.work_stream(q), names.queue_filter(q), f"queue {q}: {{}} whose arguments are missing")
        for q in context.queues
    ]
    places.append((names.dead_stream, names.dead_filter, "dead letters: {} whose arguments are missing"))
    for stream, subject, text in places:
        if await stream_info(jetstream.connection, stream) is None:
            continue  # reported by the check `plan`
        missing, bytes_left = 0, MAX_BYTES
        async for message in scan(jetstream.connection, stream, subject, limit=MAX_BODIES):
            if (bytes_left := bytes_left - len(message.data)) < 0:
                break
            name = message.headers.get(h.PAYLOAD)
            if name and not await _is_stored(jetstream, name):
                # Its job may have finished since, which deletes the object.
                missing += await at_sequence(jetstream.connection, stream, message.sequence) is not None
        if missing:
            hint = "they cannot run: cancel or delete them and enqueue them again"
            found.append(CheckResult("fail", text.format(many(missing)), hint))
    return found or [CheckResult("ok", "every large body is in the object store")]


async def _is_stored(jetstream: JetStreamClient, name: str) -> bool:
    info = await jetstream.payloads.info(name)
    return info is not None and not info.deleted


CHECKS: tuple[Check, ...] = (paused, unserved, overdue, stranded, letters, objects)
