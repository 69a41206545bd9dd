"""Find jobs that are due and still wait because the server did not fire them, and move them to their lane.

The server does not fire a schedule that falls due while JetStream storage is full, and does not return to it
before a restart. After its clock was slow or has leapt ahead, it fires nothing in a stream until the time by which
the clock was wrong has passed once more: its timer was set by the wrong clock, and is not set again for a later
schedule. ADR 42.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.messages.publisher import Outgoing, WrongLastSequence
from jetjobs.jetstream.messages.scan import PAGE, scan_waiting
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.server_clock import JUMP_S
from jetjobs.model.errors import AccessDenied
from jetjobs.model.wire import headers as h
from jetjobs.worker.leader.duty_runner import DutyResult

OVERDUE = "overdue"
"""Name of the duty, and of the control message that requests it."""
REQUEST_EVERY_S = 10.0
LATE_S = 30.0
"""After this delay the server will no longer fire the job itself."""
SLOW_S = 2.0
"""After this delay the server should have fired the job, but still may."""
_PAGE_PAUSE_S = 0.02
"""After each page, so that reading a million waiting jobs does not load the server."""
_log = logging.getLogger("jetjobs.leader")


class OverdueRequest:
    """Asks the leader to look for overdue jobs after storage was full."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream
        self._next_at = 0.0
        self._was_full = False

    def on_full(self) -> None:
        """Storage was full: the server could not fire jobs that became due."""
        self._was_full = True

    def tick(self) -> None:
        if self._was_full and time.monotonic() >= self._next_at:
            self._was_full, self._next_at = False, time.monotonic() + REQUEST_EVERY_S
            self._jetstream.connection.post(self._jetstream.names.control(OVERDUE), b"")


class OverdueJobs:
    """Sweeps all queues of a namespace, and notices when the clock of a stream's leader jumps."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream
        self._offsets: dict[str, float] = {}
        """By queue: the clock of its leader minus our monotonic clock."""
        self._wrong_until: dict[str, float] = {}
        """By queue, after a jump: when the timer that the server set by its wrong clock has run out."""
        self._jumped_at = -math.inf

    async def clock_jumped(self, queue: str) -> bool:
        """Compare the server's clock with our monotonic clock since the last call. A machine that was suspended
        looks like a jump too, which costs one sweep."""
        asked = time.monotonic()
        server_s = await self._jetstream.server_clock.ask(self._jetstream.names.work_stream(queue))
        now = time.monotonic()
        offset = server_s - (asked + now) / 2
        jump_s = offset - self._offsets.get(queue, offset)
        self._offsets[queue] = offset
        if abs(jump_s) <= JUMP_S + (now - asked) / 2:
            return False
        self._jumped_at = now
        self._wrong_until[queue] = max(self._wrong_until.get(queue, now), now + abs(jump_s))
        extra = {"event": "leader.clock_jump", "queue": queue, "jump_s": round(jump_s, 3)}
        _log.warning("the server's clock has jumped; overdue jobs are moved to their lane", extra=extra)
        await self._jetstream.server_clock.refresh()
        return True

    def jumped_within(self, seconds: float) -> bool:
        return time.monotonic() - self._jumped_at < seconds

    async def sweep(self, queue: str) -> DutyResult:
        """Move overdue jobs. After a jump, and if the server has passed over a job, set its timer again. If that
        is not permitted, sweep again and again until the timer has run out."""
        jumped = time.monotonic() < self._wrong_until.get(queue, 0.0)
        found = await sweep_overdue(self._jetstream, queue, SLOW_S if jumped else LATE_S)
        if not jumped and not found.repaired:
            return found
        if await _set_timer(self._jetstream, self._jetstream.names.work_stream(queue)):
            self._wrong_until.pop(queue, None)
            return found
        return found._replace(repeat_in_s=REQUEST_EVERY_S)


async def sweep_overdue(jetstream: JetStreamClient, queue: str, late_s: float = LATE_S) -> DutyResult:
    """Move jobs that have been due for `late_s`, and count them. Jobs that are late by less are left for the next
    run."""
    stream = jetstream.names.work_stream(queue)
    now = await jetstream.server_clock.ask(stream)
    repaired = seen = 0
    repeat_in_s: float | None = None
    async for message in scan_waiting(jetstream.connection, jetstream.names, queue):
        due_at = due_time(message.headers)
        if due_at is not None and now - due_at > late_s:
            repaired += await _fire(jetstream, stream, message)
        elif due_at is not None and now - due_at > SLOW_S:
            repeat_in_s = min(repeat_in_s or late_s, late_s)
        seen += 1
        if seen % PAGE == 0:
            await asyncio.sleep(_PAGE_PAUSE_S)
    return DutyResult(repaired, repeat_in_s)


async def _set_timer(jetstream: JetStreamClient, stream: str) -> bool:
    """Store the configuration of the stream unchanged: the server then fires what is due and sets the timer of
    its schedules again. False without the permission."""
    try:
        info = await jetstream.connection.api(api.stream_info(stream))
        await jetstream.connection.api(api.stream_update(stream), info["config"])
    except AccessDenied:
        return False
    return True


def fired(message: StoredMessage) -> Outgoing:
    """The publish that stores a waiting job in its lane and removes it from where it waits, atomically."""
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    headers[h.SCHEDULER] = message.subject
    headers[h.SCHEDULE_NEXT] = "purge"
    headers[h.MSG_ID] = f"fired.{message.sequence}"
    # Only if it is unchanged since it was read: it may have been fired, cancelled or moved.
    headers[h.EXPECTED_LAST_SUBJECT_SEQ] = str(message.sequence)
    headers[h.EXPECTED_LAST_SUBJECT] = message.subject
    return Outgoing(message.headers.get(h.SCHEDULE_TARGET, ""), message.data, headers)


async def _fire(jetstream: JetStreamClient, stream: str, message: StoredMessage) -> bool:
    try:
        return await jetstream.publisher.store(stream, fired(message))
    except WrongLastSequence:
        return False
