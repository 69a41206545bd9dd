"""List the leader's maintenance duties, and delete objects in the object store that nothing refers to.

A crash between storing an object and publishing its message leaves an orphaned object, and so does a dead letter
that expires. The duties for overdue and stranded jobs have modules of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.payloads import ObjectInfo, read_info
from jetjobs.jetstream.messages.scan import PAGE, page
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import AccessDenied, BrokerError, TopologyMissing
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.subjects import object_chunks, object_metas
from jetjobs.worker.leader.duty_runner import Duty, DutyResult
from jetjobs.worker.leader.overdue_jobs import OVERDUE, OverdueJobs
from jetjobs.worker.leader.stranded_jobs import StrandedJobs

HINTS = "stranded_sequences"
"""Name of the duty that checks the messages named by advisories."""
CLOCK_EVERY_S = 5.0
OVERDUE_EVERY_S = 600.0
STRANDED_EVERY_S = 60.0
ORPHANS_EVERY_S = 600.0
MIN_AGE_S = 3600.0
"""Younger objects are left alone: their message may not be published yet."""
_RECHECK_S = 1.0
_JOB_LABELS = ("queue", "task", "id", "run")


def duties(jetstream: JetStreamClient, stranded: StrandedJobs) -> list[Duty]:
    """The duties for all queues of the namespace, including those that this worker does not take jobs from."""
    late = OverdueJobs(jetstream)

    async def each_queue(sweep: Callable[[str], Awaitable[DutyResult]]) -> DutyResult:
        """One failing queue does not stop the others. Queues that this user has no permissions for are skipped."""
        results: list[DutyResult] = []
        failed: BrokerError | None = None
        for queue in await list_queues(jetstream.connection, jetstream.names):
            try:
                results.append(await sweep(queue))
            except AccessDenied:
                continue
            except BrokerError as error:
                failed = error
        if failed is not None:
            raise failed
        soonest = min((one.repeat_in_s for one in results if one.repeat_in_s is not None), default=None)
        return DutyResult(sum(one.repaired for one in results), soonest)

    async def orphans() -> DutyResult:
        # After a jump the server's clock says nothing about the age of an object.
        return DutyResult(0 if late.jumped_within(MIN_AGE_S) else await sweep_orphans(jetstream))

    overdue = Duty(OVERDUE, OVERDUE_EVERY_S, lambda: each_queue(late.sweep))

    async def check_clock(queue: str) -> DutyResult:
        if await late.clock_jumped(queue):
            overdue.run_within(0.0)
        return DutyResult(0)

    async def watch_clock() -> DutyResult:
        with contextlib.suppress(BrokerError):  # it is asked again soon; other duties report a lasting error
            await each_queue(check_clock)
        return DutyResult(0)

    return [
        Duty("clock", CLOCK_EVERY_S, watch_clock),
        overdue,
        Duty("stranded", STRANDED_EVERY_S, lambda: each_queue(stranded.sweep)),
        Duty(HINTS, math.inf, stranded.check_hints),
        Duty("orphans", ORPHANS_EVERY_S, orphans),
    ]


async def sweep_orphans(jetstream: JetStreamClient, older_than_s: float = MIN_AGE_S) -> int:
    """Delete orphans older than `older_than_s`, and chunks that belong to no object. Returns how many.

    Objects that jetjobs did not write are left alone, and so are objects of a queue whose streams are gone: the
    streams may be restored. Objects are checked one at a time to keep the load low. Lists may be stale, so each
    deletion is decided by the stream leaders, in two checks. BrokerError if the server does not answer; it is safe
    to repeat.
    """
    payloads = jetstream.payloads
    before = await jetstream.server_clock.ask(payloads.stream) - older_than_s
    removed, start = 0, 1
    known: set[str] = set()
    while metas := await page(jetstream.connection, payloads.stream, object_metas(payloads.store), start, PAGE):
        start = metas[-1].sequence + 1
        objects = [read_info(meta) for meta in metas]
        known |= {one.nuid for one in objects}
        removed += await _sweep_objects(jetstream, [one for one in objects if one.stored_at < before])
    return removed + await _sweep_chunks(jetstream, known, before)


async def _sweep_objects(jetstream: JetStreamClient, objects: list[ObjectInfo]) -> int:
    candidates = [one for one in objects if not await _is_needed(jetstream, one)]
    if not candidates:
        return 0
    # A job that moved during the first check is found by the second.
    await asyncio.sleep(_RECHECK_S)
    removed = 0
    for one in candidates:
        current = await jetstream.payloads.info(one.name)
        if current is None or current.sequence != one.sequence or await _is_needed(jetstream, one):
            continue
        await jetstream.payloads.remove(current)
        removed += 1
    return removed


async def _is_needed(jetstream: JetStreamClient, one: ObjectInfo) -> bool:
    if not all(one.labels.get(key) for key in _JOB_LABELS):
        return True  # not written by jetjobs
    labels = one.labels
    try:
        return await jetstream.locator.is_referenced(labels["queue"], labels["task"], labels["id"], one.name)
    except TopologyMissing:
        return True


async def _sweep_chunks(jetstream: JetStreamClient, known: set[str], before: float) -> int:
    """Delete chunks without an entry: their writer died before it made the object visible.

    The server lists the chunks of at most 100,000 objects; the rest wait until there are fewer.
    """
    payloads = jetstream.payloads
    query = {"subjects_filter": object_chunks(payloads.store, ">")}
    info = await jetstream.connection.api(api.stream_info(payloads.stream), query, timeout_s=15.0)
    prefix = object_chunks(payloads.store, "")
    strays = {subject.removeprefix(prefix) for subject in info["state"].get("subjects") or {}} - known
    return sum([await _remove_chunks(jetstream, nuid, before) for nuid in strays])


async def _remove_chunks(jetstream: JetStreamClient, nuid: str, before: float) -> bool:
    """Delete old chunks if, according to the stream leader, their object is gone or was written again."""
    payloads = jetstream.payloads
    last = await last_on(jetstream.connection, payloads.stream, object_chunks(payloads.store, nuid))
    if last is None or last.stored_at >= before or h.OBJECT not in last.headers:
        return False
    current = await payloads.info(last.headers[h.OBJECT])
    if current is not None and current.nuid == nuid:
        return False
    await payloads.purge_chunks(nuid)
    return True
