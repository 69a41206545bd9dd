"""`app.queues`: the state and rates of each queue; pause, resume, purge and delete."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.queues.purge import Purge, Purged
from jetjobs.jetstream.queues.queue_state import lane_states, pause, queue_state, resume, server_time_of
from jetjobs.jetstream.queues.removal import close_queue, delete_queue, jobs_in, reopen_queue
from jetjobs.jetstream.workers.registry import list_workers
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError, QueueInUse, QueueNotFound
from jetjobs.model.public import public
from jetjobs.model.views.audit import DONE, UNCHANGED
from jetjobs.model.views.queue_info import LaneState, Pause, QueueState
from jetjobs.model.views.worker_info import WorkerRecord
from jetjobs.model.wire.validation import check_token

RATES_OVER = timedelta(seconds=0.2)
"""Time between the two measurements that rates are computed from."""


@public("jetjobs.admin")
class Queues:
    """The queues of one namespace, as they are on the server."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream
        self._connection = jetstream.connection
        self._names = jetstream.names

    async def names(self) -> list[str]:
        """The names of all queues."""
        return await list_queues(self._connection, self._names)

    async def list(
        self, *, rates_over: Duration = RATES_OVER, before: Sequence[QueueState] = ()
    ) -> list[QueueState]:
        """The state of every queue.

        Rates are measured since `before`, an earlier list; without one, over the time `rates_over`. 0 omits them.
        """
        rates_s = to_duration("rates_over", rates_over).total_seconds()
        if not before and rates_s:
            started = time.monotonic()
            before = await self.list(rates_over=0)
            await asyncio.sleep(rates_s - (time.monotonic() - started))
        queues, workers = await asyncio.gather(self.names(), list_workers(self._connection, self._names))
        earlier = {state.queue: state.lanes for state in before}
        states = (self._state(queue, workers, earlier.get(queue, ())) for queue in queues)
        return [state for state in await asyncio.gather(*states) if state is not None]

    async def get(self, queue: str, *, rates_over: Duration = 5 * RATES_OVER) -> QueueState:
        """The state of one queue, with its rates over a time. QueueNotFound when it does not exist."""
        check_token("queue", queue)
        rates_s = to_duration("rates_over", rates_over).total_seconds()
        lanes: Sequence[LaneState] = ()
        if rates_s:
            lanes = await lane_states(self._connection, self._names, queue)
            await asyncio.sleep(rates_s)
        workers = await list_workers(self._connection, self._names)
        return await queue_state(self._connection, self._names, queue, workers, lanes)

    async def _state(
        self, queue: str, workers: Sequence[WorkerRecord], before: Sequence[LaneState]
    ) -> QueueState | None:
        try:
            return await queue_state(self._connection, self._names, queue, workers, before)
        except QueueNotFound:
            return None  # deleted since the queues were listed

    async def pause(
        self, queue: str, *, for_: Duration | None = None, reason: str = "", by: str = ""
    ) -> QueueState:
        """Start no jobs of the queue, for a time or until `resume`. Running jobs finish.

        Repeating it replaces the time and the reason. QueueNotFound when the queue does not exist.
        """
        check_token("queue", queue)
        length = None if for_ is None else to_duration("for_", for_, of="pause: ", positive=True)
        if length is not None and length > timedelta(days=3650):
            raise DefinitionError(f"pause: invalid for_ {for_!r:.80}: use at most ten years")
        async with self._jetstream.audit.action("queue.pause", queue, by=by, reason=reason) as outcome:
            now = server_time_of(await lane_states(self._connection, self._names, queue))
            wanted = Pause(None if length is None else now + length, reason, by, now)
            await pause(self._connection, self._jetstream.publisher, self._names, queue, wanted)
            outcome.detail = "" if wanted.until is None else f"until {wanted.until.isoformat()}"
        return await self.get(queue, rates_over=0)

    async def resume(self, queue: str, *, by: str = "", reason: str = "") -> bool:
        """Start its jobs again. False when it was not paused; QueueNotFound when it does not exist."""
        check_token("queue", queue)
        async with self._jetstream.audit.action("queue.resume", queue, by=by, reason=reason) as outcome:
            resumed = await resume(self._connection, self._jetstream.publisher, self._names, queue)
            outcome.set(DONE if resumed else UNCHANGED)
        return resumed

    async def purge(
        self,
        queue: str,
        *,
        scheduled: bool = False,
        by: str = "",
        reason: str = "",
        step: Callable[[int], None] = lambda count: None,
    ) -> Purged:
        """Delete the queued jobs; with `scheduled`, also the jobs scheduled for later.

        Running jobs, jobs enqueued since the purge began, done records and dead letters stay. QueueNotFound when
        the queue does not exist.
        """
        check_token("queue", queue)
        jetstream = self._jetstream
        purge = Purge(jetstream.connection, jetstream.publisher, jetstream.names, queue, step)
        async with jetstream.audit.action("queue.purge", queue, by=by, reason=reason) as outcome:
            purged = await purge.run(scheduled=scheduled)
            outcome.counts = {"queued": purged.queued, "scheduled": purged.scheduled}
        return purged

    async def delete(self, queue: str, *, force: bool = False, by: str = "", reason: str = "") -> QueueState:
        """Delete the queue with its lanes and done records, and return its last state.

        QueueInUse while it holds jobs or dead letters, or workers or schedules use it. `force` deletes it anyway,
        with its jobs and dead letters. QueueNotFound when it does not exist.
        """
        check_token("queue", queue)
        async with self._jetstream.audit.action("queue.delete", queue, by=by, reason=reason) as outcome:
            found = await self._delete(queue, force)
            jobs = found.queued + found.running + found.scheduled + found.retrying
            outcome.counts = {"jobs": jobs, "dead": found.dead}
        return found

    async def _delete(self, queue: str, force: bool) -> QueueState:
        found = await self.get(queue, rates_over=0)
        if not force:
            await self._check_unused(found)
        # Nothing can be enqueued between the last look and the end of the stream.
        config = await close_queue(self._connection, self._names, queue)
        try:
            if not force and (left := await jobs_in(self._connection, self._names, queue)):
                raise _in_use(queue, [f"{left:,} new job{'s' if left > 1 else ''}"])
        except BaseException:
            await reopen_queue(self._connection, config)
            raise
        await delete_queue(self._connection, self._names, queue)
        return found

    async def _check_unused(self, found: QueueState) -> None:
        jobs = {
            "queued": found.queued,
            "running": found.running,
            "scheduled": found.scheduled,
            "retrying": found.retrying,
            "dead": found.dead,
        }
        workers = await list_workers(self._connection, self._names)
        schedules = await self._jetstream.schedules.all()
        users = [
            f"{count:,} {state} jobs" if count > 1 else f"1 {state} job" for state, count in jobs.items() if count
        ]
        users += [f"worker {worker.key}" for worker in workers if found.queue in worker.queues]
        users += [
            f"schedule {one.name}" for one in schedules if one.schedule and one.schedule.queue == found.queue
        ]
        if users:
            raise _in_use(found.queue, users)


def _in_use(queue: str, users: Sequence[str]) -> QueueInUse:
    return QueueInUse(
        f"queue {queue!r} is in use: {', '.join(users)}",
        hint="run, replay or purge its jobs and stop its workers first; force deletes it with everything in it",
    )
