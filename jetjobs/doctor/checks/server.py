"""Checks of the server itself: version, distance, room, clock, durability, permissions."""

from __future__ import annotations

from jetjobs.doctor.finding import Answer, Check, Look, size
from jetjobs.jetstream.queues.inspection import account_usage, may_publish, round_trip_s, stream_info
from jetjobs.model.durations import show_duration
from jetjobs.model.wire.ids import new_uid
from jetjobs.model.wire.subjects import kv_subject

ADVISED = {(2, 14): 5, (2, 15): 1}
"""The patch of each line from which on no loss of messages is known."""
SLOW_S = 0.1
SKEW_S = 2.0
FULL, NEARLY_FULL = 0.95, 0.8
LEAST_PAYLOAD = 256 * 1024
MOST_PAYLOAD = 8 * 1024 * 1024


async def version(look: Look) -> list[Answer]:
    """Refused is said where the connection is made; here is what works and is not advised."""
    found = look.jetstream.connection.version
    major, minor, patch = (int(part) for part in found.split("."))
    advised = ADVISED.get((major, minor))
    if (advised is not None and patch >= advised) or (major, minor) > max(ADVISED):
        return [Answer("ok", f"nats-server {found}, JetStream on")]
    text = f"nats-server {found} has known faults that lose messages"
    return [Answer("warn", text, f"run {major}.{minor}.{advised} or newer")]


async def round_trip(look: Look) -> list[Answer]:
    took_s = await round_trip_s(look.jetstream.connection, SLOW_S / 20)
    if took_s < SLOW_S:
        return [Answer("ok", f"round trip {took_s * 1000:.1f} ms")]
    text = f"round trip {show_duration(took_s)}: every enqueue and every settling waits for one"
    return [Answer("warn", text, "run workers and producers nearer to the server")]


async def storage(look: Look) -> list[Answer]:
    """Against the limits of the account. The server's own are told to nobody but its monitoring port."""
    found = []
    told = await account_usage(look.jetstream.connection)
    for share in told:
        part = share.used / share.most if share.most > 0 else 0.0
        if part < NEARLY_FULL:
            continue
        text = f"{part:.0%} of the account's {share.what} in use ({_shown(share.what, share.used)} of "
        text += f"{_shown(share.what, share.most)}): when it is full, publishes are refused"
        hint = "raise the limit, or remove what is not needed"
        found.append(Answer("fail" if part >= FULL else "warn", text, hint))
    used = sum(share.used for share in told if share.what.startswith("file"))
    return found or [Answer("ok", f"{size(used)} of storage in use")]


def _shown(what: str, number: int) -> str:
    return size(number) if "storage" in what else str(number)


async def clock(look: Look) -> list[Answer]:
    names = look.jetstream.names
    streams = [names.dead_stream, *(names.work_stream(queue) for queue in look.queues)]
    for stream in streams:
        skew = await look.jetstream.server_clock.skew_s(stream)
        if skew is None:
            continue
        if abs(skew) <= SKEW_S:
            return [Answer("ok", "clocks agree")]
        side = "ahead of" if skew > 0 else "behind"
        text = f"the server's clock is {show_duration(abs(skew))} {side} this machine's"
        return [Answer("warn", text, "let both set their clocks by NTP")]
    return [Answer("skip", "clock: no stream is there to tell the server's time")]


async def durability(look: Look) -> list[Answer]:
    """What a client can know: copies and kind of storage. When the server flushes is told to nobody."""
    found, single = [], []
    for queue in look.queues:
        info = await stream_info(look.jetstream.connection, look.jetstream.names.work_stream(queue))
        if info is None:
            continue
        if look.settings.queues.storage == "memory" and look.settings.env == "production":
            text = f"queue {queue} is kept in memory: its jobs go when the server restarts"
            found.append(Answer("warn", text, "make it anew with queues.storage = file"))
        elif int(info["config"].get("num_replicas", 1)) < 3:
            single.append(queue)
    if found:
        return found
    if single:
        text = "durability: one copy, and a client is not told when the server flushes it to the disk"
        hint = "see that the server has sync_interval: always"
        return [Answer("skip", text, hint)]
    return [Answer("ok", "every queue has three copies or more")] if look.queues else []


async def permissions(look: Look) -> list[Answer]:
    """By publishes that the server refuses to store, once it has looked whether this user may."""
    names, connection = look.jetstream.names, look.jetstream.connection
    found = []
    token = new_uid()
    # Who may enter himself into the registry is to run jobs; producers and operators are not.
    works = await may_publish(connection, kv_subject(names.workers_bucket, token))
    for queue in look.queues:
        if await may_publish(connection, names.job(queue, "normal", "_doctor", "-", token)) is False:
            text = f"this user may not publish to queue {queue}: it can neither enqueue nor run jobs"
            found.append(Answer("fail", text, f"permit {names.queue_filter(queue)}"))
            continue
        done = kv_subject(names.done_bucket(queue), names.done_key("_doctor", token))
        needed = (names.dead(queue, "_doctor", token), done) if works else ()
        if False in [await may_publish(connection, subject) for subject in needed]:
            text = f"this user runs jobs, and may not put away those of queue {queue} that have ended"
            places = f"{names.dead_of(queue)} and {kv_subject(names.done_bucket(queue), '>')}"
            found.append(Answer("fail", text, f"permit {places}"))
    text = "this user may enqueue and run jobs" if works else "this user may enqueue; it is not one of a worker"
    return found or [Answer("ok", text)]


async def payload_limit(look: Look) -> list[Answer]:
    limit = look.jetstream.connection.max_payload
    hint = "set max_payload: 1MB in the server's configuration"
    if limit < LEAST_PAYLOAD:
        text = f"max_payload is {size(limit)}: much goes by way of the object store, and headers have little room"
        return [Answer("warn", text, hint)]
    if limit > MOST_PAYLOAD:
        text = f"max_payload is {size(limit)}: large messages hold up all others of their connection"
        return [Answer("warn", text, hint)]
    return [Answer("ok", f"max_payload {size(limit)}")]


CHECKS: tuple[Check, ...] = (version, round_trip, storage, clock, durability, payload_limit, permissions)
