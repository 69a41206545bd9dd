"""Jobs in lane `later`: brought forward, as if time had passed for them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.publisher import Outgoing, Taken
from jetjobs.jetstream.reads import StoredMessage, at_sequence, parse_time
from jetjobs.jetstream.scan import scan
from jetjobs.model import names as n
from jetjobs.model.errors import JetJobsError
from jetjobs.model.ids import new_run
from jetjobs.worker.overdue import due_time

FIRING_S = 2.0
"""So shortly before a job is due the server may be moving it already: then it is left to do so. Within as much, a
job counts as due when time is brought forward: its due time was reckoned from a server's answer."""
_FIRED_S = 30.0
_MOMENTS = (n.ENQUEUED_AT, n.DUE_AT, n.DEADLINE)


class Waiting(NamedTuple):
    """A job in lane `later` and when it is due, by the server's clock."""

    message: StoredMessage
    due_at: float


async def waiting_in(client: JetStreamClient, queue: str) -> tuple[list[Waiting], float]:
    """The jobs that wait in a queue, the first due first; and the time by the server's clock."""
    stream = client.names.work_stream(queue)
    found = [
        Waiting(message, due_at)
        async for message in scan(client.connection, stream, client.names.lane_filter(queue, n.LATER))
        if (due_at := due_time(message)) is not None
    ]
    info = await client.connection.api(f"STREAM.INFO.{stream}")
    return sorted(found, key=lambda one: one.due_at), parse_time(info["ts"])


async def bring_forward(
    client: JetStreamClient,
    queue: str,
    by_s: float | None,
    which: Callable[[StoredMessage], bool] = lambda message: True,
) -> int:
    """As if `by_s` had passed for the jobs that wait: those due by then are in their lane when this returns.

    Returns how many those are. The others wait for less time. None: as long as each has to wait.
    """
    jobs, now = await waiting_in(client, queue)
    stream = client.names.work_stream(queue)
    fired = 0
    firing: list[Waiting] = []
    for one in jobs:
        if not which(one.message):
            continue
        passed_s = max(0.0, one.due_at - now) if by_s is None else by_s
        if one.due_at - now <= FIRING_S:
            firing.append(one)
        elif one.due_at - passed_s <= now + FIRING_S:
            fired += await _store(client, stream, _now(one, passed_s))
        else:
            await _store(client, stream, _sooner(one, passed_s))
    for one in firing:
        await _gone(client, stream, one)
    return fired + len(firing)


def _now(one: Waiting, by_s: float) -> Outgoing:
    """Into its lane and out of `later`, in one step of the server's."""
    message = one.message
    headers = _shifted(message, by_s)
    headers[n.SCHEDULER] = message.subject
    headers[n.SCHEDULE_NEXT] = "purge"
    headers[n.EXPECTED_LAST_SUBJECT] = message.subject
    return Outgoing(message.headers[n.SCHEDULE_TARGET], message.data, headers)


def _sooner(one: Waiting, by_s: float) -> Outgoing:
    message = one.message
    headers = _shifted(message, by_s)
    due_at = datetime.fromtimestamp(one.due_at - by_s, UTC)
    headers[n.SCHEDULE] = f"@at {due_at.isoformat(timespec='microseconds').replace('+00:00', 'Z')}"
    headers[n.SCHEDULE_TARGET] = message.headers[n.SCHEDULE_TARGET]
    return Outgoing(message.subject, message.data, headers)


def _shifted(message: StoredMessage, by_s: float) -> dict[str, str]:
    """The job's headers with its moments that much earlier: its age and its deadline are reckoned from them."""
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    for name in _MOMENTS:
        if name in headers:
            headers[name] = f"{max(1.0, float(headers[name]) - by_s):.6f}"
    headers[n.MSG_ID] = f"forward.{message.sequence}.{new_run()}"
    # Only if it still stands there as we read it.
    headers[n.EXPECTED_LAST_SUBJECT_SEQ] = str(message.sequence)
    return headers


async def _store(client: JetStreamClient, stream: str, message: Outgoing) -> bool:
    try:
        return await client.publisher.store(stream, message)
    except Taken:
        return False  # it has moved meanwhile


async def _gone(client: JetStreamClient, stream: str, one: Waiting) -> None:
    """Wait until the server has moved it. Due within two seconds, so that is soon."""
    give_up = time.monotonic() + _FIRED_S
    while await at_sequence(client.connection, stream, one.message.sequence) is not None:
        if time.monotonic() > give_up:
            raise JetJobsError(f"the server has not moved {one.message.subject}, though it is due")
        await asyncio.sleep(0.02)
