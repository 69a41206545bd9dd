"""Checks of streams, lanes and buckets: missing, different from the plan, or not created by jetjobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from jetjobs.doctor.finding import Check, CheckContext, CheckResult, Level, many
from jetjobs.jetstream import topology
from jetjobs.jetstream.messages.get import at_sequence
from jetjobs.jetstream.messages.scan import check_direct_get, scan
from jetjobs.jetstream.queues.inspection import consumers_of, list_namespaces, list_queues, stream_info
from jetjobs.jetstream.queues.removal import jobs_in
from jetjobs.jetstream.topology_plan import plan as plan_topology
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.workers.registry import list_workers, live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.settings import QueueSettings
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.subjects import Names, kv_stream, kv_subject

APPLY = "jetjobs setup apply"
CHECK_OF_KEY = {
    "ack_wait": "lease",
    "max_deliver": "deliveries",
    "max_ack_pending": "capacity",
    "duplicate_window": "duplicates",
    "num_replicas": "copies",
    "storage": "durability",
}
"""By key: the name of the check that reports a difference. All other keys are reported by `plan`."""
LOSES_JOBS = frozenset(
    {"retention", "discard", "max_age", "max_msgs", "max_bytes", "subjects", "filter_subject", "storage"}
)
"""Keys whose difference loses jobs or leaves them where no worker finds them."""


async def plan(context: CheckContext) -> list[CheckResult]:
    """Compares the server with what `setup apply` would create. The check `tasks` reports missing queues."""
    settings = context.settings.queues
    connection = context.jetstream.connection
    wanted = plan_topology(
        context.jetstream.names, context.queues, settings, replicas=3 if connection.clustered else 1
    )
    changes = await topology.inspect(connection, wanted, keep_replicas=settings.replicas is None)
    missing = [change.wanted.label for change in changes if change.action == "create"]
    found = [CheckResult("fail", f"{label} is missing", APPLY) for label in missing]
    if len(missing) > 3:
        found = [CheckResult("fail", f"{len(missing)} are missing: {', '.join(missing)}", APPLY)]
    found += [
        _difference(change.wanted.label, key, actual, planned, settings)
        for change in changes
        for key, (actual, planned) in change.diff.items()
    ]
    if found:
        return found
    lanes = sum(bool(one.consumer) for one in wanted)
    counts = many(len(context.queues), "queue"), many(lanes, "lane"), many(len(wanted) - lanes, "stream")
    text = f"as planned: {', '.join(counts)}"
    return [CheckResult("ok", text)]


def _difference(label: str, key: str, actual: Any, wanted: Any, settings: QueueSettings) -> CheckResult:
    check = CHECK_OF_KEY.get(key, "plan")
    level: Level = "fail" if key in LOSES_JOBS else "warn"
    text = f"{label}: {key} is {_value(key, actual)}, planned {_value(key, wanted)}"
    if key == "ack_wait" and isinstance(actual, int):
        beat_s = settings.lease.total_seconds() / 3
        if actual / api.NS < 3 * beat_s:
            level = "fail" if actual / api.NS <= beat_s else "warn"
            text = f"{label}: ack_wait {show_duration(actual / api.NS)} < 3 × heartbeat {show_duration(beat_s)}"
    elif key == "max_deliver" and isinstance(actual, int) and 0 < actual <= settings.max_crashes:
        level = "fail"
        text += f": the server stops delivering a job before {settings.max_crashes} crashes are counted"
    return CheckResult(level, text, APPLY, check=check)


def _value(key: str, value: Any) -> str:
    if value is None:
        return "not set"
    if key in ("ack_wait", "duplicate_window", "max_age") and isinstance(value, int):
        return show_duration(value / api.NS) if value else "no limit"
    return str(value)


async def capacity(context: CheckContext) -> list[CheckResult]:
    """Finds slots that stay empty because a lane delivers fewer jobs at once than workers have slots."""
    connection, names = context.jetstream.connection, context.jetstream.names
    slots: dict[str, int] = {}
    for worker in await live_workers(connection, names):
        for queue, of in worker.queues.items():
            slots[queue] = slots.get(queue, 0) + of.total
    limit, found = context.settings.queues.max_running, []
    for queue, total in sorted(slots.items()):
        if total > limit:
            text = (
                f"queue {queue}: workers have {total:,} slots, but a lane delivers at most {limit:,} jobs at once"
            )
            found.append(CheckResult("warn", text, "raise queues.max_running and run `jetjobs setup apply`"))
    return found or [CheckResult("ok", "lanes deliver enough jobs for all slots")]


async def copies(context: CheckContext) -> list[CheckResult]:
    """Checks the leaders and replicas of all streams of the namespace."""
    connection, settings = context.jetstream.connection, context.settings.queues
    planned = plan_topology(context.jetstream.names, context.queues, settings)
    streams = list(dict.fromkeys(one.stream for one in planned))
    few: list[str] = []
    found: list[CheckResult] = []
    for recheck_s in (0.0, 0.5, 1.0):
        # A replica may lag for a moment, or an election may be running.
        await asyncio.sleep(recheck_s)
        infos = await asyncio.gather(*(stream_info(connection, stream) for stream in streams))
        existing = [(stream, info) for stream, info in zip(streams, infos, strict=True) if info is not None]
        found = [result for stream, info in existing for result in _replicas(stream, info)]
        few = [stream for stream, info in existing if _clustered(info) and _number(info) < 3]
        if not found:
            break
    least = min((_number(info) for stream, info in existing if stream in few), default=0)
    if few and least != settings.replicas:
        text = f"{many(len(few), 'stream')} with {least} of 3 replicas, unavailable while a node is down: "
        found.append(CheckResult("warn", text + ", ".join(few), "jetjobs setup apply --replicas 3"))
    if few and not found:
        return [CheckResult("ok", f"every stream has a leader and {least} of 3 replicas, as queues.replicas says")]
    return found or [CheckResult("ok", "every stream has a leader and all its replicas")]


def _number(info: Mapping[str, Any]) -> int:
    return int(info["config"].get("num_replicas", 1))


def _clustered(info: Mapping[str, Any]) -> bool:
    """Whether the stream is in a cluster. Its server knows; the one of this connection may be a leaf node."""
    return bool((info.get("cluster") or {}).get("name"))


def _replicas(stream: str, info: Mapping[str, Any]) -> list[CheckResult]:
    cluster = info.get("cluster") or {}
    if _clustered(info) and not cluster.get("leader"):
        hint = "inspect the cluster: `nats server report jetstream`"
        return [CheckResult("fail", f"stream {stream} has no leader", hint)]
    peers = cluster.get("replicas") or []
    behind = sorted(peer["name"] for peer in peers if peer.get("offline") or not peer.get("current"))
    if behind:
        text = f"stream {stream}: the replica on {', '.join(behind)} is behind or offline"
        return [CheckResult("warn", text, "check the node and restart it")]
    return []


async def pin(context: CheckContext) -> list[CheckResult]:
    """Checks the first message of each work stream, without which a long queue is slow. ADR 1."""
    found = []
    for queue in context.queues:
        stream = context.jetstream.names.work_stream(queue)
        info = await stream_info(context.jetstream.connection, stream)
        if info is None:
            continue
        first = await at_sequence(context.jetstream.connection, stream, int(info["state"]["first_seq"]))
        if first is None or first.subject != context.jetstream.names.pin(queue):
            text = f"queue {queue}: the pin is not the first message: the queue is slow when many jobs wait"
            hint = "jetjobs setup apply; it takes effect when all jobs before the pin are done"
            found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", "every queue has a pin")]


async def locks(context: CheckContext) -> list[CheckResult]:
    """Finds a leader lock without an expiry, which prevents every election. Ignores other keys of the bucket."""
    bucket = context.jetstream.names.locks_bucket
    if await stream_info(context.jetstream.connection, kv_stream(bucket)) is None:
        return []  # reported by the check `plan`
    await check_direct_get(context.jetstream.connection, kv_stream(bucket))
    async for lock in scan(context.jetstream.connection, kv_stream(bucket), kv_subject(bucket, n.LEADER), limit=1):
        if lock.data and h.TTL not in lock.headers and h.KV_OPERATION not in lock.headers:
            text = f"lock {n.LEADER} never expires: no worker can lead, and schedules and maintenance stop"
            hint = f"nats kv purge {bucket} {n.LEADER} --force"
            return [CheckResult("fail", text, hint)]
    return [CheckResult("ok", "the leader lock expires")]


async def orphans(context: CheckContext) -> list[CheckResult]:
    """Finds consumers of a work stream that jetjobs did not create: no worker runs the jobs they take."""
    found = []
    for queue in context.queues:
        stream = context.jetstream.names.work_stream(queue)
        for consumer in await consumers_of(context.jetstream.connection, stream):
            name = str(consumer["name"])
            if name not in n.PULLED:
                text = f"consumer {name} on work stream {stream} is not a lane: the jobs it takes are not run"
                found.append(CheckResult("warn", text, f"nats consumer rm {stream} {name}"))
    return found or [CheckResult("ok", "no foreign consumers")]


async def namespaces(context: CheckContext) -> list[CheckResult]:
    """Finds jobs in another namespace that no worker serves. An app that is renamed leaves its jobs behind."""
    connection, found = context.jetstream.connection, []
    for namespace in await list_namespaces(connection):
        names = Names(namespace)
        if namespace == context.jetstream.names.namespace or await list_workers(connection, names):
            continue
        jobs = sum([await jobs_in(connection, names, queue) for queue in await list_queues(connection, names)])
        if jobs:
            text = f"namespace {namespace} holds {many(jobs)} and has no running worker: was the app renamed?"
            hint = (
                f"start the worker of app {namespace}; after a rename, this app's with `--namespace {namespace}`"
            )
            hint += f"; or delete them with `jetjobs setup destroy --namespace {namespace}`"
            found.append(CheckResult("warn", text, hint))
    return found or [CheckResult("ok", "no other namespace holds jobs without a worker")]


CHECKS: tuple[Check, ...] = (plan, capacity, copies, pin, locks, orphans, namespaces)
