"""Jobs that wait for their time: brought forward, as if time had passed for them, without waiting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence
from jetjobs.jetstream.messages.publisher import Outgoing, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan_waiting
from jetjobs.jetstream.topology import list_queues
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import JetJobsError
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_run
from jetjobs.testing.sync_bridge import ask
from jetjobs.worker.leader.overdue_jobs import fired

FIRING_S = 2.0
"""So shortly before a job is due the server may be moving it already: then it is left to do so. Within as much, a
job counts as due when time is brought forward: its due time was reckoned from a server's answer."""
_FIRED_S = 30.0
_MOMENTS = (h.ENQUEUED_AT, h.DUE_AT, h.DEADLINE)


@public("jetjobs.testing")
class Clock:
    """The time of the jobs that wait on an app's server: delayed, retrying or snoozed, in all queues."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app

    def advance(self, by: timedelta | str) -> int:
        """As if `by` had passed for them: what is due by then is queued when this returns, and how many those are.

        Everything else waits for so much less. Their deadline and age move along. Nothing else does: not the clock
        of this process, not the deadline of a queued job, not the time that a result is kept.
        """
        if not isinstance(by, str | timedelta):
            raise TypeError(f"advance takes a timedelta or text such as '90m', not {by!r}")
        by_s = (parse_duration(by) if isinstance(by, str) else by).total_seconds()
        if by_s < 0:
            raise ValueError("time does not go back")

        async def everywhere(client: JetStreamClient) -> int:
            queues = await list_queues(client.connection, client.names)
            return sum([await bring_forward(client, queue, by_s) for queue in queues])

        return ask(self._app, everywhere)


async def bring_forward(
    client: JetStreamClient,
    queue: str,
    by_s: float | None,
    which: Callable[[StoredMessage], bool] = lambda message: True,
) -> int:
    """As if `by_s` had passed for the jobs that wait: those due by then are in their lane when this returns.

    Returns how many those are. The others wait for less time. None: as long as each has to wait.
    """
    stream = client.names.work_stream(queue)
    jobs = [
        (due_at, message)
        async for message in scan_waiting(client.connection, client.names, queue)
        if which(message) and (due_at := due_time(message.headers)) is not None
    ]
    now = await client.server_clock.ask(stream)
    moved = 0
    firing: list[StoredMessage] = []
    for due_at, message in sorted(jobs, key=lambda one: one[0]):
        passed_s = max(0.0, due_at - now) if by_s is None else by_s
        if due_at - now <= FIRING_S:
            firing.append(message)
        elif due_at - passed_s <= now + FIRING_S:
            moved += await _store(client, stream, _now(message, passed_s))
        else:
            await _store(client, stream, _sooner(message, due_at, passed_s))
    for message in firing:
        await _gone(client, stream, message)
    return moved + len(firing)


def _now(message: StoredMessage, by_s: float) -> Outgoing:
    due = fired(message)
    assert isinstance(due.headers, dict)
    return due._replace(headers=due.headers | _shifted(message, by_s))


def _sooner(message: StoredMessage, due_at: float, by_s: float) -> Outgoing:
    headers = _shifted(message, by_s)
    at = datetime.fromtimestamp(due_at - by_s, UTC).isoformat(timespec="microseconds")
    headers[h.SCHEDULE] = f"@at {at.replace('+00:00', 'Z')}"
    headers[h.SCHEDULE_TARGET] = message.headers[h.SCHEDULE_TARGET]
    return Outgoing(message.subject, message.data, headers)


def _shifted(message: StoredMessage, by_s: float) -> dict[str, str]:
    """The job's headers with its moments that much earlier: its age and its deadline are reckoned from them."""
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    for name in _MOMENTS:
        if name in headers:
            headers[name] = f"{max(1.0, float(headers[name]) - by_s):.6f}"
    headers[h.MSG_ID] = f"forward.{message.sequence}.{new_run()}"
    # Only if it still stands there as we read it.
    headers[h.EXPECTED_LAST_SUBJECT_SEQ] = str(message.sequence)
    return headers


async def _store(client: JetStreamClient, stream: str, message: Outgoing) -> bool:
    try:
        return await client.publisher.store(stream, message)
    except WrongLastSequence:
        return False  # it has moved meanwhile


async def _gone(client: JetStreamClient, stream: str, message: StoredMessage) -> None:
    """Wait until the server has moved it. Due within two seconds, so that is soon."""
    give_up = time.monotonic() + _FIRED_S
    while await at_sequence(client.connection, stream, message.sequence) is not None:
        if time.monotonic() > give_up:
            raise JetJobsError(f"the server has not moved {message.subject}, though it is due")
        await asyncio.sleep(0.02)
