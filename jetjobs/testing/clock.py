"""Let time pass for waiting jobs without waiting: move their due times forward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.get import StoredMessage, at_sequence
from jetjobs.jetstream.messages.publisher import Outgoing, WrongLastSequence
from jetjobs.jetstream.messages.scan import scan_waiting
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import JetJobsError
from jetjobs.model.public import public
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import new_run
from jetjobs.testing.sync_bridge import run_with_client
from jetjobs.worker.leader.overdue_jobs import fired

FIRING_S = 2.0
"""A job due within this time may be firing already, so it is left to the server. A job that an advance brings this
close to its due time counts as due: the due time was computed from an answer of the server, which takes time."""
_FIRED_S = 30.0
_TIMES = (h.ENQUEUED_AT, h.DUE_AT, h.DEADLINE)


@public("jetjobs.testing")
class Clock:
    """The clock of the waiting jobs on an app's server: delayed, retrying or snoozed, in all queues."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app

    def advance(self, by: Duration) -> int:
        """Let `by` pass for waiting jobs. Jobs that are due by then are queued on return; returns their number.

        All other waiting jobs become due that much earlier; deadlines and ages of waiting jobs move with them.
        Nothing else changes: not the clock of this process, not the deadline of a queued job, not the time for
        which a result is kept.
        """
        by_s = to_duration("by", by, of="Clock.advance: ").total_seconds()

        async def advance_all(client: JetStreamClient) -> int:
            queues = await list_queues(client.connection, client.names)
            return sum([await bring_forward(client, queue, by_s) for queue in queues])

        return run_with_client(self._app, advance_all)


async def bring_forward(
    client: JetStreamClient,
    queue: str,
    by_s: float | None,
    which: Callable[[StoredMessage], bool] = lambda message: True,
) -> int:
    """Let `by_s` pass for the waiting jobs of a queue; None: for each job, the time until it is due.

    Jobs that are due by then are in their lane on return; returns their number. The others wait for less time.
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
    for due_at, message in sorted(jobs, key=lambda job: job[0]):
        passed_s = max(0.0, due_at - now) if by_s is None else by_s
        if due_at - now <= FIRING_S:
            firing.append(message)
        elif due_at - passed_s <= now + FIRING_S:
            moved += await _store(client, stream, _due_now(message, passed_s))
        else:
            await _store(client, stream, _due_earlier(message, due_at, passed_s))
    for message in firing:
        await _until_fired(client, stream, message)
    return moved + len(firing)


def _due_now(message: StoredMessage, by_s: float) -> Outgoing:
    due = fired(message)
    assert isinstance(due.headers, dict)
    return due._replace(headers=due.headers | _shifted(message, by_s))


def _due_earlier(message: StoredMessage, due_at: float, by_s: float) -> Outgoing:
    headers = _shifted(message, by_s)
    at = datetime.fromtimestamp(due_at - by_s, UTC).isoformat(timespec="microseconds")
    headers[h.SCHEDULE] = f"@at {at.replace('+00:00', 'Z')}"
    headers[h.SCHEDULE_TARGET] = message.headers[h.SCHEDULE_TARGET]
    return Outgoing(message.subject, message.data, headers)


def _shifted(message: StoredMessage, by_s: float) -> dict[str, str]:
    """The job's headers with its times that much earlier: age and deadline are computed from them."""
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    for name in _TIMES:
        if name in headers:
            headers[name] = f"{max(1.0, float(headers[name]) - by_s):.6f}"
    headers[h.MSG_ID] = f"forward.{message.sequence}.{new_run()}"
    # Store it only if the job has not moved since it was read.
    headers[h.EXPECTED_LAST_SUBJECT_SEQ] = str(message.sequence)
    return headers


async def _store(client: JetStreamClient, stream: str, message: Outgoing) -> bool:
    try:
        return await client.publisher.store(stream, message)
    except WrongLastSequence:
        return False  # the job has moved since it was read


async def _until_fired(client: JetStreamClient, stream: str, message: StoredMessage) -> None:
    """Wait until the server has moved a job that is due within two seconds."""
    give_up = time.monotonic() + _FIRED_S
    while await at_sequence(client.connection, stream, message.sequence) is not None:
        if time.monotonic() > give_up:
            raise JetJobsError(f"the server has not moved {message.subject}, although it is due")
        await asyncio.sleep(0.02)
