"""`app.jobs`: find a job by its id alone, list jobs by state, and change those that wait."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime, timedelta
from typing import Any, NoReturn

from jetjobs.admin.cancel import CancelAnswer, Canceller
from jetjobs.admin.reschedule import MoveAnswer, Rescheduler
from jetjobs.define.options import check_moment
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.results import read_record
from jetjobs.jetstream.jobs.status import ListingSource, listing_sources, read_arguments
from jetjobs.jetstream.messages.scan import page, scan
from jetjobs.jetstream.queues.queue_state import lane_states
from jetjobs.jetstream.topology import list_queues
from jetjobs.model.errors import (
    AccessDenied,
    ConfigError,
    JobAmbiguous,
    JobNotFound,
    QueueNotFound,
    ResultError,
    TopologyMissing,
)
from jetjobs.model.job import FINAL, NEVER, JobState, JobStatus, running_status
from jetjobs.model.public import public
from jetjobs.model.views.job_query import (
    MAX_LIMIT,
    JobPage,
    JobQuery,
    ListedJob,
    Position,
    read_cursor,
    write_cursor,
)
from jetjobs.model.wire.headers import KV_OPERATION, SECRET
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.lenient_json import read_running
from jetjobs.model.wire.subjects import PRIORITIES, kv_stream, kv_subject

SCAN_LIMIT = 10_000
"""Messages looked at for one page at the most."""
_STEP = 256


def check_priority(priority: str) -> None:
    """ConfigError for what no lane is called."""
    if priority not in PRIORITIES:
        raise ConfigError(f"priority {priority!r} is none of {', '.join(PRIORITIES)}")


@public("jetjobs.admin")
class Jobs:
    """The jobs of one namespace, whatever app they are of."""

    def __init__(self, jetstream: JetStreamClient) -> None:
        self._jetstream = jetstream

    # One job

    async def get(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> JobStatus:
        """Where the job of that id stands. JobNotFound when it is nowhere, JobAmbiguous when two have the id,
        ResultError when its record cannot be read."""
        where = await self.locate(job_id, queue, task)
        status = await self._jetstream.locator.status(*where, job_id)
        if status.state is None:
            await self._explain(*where, job_id)
        return status if status.state in FINAL else await self._with_cancel(status)

    async def _with_cancel(self, status: JobStatus) -> JobStatus:
        """With the cancel that somebody has asked for, if it is for this life of the job."""
        try:
            mark = await self._jetstream.cancel_marks.get(status.id, status.run)
        except AccessDenied:
            return status  # a user that may see jobs, and not this
        return status if mark is None else status._replace(cancel={"by": mark.by, "reason": mark.why})

    async def locate(self, job_id: str, queue: str | None = None, task: str | None = None) -> tuple[str, str]:
        """Queue and task of the job of that id."""
        if not is_id(job_id):
            raise JobNotFound(f"{job_id!r} is no job id", hint="an id is 1 to 128 letters, digits, '-' or '_'")
        jetstream = self._jetstream
        queues = [queue] if queue is not None else await list_queues(jetstream.connection, jetstream.names)
        found = await self._jetstream.locator.locate(job_id, queues)
        found = {(q, t) for q, t in found if queue in (None, q) and task in (None, t)}
        if not found:
            raise JobNotFound(
                f"no job is found by the id {job_id}",
                hint="records of ended jobs are kept for an hour, unless the task says otherwise; a job published"
                " without jetjobs may be not found by this id yet: `jetjobs jobs list --task TASK` shows it",
            )
        if len(found) > 1:
            places = sorted(found)
            listed = ", ".join(f"{q}/{t}" for q, t in places)
            raise JobAmbiguous(
                f"{len(places)} jobs have the id {job_id}: {listed}", places=places, hint="add --queue and --task"
            )
        return found.pop()

    async def _explain(self, queue: str, task: str, job_id: str) -> NoReturn:
        """Why the job that was located has no state."""
        there = await self._jetstream.results.get(queue, task, job_id)
        if there is not None and there.data and KV_OPERATION not in there.headers:
            raise ResultError(
                f"job {job_id} has a record that cannot be read",
                hint=f"nats kv get {self._jetstream.names.done_bucket(queue)} {task}.{job_id} shows what it says",
            )
        raise JobNotFound(f"no job {job_id}: its record has just expired, or was deleted")

    # Changes

    async def cancel(
        self,
        job_id: str,
        *,
        queue: str | None = None,
        task: str | None = None,
        by: str = "",
        reason: str = "",
        timeout: timedelta = timedelta(seconds=10),
    ) -> CancelAnswer:
        """Cancel a job wherever it stands; the answer says what became of it. Waits for one that runs to end."""
        where = await self.locate(job_id, queue, task)
        seconds = timeout.total_seconds()
        return await Canceller(self._jetstream).cancel(*where, job_id, by=by, reason=reason, timeout_s=seconds)

    async def run_now(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> MoveAnswer:
        """Let a scheduled or retrying job run now."""
        return await Rescheduler(self._jetstream).reschedule(*await self.locate(job_id, queue, task), job_id, None)

    async def reschedule(
        self, job_id: str, run_at: datetime, *, queue: str | None = None, task: str | None = None
    ) -> MoveAnswer:
        """Let a scheduled or retrying job run at another time."""
        check_moment("run_at", run_at)
        where = await self.locate(job_id, queue, task)
        return await Rescheduler(self._jetstream).reschedule(*where, job_id, run_at.timestamp())

    async def set_priority(
        self, job_id: str, priority: str, *, queue: str | None = None, task: str | None = None
    ) -> MoveAnswer:
        """Put a job that waits into another lane: high, normal or low."""
        check_priority(priority)
        where = await self.locate(job_id, queue, task)
        return await Rescheduler(self._jetstream).set_priority(*where, job_id, priority)

    # Lists

    async def page(self, query: JobQuery = JobQuery(), *, limit: int = 50, cursor: str | None = None) -> JobPage:  # noqa: B008 - frozen
        """A page of jobs in the order of their places, oldest first in each.

        At most SCAN_LIMIT messages are looked at; then the page ends early, and its cursor goes on from there.
        """
        if not 1 <= limit <= MAX_LIMIT:
            raise ConfigError(f"limit must be from 1 to {MAX_LIMIT:,}")
        position = read_cursor(query, cursor) if cursor else None
        running = await self._running()
        queues = await list_queues(self._jetstream.connection, self._jetstream.names)
        if query.queue is not None and query.queue not in queues:
            raise QueueNotFound(f"there is no queue {query.queue!r}", hint="jetjobs queues list")
        asked = queues if query.queue is None else [query.queue]
        delivered = await self._delivered(asked) if query.state is JobState.RUNNING else {}
        all_shelves = [*listing_sources(self._jetstream.names, queues, query, running, delivered)]
        if position is not None:
            keys = [source.key for source in all_shelves]
            if position.source not in keys:
                raise ConfigError("the cursor stands in a queue that is gone", hint="begin the list anew")
            all_shelves = all_shelves[keys.index(position.source) :]
        return await _Lister(self._jetstream, query, limit).fill(all_shelves, position)

    async def _delivered(self, queues: Iterable[str]) -> dict[tuple[str, str], int]:
        """The last sequence that each lane has delivered, 0 where nothing is out: what runs stands no further.

        Without it a list of the few that run would read all that wait.
        """
        connection, names = self._jetstream.connection, self._jetstream.names
        found: dict[tuple[str, str], int] = {}
        for queue in queues:
            for lane in await lane_states(connection, names, queue):
                found[queue, lane.lane] = lane.delivered if lane.running else 0
        return found

    async def running(self) -> list[JobStatus]:
        """The jobs that run and have lasted a quarter of a second, longest first, with their progress."""
        found = [running_status(job_id, record) for job_id, record in (await self._running()).items() if record]
        return sorted(found, key=lambda status: status.started_at or NEVER)

    async def _running(self) -> dict[str, Any]:
        """The running records by job id."""
        bucket = self._jetstream.names.running_bucket
        found: dict[str, Any] = {}
        try:
            async for message in scan(self._jetstream.connection, kv_stream(bucket), kv_subject(bucket, "*")):
                found[message.subject.rsplit(".", 1)[1]] = read_running(read_record(message.data))
        except TopologyMissing:
            return {}
        return found

    async def list(self, query: JobQuery = JobQuery()) -> AsyncIterator[ListedJob]:  # noqa: B008 - frozen
        """Every job of the query, page after page."""
        cursor: str | None = None
        while True:
            found = await self.page(query, limit=1000, cursor=cursor)
            for item in found.items:
                yield item
            cursor = found.cursor
            if cursor is None:
                return


class _Lister:
    """Fills one page."""

    def __init__(self, jetstream: JetStreamClient, query: JobQuery, limit: int) -> None:
        self._jetstream = jetstream
        self._query = query
        self._limit = limit
        self._items: list[ListedJob] = []
        self._scanned = 0
        self._missing = {path for path, _ in query.where}
        self._secret: set[str] = set()

    async def fill(self, all_shelves: list[ListingSource], position: Position | None) -> JobPage:
        for source in all_shelves:
            start = position.sequence if position is not None and position.source == source.key else 1
            reached = await self._read(source, start)
            if reached is not None:
                return self._page(write_cursor(self._query, Position(source.key, reached)))
        return self._page(None)

    def _page(self, cursor: str | None) -> JobPage:
        unknown = tuple(sorted(self._missing)) if self._scanned else ()
        return JobPage(self._items, cursor, self._scanned, unknown, tuple(sorted(self._secret)))

    async def _read(self, source: ListingSource, start: int) -> int | None:
        """Take what matches off a source. Where to go on if the page is full; None at the source's end."""
        since = ""
        if start == 1 and self._query.since is not None:
            since = self._query.since.isoformat()
        while source.until is None or start <= source.until:
            try:
                step = min(_STEP, 4 * self._limit)
                found = await page(self._jetstream.connection, source.stream, source.subject, start, step, since)
            except TopologyMissing:
                return None
            for message in found:
                if source.until is not None and message.sequence > source.until:
                    return None
                if len(self._items) == self._limit or self._scanned == SCAN_LIMIT:
                    return message.sequence
                self._take(source, message)
            if not found or not found[-1].following:
                return None
            start, since = found[-1].sequence + 1, ""
        return None

    def _take(self, source: ListingSource, message: Any) -> None:
        self._scanned += 1
        status = source.read(message)
        if status is None:
            return
        done = status.state in (JobState.SUCCEEDED, JobState.CANCELLED)
        arguments = None if done else read_arguments(message)
        if self._query.where:
            hidden = self._query.hidden(message.headers.get(SECRET, ""))
            self._secret |= hidden
            self._missing &= self._query.missing(arguments) - hidden
            if hidden or not self._query.matches(arguments):
                return
        self._items.append(ListedJob(status, arguments))
