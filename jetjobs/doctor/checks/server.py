"""Checks of the NATS server: version, latency, storage, writes, clock, durability, permissions."""

from __future__ import annotations

import ipaddress
from typing import Any

from jetjobs.doctor.finding import Check, CheckContext, CheckResult, size
from jetjobs.jetstream.messages.refused_writes import FREE_DISK
from jetjobs.jetstream.queues.inspection import account_usage, may_publish, round_trip_s, stream_info, write_error
from jetjobs.jetstream.workers.control_client import ask_all
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import AccessDenied
from jetjobs.model.settings import has_login
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import new_uid
from jetjobs.model.wire.subjects import kv_subject, object_chunks, object_stream

MIN_PATCH = {(2, 14): 5, (2, 15): 1}
"""By minor version: the first patch release without known loss of messages."""
SLOW_S = 0.1
SKEW_S = 2.0
FULL, NEARLY_FULL = 0.95, 0.8
UNREGISTERED_S = 0.5
"""How long to wait for the answers of workers that are not registered: their number is unknown."""
MIN_PAYLOAD = 256 * 1024
MAX_PAYLOAD = 8 * 1024 * 1024


async def version(context: CheckContext) -> list[CheckResult]:
    """Warns of versions that work but are not recommended. Unsupported versions are refused when connecting."""
    found = context.jetstream.connection.version
    major, minor, patch = (int(part) for part in found.split("."))
    recommended = MIN_PATCH.get((major, minor))
    if (recommended is not None and patch >= recommended) or (major, minor) > max(MIN_PATCH):
        return [CheckResult("ok", f"nats-server {found}, JetStream enabled")]
    text = f"nats-server {found} has known bugs that lose messages"
    return [CheckResult("warn", text, f"upgrade to {major}.{minor}.{recommended} or newer")]


async def round_trip(context: CheckContext) -> list[CheckResult]:
    took_s = await round_trip_s(context.jetstream.connection, SLOW_S / 20)
    if took_s < SLOW_S:
        return [CheckResult("ok", f"round trip {took_s * 1000:.1f} ms")]
    text = f"round trip {show_duration(took_s)}: every enqueue and every finished job waits for one"
    return [CheckResult("warn", text, "run workers and producers closer to the server")]


async def login(context: CheckContext) -> list[CheckResult]:
    client = context.jetstream.connection.nc
    if client.encrypted:
        return [CheckResult("ok", "the connection is encrypted")]
    if not has_login(context.settings.nats):
        return [CheckResult("ok", "no login is sent")]
    if is_loopback(client.peer_host):
        return [CheckResult("ok", "the login stays on this machine")]
    text = f"the login goes to {client.where} without TLS: the network can read it, and every job"
    return [CheckResult("warn", text, "enable TLS on the server and use a tls:// URL")]


async def storage(context: CheckContext) -> list[CheckResult]:
    """Compares usage with the limits of the account. Clients cannot read the limits of the server itself."""
    found = []
    usage = await account_usage(context.jetstream.connection)
    for share in usage:
        part = share.used / share.most if share.most > 0 else 0.0
        if part < NEARLY_FULL:
            continue
        text = f"{part:.0%} of the account's {share.what} in use ({_shown(share.what, share.used)} of "
        text += f"{_shown(share.what, share.most)}): when it is full, the server refuses publishes"
        hint = "raise the limit or delete data"
        found.append(CheckResult("fail" if part >= FULL else "warn", text, hint))
    used = sum(share.used for share in usage if share.what.startswith("file"))
    return found or [CheckResult("ok", f"{size(used)} of storage in use")]


async def writes(context: CheckContext) -> list[CheckResult]:
    """Finds streams that store nothing. Stores nothing itself."""
    found: list[CheckResult] = []
    denied = None
    for look in (_frozen, _reported):
        try:
            found += await look(context)
        except AccessDenied as error:
            denied = error
    if denied is not None and not found:
        raise denied
    return found or [CheckResult("ok", "every stream stores what is published")]


async def _frozen(context: CheckContext) -> list[CheckResult]:
    """Asks the server about the streams that producers write to. Workers notice and report the others."""
    names, found = context.jetstream.names, []
    unused = {names.work_stream(q): names.job(q, n.MARK, "_doctor", "-", "-") for q in context.queues}
    unused[object_stream(names.payload_store)] = object_chunks(names.payload_store, "_doctor")
    for stream, subject in unused.items():
        if why := await write_error(context.jetstream.connection, stream, subject):
            found.append(CheckResult("fail", f"stream {stream} stores nothing: {why}", FREE_DISK))
    return found


async def _reported(context: CheckContext) -> list[CheckResult]:
    """What workers answer, and what the records of those say that do not answer. A record is a write itself."""
    connection, names = context.jetstream.connection, context.jetstream.names
    answers = (await ask_all(connection, names, "ping", others_s=UNREGISTERED_S)).by_worker
    reports: dict[str, Any] = {worker.key: worker.refused for worker in await live_workers(connection, names)}
    reports |= {key: answer.get("refused") or () for key, answer in answers.items()}
    return [
        CheckResult("fail", f"worker {key}: {reason}")
        for key, reasons in sorted(reports.items())
        for reason in reasons
    ]


def is_loopback(address: str) -> bool:
    """
    >>> [is_loopback(one) for one in ("127.0.0.2", "::1", "::ffff:127.0.0.1", "10.0.0.5", "fe80::1%eth0", "")]
    [True, True, True, False, False, False]
    """
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback


def _shown(what: str, number: int) -> str:
    return size(number) if "storage" in what else str(number)


async def clock(context: CheckContext) -> list[CheckResult]:
    names = context.jetstream.names
    streams = [names.dead_stream, *(names.work_stream(queue) for queue in context.queues)]
    for stream in streams:
        skew = await context.jetstream.server_clock.skew_s(stream)
        if skew is None:
            continue
        if abs(skew) <= SKEW_S:
            return [CheckResult("ok", "clocks agree")]
        side = "ahead of" if skew > 0 else "behind"
        text = f"the server's clock is {show_duration(abs(skew))} {side} this machine's"
        return [CheckResult("warn", text, "synchronise both clocks with NTP")]
    return [CheckResult("skip", "clock: the server has no stream to read its time from")]


async def durability(context: CheckContext) -> list[CheckResult]:
    """Checks replicas and storage type. A client cannot see when the server flushes to disk."""
    found, single = [], []
    for queue in context.queues:
        info = await stream_info(context.jetstream.connection, context.jetstream.names.work_stream(queue))
        if info is None:
            continue
        if context.settings.queues.storage == "memory" and context.settings.env == "production":
            text = f"queue {queue} is stored in memory: its jobs are lost when the server restarts"
            found.append(CheckResult("warn", text, "create it again with queues.storage = file"))
        elif int(info["config"].get("num_replicas", 1)) < 3:
            single.append(queue)
    if found:
        return found
    if single:
        text = "durability: with fewer than three replicas it depends on when the server flushes to disk"
        hint = "make sure that the server has sync_interval: always"
        return [CheckResult("skip", text, hint)]
    return [CheckResult("ok", "every queue has at least three replicas")] if context.queues else []


async def permissions(context: CheckContext) -> list[CheckResult]:
    """Publishes messages that the server refuses to store, but only after it has checked permissions."""
    names, connection = context.jetstream.names, context.jetstream.connection
    found = []
    token = new_uid()
    # Only workers may register; producers and operators may not.
    is_worker = await may_publish(connection, kv_subject(names.workers_bucket, token))
    for queue in context.queues:
        if await may_publish(connection, names.job(queue, "normal", "_doctor", "-", token)) is False:
            text = f"this user may not publish to queue {queue}: it can neither enqueue nor run jobs"
            found.append(CheckResult("fail", text, f"allow publishing to {names.queue_filter(queue)}"))
            continue
        done = kv_subject(names.done_bucket(queue), names.done_key("_doctor", token))
        needed = (names.dead(queue, "_doctor", token), done) if is_worker else ()
        if False in [await may_publish(connection, subject) for subject in needed]:
            text = f"this user runs jobs but may not store the outcomes of queue {queue}"
            needed_subjects = f"{names.dead_of(queue)} and {kv_subject(names.done_bucket(queue), '>')}"
            found.append(CheckResult("fail", text, f"allow publishing to {needed_subjects}"))
    text = "this user may enqueue and run jobs" if is_worker else "this user may enqueue, but not run jobs"
    return found or [CheckResult("ok", text)]


async def payload_limit(context: CheckContext) -> list[CheckResult]:
    limit = context.jetstream.connection.max_payload
    hint = "set max_payload: 1MB in the server's configuration"
    if limit < MIN_PAYLOAD:
        text = f"max_payload is {size(limit)}: many bodies go to the object store and headers have little room"
        return [CheckResult("warn", text, hint)]
    if limit > MAX_PAYLOAD:
        text = f"max_payload is {size(limit)}: large messages delay all others on their connection"
        return [CheckResult("warn", text, hint)]
    return [CheckResult("ok", f"max_payload {size(limit)}")]


CHECKS: tuple[Check, ...] = (
    version,
    round_trip,
    login,
    storage,
    writes,
    clock,
    durability,
    payload_limit,
    permissions,
)
