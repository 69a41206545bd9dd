"""Checks of streams, lanes and buckets against the plan, and of what nobody planned."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from jetjobs.doctor.finding import Answer, Check, Level, Look, many
from jetjobs.jetstream import topology
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.jetstream.messages.scan import check_direct_get, scan
from jetjobs.jetstream.queues.inspection import consumers_of, stream_info
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.settings import QueueSettings
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import kv_stream, kv_subject

APPLY = "jetjobs setup apply"
NAMED = {
    "ack_wait": "lease",
    "max_deliver": "deliveries",
    "max_ack_pending": "capacity",
    "duplicate_window": "duplicates",
    "num_replicas": "copies",
    "storage": "durability",
}
"""Keys whose difference has a check of its own name; all others are `plan`."""
LOSING = frozenset(
    {"retention", "discard", "max_age", "max_msgs", "max_bytes", "subjects", "filter_subject", "storage"}
)
"""Keys whose difference loses jobs or leaves them where nobody looks."""


async def plan(look: Look) -> list[Answer]:
    """All that stands, against what `setup apply` would make. A queue that is missing is found with the app."""
    settings = look.settings.queues
    connection = look.jetstream.connection
    wanted = topology.plan(look.jetstream.names, look.queues, settings, replicas=3 if connection.clustered else 1)
    changes = await topology.inspect(connection, wanted, keep_replicas=settings.replicas is None)
    missing = [change.wanted.label for change in changes if change.action == "create"]
    found = [Answer("fail", f"{label} is missing", APPLY) for label in missing]
    if len(missing) > 3:
        found = [Answer("fail", f"{len(missing)} are missing: {', '.join(missing)}", APPLY)]
    found += [
        _difference(change.wanted.label, key, there, planned, settings)
        for change in changes
        for key, (there, planned) in change.diff.items()
    ]
    if found:
        return found
    lanes = sum(bool(one.consumer) for one in wanted)
    counts = many(len(look.queues), "queue"), many(lanes, "lane"), many(len(wanted) - lanes, "stream")
    text = f"as planned: {', '.join(counts)}"
    return [Answer("ok", text)]


def _difference(label: str, key: str, there: Any, wanted: Any, settings: QueueSettings) -> Answer:
    check = NAMED.get(key, "plan")
    level: Level = "fail" if key in LOSING else "warn"
    text = f"{label}: {key} is {_value(key, there)}, planned {_value(key, wanted)}"
    if key == "ack_wait" and isinstance(there, int):
        beat_s = settings.lease.total_seconds() / 3
        if there / api.NS < 3 * beat_s:
            level = "fail" if there / api.NS <= beat_s else "warn"
            text = f"{label}: ack_wait {show_duration(there / api.NS)} < 3 × heartbeat {show_duration(beat_s)}"
    elif key == "max_deliver" and isinstance(there, int) and 0 < there <= settings.max_crashes:
        level = "fail"
        text += f": the server gives jobs up before {settings.max_crashes} crashes are counted"
    return Answer(level, text, APPLY, check=check)


def _value(key: str, value: Any) -> str:
    if value is None:
        return "not set"
    if key in ("ack_wait", "duplicate_window", "max_age") and isinstance(value, int):
        return show_duration(value / api.NS) if value else "no limit"
    return str(value)


async def capacity(look: Look) -> list[Answer]:
    """More slots than the lanes of a queue hand out stay empty."""
    connection, names = look.jetstream.connection, look.jetstream.names
    slots: dict[str, int] = {}
    for worker in await live_workers(connection, names):
        for queue, of in worker.queues.items():
            slots[queue] = slots.get(queue, 0) + of.total
    most, found = look.settings.queues.max_running, []
    for queue, total in sorted(slots.items()):
        if total > most:
            text = f"queue {queue}: its workers have {total:,} slots, and a lane hands out {most:,} jobs at once"
            found.append(Answer("warn", text, "raise queues.max_running, then jetjobs setup apply"))
    return found or [Answer("ok", "lanes hand out enough for all slots")]


async def copies(look: Look) -> list[Answer]:
    """Leaders and replicas of the work and dead-letter streams."""
    names, connection = look.jetstream.names, look.jetstream.connection
    streams = [names.dead_stream, *(names.work_stream(queue) for queue in look.queues)]
    found: list[Answer] = []
    for look_again_s in (0.0, 0.5, 1.0):
        # A copy may be behind for a moment, and a leader be chosen just now.
        await asyncio.sleep(look_again_s)
        infos = await asyncio.gather(*(stream_info(connection, stream) for stream in streams))
        found = []
        for stream, info in zip(streams, infos, strict=True):
            found += _copies(stream, info, clustered=connection.clustered) if info is not None else []
        if not found:
            break
    return found or [Answer("ok", "every stream has its leader and its copies")]


def _copies(stream: str, info: Mapping[str, Any], *, clustered: bool) -> list[Answer]:
    replicas, cluster = int(info["config"].get("num_replicas", 1)), info.get("cluster") or {}
    if clustered and not cluster.get("leader"):
        hint = "look at the cluster: nats server report jetstream"
        return [Answer("fail", f"stream {stream} has no leader", hint)]
    peers = cluster.get("replicas") or []
    behind = sorted(peer["name"] for peer in peers if peer.get("offline") or not peer.get("current"))
    if behind:
        text = f"stream {stream}: the copy on {', '.join(behind)} is behind, or its node is away"
        return [Answer("warn", text, "look at the node; start it again")]
    if clustered and replicas < 3:
        text = f"stream {stream} has {replicas} of 3 copies in a cluster: it stands still when its node does"
        return [Answer("warn", text, "jetjobs setup apply --replicas 3")]
    return []


async def pin(look: Look) -> list[Answer]:
    """The first message of a work stream, without which a long queue is slow. ADR 1."""
    found = []
    for queue in look.queues:
        stream = look.jetstream.names.work_stream(queue)
        info = await stream_info(look.jetstream.connection, stream)
        if info is None:
            continue
        first = await at_sequence(look.jetstream.connection, stream, int(info["state"]["first_seq"]))
        if first is None or first.subject != look.jetstream.names.pin(queue):
            text = f"queue {queue}: the pin is not its first message: with many jobs queued it gets slow"
            hint = "jetjobs setup apply; when jobs stand before it, it helps once they are done"
            found.append(Answer("warn", text, hint))
    return found or [Answer("ok", "every queue has its pin")]


async def locks(look: Look) -> list[Answer]:
    """A lock without an end keeps every leader out for ever. What else stands in the bucket is no lock."""
    bucket = look.jetstream.names.locks_bucket
    if await stream_info(look.jetstream.connection, kv_stream(bucket)) is None:
        return []  # the plan says so
    await check_direct_get(look.jetstream.connection, kv_stream(bucket))
    async for lock in scan(look.jetstream.connection, kv_stream(bucket), kv_subject(bucket, n.LEADER), limit=1):
        if lock.data and h.TTL not in lock.headers and h.KV_OPERATION not in lock.headers:
            text = f"lock {n.LEADER} never ends: no worker can lead, and nothing is swept"
            hint = f"nats kv purge {bucket} {n.LEADER} --force"
            return [Answer("fail", text, hint)]
    return [Answer("ok", "the leader's lock ends by itself")]


async def orphans(look: Look) -> list[Answer]:
    """Consumers of a work stream that are none of its lanes: what they take, no worker runs."""
    found = []
    for queue in look.queues:
        stream = look.jetstream.names.work_stream(queue)
        for consumer in await consumers_of(look.jetstream.connection, stream):
            name = str(consumer["name"])
            if name not in n.PULLED:
                text = f"consumer {name} on work stream {stream} is no lane: jobs that it takes are not run"
                found.append(Answer("warn", text, f"nats consumer rm {stream} {name}"))
    return found or [Answer("ok", "no consumer but the lanes")]


CHECKS: tuple[Check, ...] = (plan, capacity, copies, pin, locks, orphans)
