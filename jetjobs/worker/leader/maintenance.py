"""The leader's sweeps: what they are, how often they are made, and two of them.

Overdue jobs are those that wait and that the clock has passed by: a schedule that falls due while JetStream
storage is full is not fired, and stays so until the server restarts. Orphans are objects that nothing refers to: a
crash between object and message leaves one, and so does a dead letter that has aged out.
"""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import due_time
from jetjobs.jetstream.messages.get import StoredMessage, last_on
from jetjobs.jetstream.messages.payloads import ObjectInfo, read_info
from jetjobs.jetstream.messages.publisher import Outgoing, Taken
from jetjobs.jetstream.messages.scan import PAGE, page, scan_waiting
from jetjobs.jetstream.topology import queues_on
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.subjects import object_chunks, object_metas
from jetjobs.worker.leader.duty_runner import Duty, Swept
from jetjobs.worker.leader.stranded_jobs import StrandedJobs

OVERDUE = "overdue"
HINTS = "given_up"
OVERDUE_EVERY_S = 600.0
CALL_AGAIN_S = 10.0
STRANDED_EVERY_S = 60.0
ORPHANS_EVERY_S = 600.0
LATE_S = 30.0
"""So late that the clock cannot be about to fire it."""
SLOW_S = 2.0
"""So late the clock should not be, though it may yet fire it."""
_REST_S = 0.02
"""After each page: a million waiting jobs are read without haste."""
OLDER_THAN_S = 3600.0
"""Younger objects are left alone: their message may be on its way."""
_AGAIN_S = 1.0
_JOB = ("queue", "task", "id", "run")


class OverdueCall:
    """Calls on the leader to look for overdue jobs, once storage was full: what fell due then was not fired."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream
        self._call_at = 0.0
        self.was_full = False

    def tick(self) -> None:
        if self.was_full and time.monotonic() >= self._call_at:
            self.was_full, self._call_at = False, time.monotonic() + CALL_AGAIN_S
            self._jetstream.connection.post(self._jetstream.names.control(OVERDUE), b"")


def sweeps(jetstream: JetStreamClient, stranded: StrandedJobs) -> list[Duty]:
    """For all queues of the namespace: the leader need not work on them itself."""

    async def each_queue(sweep: Callable[[str], Awaitable[Swept]]) -> Swept:
        """One queue in trouble does not keep the others waiting; one without rights for us is left out."""
        done: list[Swept] = []
        failed: BrokerError | None = None
        for queue in await queues_on(jetstream.connection, jetstream.names):
            try:
                done.append(await sweep(queue))
            except AccessDenied:
                continue
            except BrokerError as error:
                failed = error
        if failed is not None:
            raise failed
        soonest = min((one.again_in_s for one in done if one.again_in_s is not None), default=None)
        return Swept(sum(one.mended for one in done), soonest)

    async def orphans() -> Swept:
        return Swept(await sweep_orphans(jetstream))

    overdue = functools.partial(sweep_overdue, jetstream)
    return [
        Duty(OVERDUE, OVERDUE_EVERY_S, lambda: each_queue(overdue)),
        Duty("stranded", STRANDED_EVERY_S, lambda: each_queue(stranded.sweep)),
        Duty(HINTS, math.inf, stranded.check_hints),
        Duty("orphans", ORPHANS_EVERY_S, orphans),
    ]


async def sweep_overdue(jetstream: JetStreamClient, queue: str, late_s: float = LATE_S) -> Swept:
    """Move what has been due for `late_s`. What is late, but not so late, is for another look."""
    stream = jetstream.names.work_stream(queue)
    now = api.parse_time((await jetstream.connection.api(api.stream_info(stream)))["ts"])
    mended = seen = 0
    again_in_s: float | None = None
    async for message in scan_waiting(jetstream.connection, jetstream.names, queue):
        due_at = due_time(message.headers)
        if due_at is not None and now - due_at > late_s:
            mended += await _fire(jetstream, stream, message)
        elif due_at is not None and now - due_at > SLOW_S:
            again_in_s = min(again_in_s or late_s, late_s)
        seen += 1
        if seen % PAGE == 0:
            await asyncio.sleep(_REST_S)
    return Swept(mended, again_in_s)


def fired(message: StoredMessage) -> Outgoing:
    """Stores the job in its lane and takes it out of the one where it waits, in one step of the server's."""
    headers = {k: v for k, v in message.headers.items() if not k.lower().startswith("nats-")}
    headers[h.SCHEDULER] = message.subject
    headers[h.SCHEDULE_NEXT] = "purge"
    headers[h.MSG_ID] = f"fired.{message.sequence}"
    # Only if it is still there as it was read: it may have been fired, cancelled or moved since.
    headers[h.EXPECTED_LAST_SUBJECT_SEQ] = str(message.sequence)
    headers[h.EXPECTED_LAST_SUBJECT] = message.subject
    return Outgoing(message.headers.get(h.SCHEDULE_TARGET, ""), message.data, headers)


async def _fire(jetstream: JetStreamClient, stream: str, message: StoredMessage) -> bool:
    try:
        return await jetstream.publisher.store(stream, fired(message))
    except Taken:
        return False


async def sweep_orphans(jetstream: JetStreamClient, older_than_s: float = OLDER_THAN_S) -> int:
    """Delete objects older than `older_than_s` that no live job, dead letter or done record refers to, and chunks
    that belong to no object. Returns how many. BrokerError when the server does not answer; it may be repeated.

    What was not written by jetjobs is left alone, and so is an object whose queue has no streams any more:
    they may be restored. One object is looked at after another, to be gentle. Lists may be stale: what is deleted
    is decided by the streams' leaders, and twice.
    """
    payloads = jetstream.payloads
    before = await jetstream.server_clock.seconds(payloads.stream) - older_than_s
    removed, start = 0, 1
    known: set[str] = set()
    while metas := await page(jetstream.connection, payloads.stream, object_metas(payloads.store), start, PAGE):
        start = metas[-1].sequence + 1
        objects = [read_info(meta) for meta in metas]
        known |= {one.nuid for one in objects}
        removed += await _sweep_objects(jetstream, [one for one in objects if one.stored_at < before])
    return removed + await _sweep_chunks(jetstream, known, before)


async def _sweep_objects(jetstream: JetStreamClient, objects: list[ObjectInfo]) -> int:
    suspects = [one for one in objects if not await _is_needed(jetstream, one)]
    if not suspects:
        return 0
    # Whoever moved so that we missed it is found the second time.
    await asyncio.sleep(_AGAIN_S)
    removed = 0
    for one in suspects:
        there = await jetstream.payloads.info(one.name)
        if there is None or there.sequence != one.sequence or await _is_needed(jetstream, one):
            continue
        await jetstream.payloads.remove(there)
        removed += 1
    return removed


async def _is_needed(jetstream: JetStreamClient, one: ObjectInfo) -> bool:
    if not all(one.labels.get(key) for key in _JOB):
        return True  # not ours
    labels = one.labels
    try:
        return await jetstream.places.needs(labels["queue"], labels["task"], labels["id"], one.name)
    except TopologyMissing:
        return True


async def _sweep_chunks(jetstream: JetStreamClient, known: set[str], before: float) -> int:
    """Chunks without an entry: a writer died before it could make its object visible. The server lists the chunks
    of 100,000 objects at most; what is beyond that waits until there are fewer."""
    payloads = jetstream.payloads
    query = {"subjects_filter": object_chunks(payloads.store, ">")}
    info = await jetstream.connection.api(api.stream_info(payloads.stream), query, timeout_s=15.0)
    prefix = object_chunks(payloads.store, "")
    strays = {subject.removeprefix(prefix) for subject in info["state"].get("subjects") or {}} - known
    return sum([await _remove_chunks(jetstream, nuid, before) for nuid in strays])


async def _remove_chunks(jetstream: JetStreamClient, nuid: str, before: float) -> bool:
    """Remove chunks that are old and whose object, by the leader, is not there or was written by another."""
    payloads = jetstream.payloads
    last = await last_on(jetstream.connection, payloads.stream, object_chunks(payloads.store, nuid))
    if last is None or last.stored_at >= before or h.OBJECT not in last.headers:
        return False
    there = await payloads.info(last.headers[h.OBJECT])
    if there is not None and there.nuid == nuid:
        return False
    await payloads.purge_chunks(nuid)
    return True
