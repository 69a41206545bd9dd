"""`app.jobs`: find a job by its id, list jobs, cancel them, and change the time or priority of waiting jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn

from jetjobs.admin.changes.cancel import Canceller
from jetjobs.admin.changes.reschedule import Rescheduler
from jetjobs.admin.job_lister import Lister
from jetjobs.admin.partial_ids import LEAST, TOO_SHORT
from jetjobs.define.options import check_delay, check_moment
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.id_search import search_ids
from jetjobs.jetstream.jobs.status import listing_sources
from jetjobs.jetstream.messages.get import look_twice
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.queues.queue_state import lane_states
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import (
    AccessDenied,
    ConfigError,
    DefinitionError,
    JobAmbiguous,
    JobNotFound,
    QueueNotFound,
    ResultError,
    TopologyMissing,
)
from jetjobs.model.job import FINAL, NEVER, JobState, JobStatus, running_status
from jetjobs.model.public import public
from jetjobs.model.views.job_changes import CancelAnswer, MoveAnswer
from jetjobs.model.views.job_query import (
    MAX_LIMIT,
    JobPage,
    JobQuery,
    ListedJob,
    Position,
    read_cursor,
    write_cursor,
)
from jetjobs.model.wire.headers import KV_OPERATION
from jetjobs.model.wire.ids import is_id, key_token
from jetjobs.model.wire.lenient_json import read_record, read_running
from jetjobs.model.wire.subjects import check_priority, kv_stream, kv_subject, last_token

_AT_ONCE = 64
"""Jobs of a key that are looked up at once."""


@public("jetjobs.admin")
class Jobs:
    """The jobs of one namespace, of all its apps."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    # One job

    async def get(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> JobStatus:
        """The status of the job with that id.

        JobNotFound when there is none, JobAmbiguous when several jobs have the id, ResultError when the job's
        record cannot be read.
        """
        where = await self.locate(job_id, queue, task)
        status = await self._jetstream.locator.status(*where, job_id)
        if status.state is None:
            await self._explain(*where, job_id)
        return status if status.state in FINAL else await self._with_cancel(status)

    async def _with_cancel(self, status: JobStatus) -> JobStatus:
        """Add the cancel that was requested for this run of the job, if there is one."""
        try:
            mark = await self._jetstream.cancel_marks.get(status.id, status.run)
        except AccessDenied:
            return status  # this user may read jobs, but not cancel marks
        return status if mark is None else replace(status, cancel={"by": mark.by, "reason": mark.why})

    async def locate(self, job_id: str, queue: str | None = None, task: str | None = None) -> tuple[str, str]:
        """The queue and task of the job with that id."""
        if not is_id(job_id):
            hint = "use 1 to 128 letters, digits, '-' or '_'"
            raise JobNotFound(f"invalid job id {job_id!r:.140}", job_id=str(job_id), hint=hint)
        found = await look_twice(lambda: self._places(job_id, queue, task))
        if not found:
            hint = TOO_SHORT if len(job_id) < LEAST else ""
            hint += "records of ended jobs are kept for an hour unless the task sets another time; a job"
            hint += " published without jetjobs may not have its id yet: `jetjobs jobs list --task TASK` shows it"
            raise JobNotFound(f"no job with id {job_id}", job_id=job_id, hint=hint)
        if len(found) > 1:
            places = sorted(found)
            text = f"{len(places)} jobs have the id {job_id}: " + ", ".join(f"{q}/{t}" for q, t in places)
            raise JobAmbiguous(text, places=places, job_id=job_id, hint="add --queue and --task")
        return found.pop()

    async def _places(self, job_id: str, queue: str | None, task: str | None) -> set[tuple[str, str]]:
        jetstream = self._jetstream
        queues = [queue] if queue is not None else await list_queues(jetstream.connection, jetstream.names)
        found = await jetstream.locator.locate(job_id, queues)
        return {(q, t) for q, t in found if queue in (None, q) and task in (None, t)}

    async def _explain(self, queue: str, task: str, job_id: str) -> NoReturn:
        """Raise the reason why a job that was located has no state."""
        there = await self._jetstream.results.get(queue, task, job_id)
        if there is not None and there.data and KV_OPERATION not in there.headers:
            hint = f"`nats kv get {self._jetstream.names.done_bucket(queue)} {task}.{job_id}` shows the record"
            raise ResultError(f"job {job_id} has a record that cannot be read", job_id=job_id, hint=hint)
        raise JobNotFound(f"no job with id {job_id}: its record has just expired or was deleted", job_id=job_id)

    # Changes

    async def cancel(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        task: str | None = None,
        by: str = "",
        reason: str = "",
        timeout: Duration = "10s",
    ) -> CancelAnswer:
        """Cancel a job in any state and report the outcome. Waits up to `timeout` for a running job to end."""
        seconds = to_duration("timeout", timeout).total_seconds()
        async with self._jetstream.audit.action("job.cancel", job_id, by=by, reason=reason) as outcome:
            where = await self.locate(job_id, queue, task)
            canceller = Canceller(self._jetstream)
            answer = await canceller.cancel(*where, job_id, by=by, reason=reason, timeout_s=seconds)
            outcome.set(answer.outcome, answer.detail)
        return answer

    async def run_now(
        self, job_id: str, *, queue: str | None = None, task: str | None = None, by: str = "", reason: str = ""
    ) -> MoveAnswer:
        """Make a scheduled or retrying job due now."""
        async with self._jetstream.audit.action("job.run_now", job_id, by=by, reason=reason) as outcome:
            where = await self.locate(job_id, queue, task)
            answer = await Rescheduler(self._jetstream).reschedule(*where, job_id, None)
            outcome.set(answer.outcome, answer.detail)
        return answer

    async def reschedule(
        self,
        job_id: str,
        run_at: datetime | None = None,
        *,
        delay: Duration | None = None,
        queue: str | None = None,
        task: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> MoveAnswer:
        """Change the time at which a scheduled or retrying job is due: to `run_at`, or `delay` from now."""
        if (run_at is None) == (delay is None):
            raise DefinitionError("reschedule takes either a time or a delay")
        if run_at is not None:
            check_moment("run_at", run_at)
        else:
            check_delay(delay)
        async with self._jetstream.audit.action("job.reschedule", job_id, by=by, reason=reason) as outcome:
            where = await self.locate(job_id, queue, task)
            if run_at is None:  # a delay counts on the server's clock, which fires the job
                run_at = await self._jetstream.server_clock.now() + to_duration("delay", delay)
            answer = await Rescheduler(self._jetstream).reschedule(*where, job_id, run_at.timestamp())
            outcome.set(answer.outcome, answer.detail or f"to {run_at.isoformat()}")
        return answer

    async def set_priority(
        self,
        job_id: str,
        priority: str,
        *,
        queue: str | None = None,
        task: str | None = None,
        by: str = "",
        reason: str = "",
    ) -> MoveAnswer:
        """Change the priority of a waiting job: high, normal or low."""
        check_priority(priority)
        async with self._jetstream.audit.action("job.priority", job_id, by=by, reason=reason) as outcome:
            where = await self.locate(job_id, queue, task)
            answer = await Rescheduler(self._jetstream).set_priority(*where, job_id, priority)
            outcome.set(answer.outcome, answer.detail or f"to {priority}")
        return answer

    # Lists

    async def page(
        self,
        query: JobQuery = JobQuery(),  # noqa: B008 - frozen
        *,
        limit: int = 50,
        cursor: str | None = None,
        within: Collection[str] | None = None,
    ) -> JobPage:
        """One page of jobs, grouped by where they are stored, oldest first within each group.

        At most SCAN_LIMIT messages are read; then the page ends early and its cursor continues from there.
        The jobs of a key are listed newest first. `within` limits the list to these queues.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise ConfigError(f"invalid limit {limit}: use 1 to {MAX_LIMIT:,}")
        position = read_cursor(query, cursor) if cursor else None
        queues = await list_queues(self._jetstream.connection, self._jetstream.names)
        queues = [queue for queue in queues if within is None or queue in within]
        if query.queue is not None and query.queue not in queues:
            raise QueueNotFound(
                f"queue {query.queue!r} does not exist", hint="list them with `jetjobs queues list`"
            )
        wanted = queues if query.queue is None else [query.queue]
        if query.key is not None:
            return await self._of_key(query, wanted, limit, 0 if position is None else position.sequence)
        running = await self._running()
        delivered = await self._delivered(wanted) if query.state is JobState.RUNNING else {}
        sources = [*listing_sources(self._jetstream.names, queues, query, running, delivered)]
        if position is not None:
            keys = [source.key for source in sources]
            if position.source not in keys:
                raise ConfigError("the queue of the cursor is gone", hint="start the list again without a cursor")
            sources = sources[keys.index(position.source) :]
        return await Lister(self._jetstream, query, limit, within).fill(sources, position)

    async def _of_key(self, query: JobQuery, queues: Sequence[str], limit: int, skipped: int) -> JobPage:
        """The jobs with that key, newest first: their ids begin with its token, followed by a time."""
        start = key_token(query.key or "") + "-"
        connection, names = self._jetstream.connection, self._jetstream.names
        search = await search_ids(
            connection, names, queues, lambda job_id: job_id.startswith(start), task=query.task or "*"
        )
        if search.unsearched:
            raise ConfigError(
                f"too many ids to search for a key: {', '.join(search.unsearched)}",
                hint="name another queue; `jobs list --task TASK` lists without a search",
            )
        items: list[ListedJob] = []
        found = sorted(search.found, reverse=True)
        for first in range(skipped, len(found), _AT_ONCE):
            some = found[first : first + _AT_ONCE]
            statuses = await asyncio.gather(
                *(self._jetstream.locator.status(queue, task, job_id) for job_id, queue, task in some)
            )
            for number, status in enumerate(statuses, first):
                if len(items) == limit:
                    return JobPage(items, write_cursor(query, Position("key", number)), number - skipped)
                arguments = status.arguments if isinstance(status.arguments, dict) else None
                if status.state is not None and query.selects(status) and query.matches(arguments):
                    brief = replace(status, traceback=None, headers=None, arguments=None)
                    items.append(ListedJob(brief, arguments))
        return JobPage(items, None, len(found) - skipped)

    async def _delivered(self, queues: Iterable[str]) -> dict[tuple[str, str], int]:
        """The last sequence that each lane has delivered, 0 for a lane without running jobs.

        Running jobs lie no further. Without this limit a list of them would read every waiting job.
        """
        connection, names = self._jetstream.connection, self._jetstream.names
        found: dict[tuple[str, str], int] = {}
        for queue in queues:
            for lane in await lane_states(connection, names, queue):
                found[queue, lane.lane] = lane.delivered if lane.running else 0
        return found

    async def running(self) -> list[JobStatus]:
        """Jobs that have been running for at least a quarter of a second, longest first, with their progress."""
        found = [running_status(job_id, record) for job_id, record in (await self._running()).items() if record]
        return sorted(found, key=lambda status: status.started_at or NEVER)

    async def _running(self) -> dict[str, Any]:
        """The running records by job id."""
        bucket = self._jetstream.names.running_bucket
        found: dict[str, Any] = {}
        try:
            async for message in scan(self._jetstream.connection, kv_stream(bucket), kv_subject(bucket, "*")):
                found[last_token(message.subject)] = read_running(read_record(message.data))
        except TopologyMissing:
            return {}
        return found

    async def list(self, query: JobQuery = JobQuery()) -> AsyncIterator[ListedJob]:  # noqa: B008 - frozen
        """Every job that matches the query, read page by page."""
        cursor: str | None = None
        while True:
            found = await self.page(query, limit=1000, cursor=cursor)
            for item in found.items:
                yield item
            cursor = found.cursor
            if cursor is None:
                return
