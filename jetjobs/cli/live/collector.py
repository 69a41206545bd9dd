"""Read from the server what the live view shows, with a limited number of requests for each update."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jetjobs.app import JetJobs
from jetjobs.cli.live.rate_history import RateHistory
from jetjobs.cli.live.snapshot import Content, Snapshot, has_worker
from jetjobs.cli.live.view_state import Page
from jetjobs.cli.terminal.text import json_line
from jetjobs.jetstream.queues.queue_state import queue_state, stream_state
from jetjobs.model.errors import JetJobsError, QueueNotFound, TopologyMissing
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.masking import shown_arguments
from jetjobs.model.views.dead_letter import DeadLetter, DeadLetterFilter
from jetjobs.model.views.job_query import JobQuery
from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.views.worker_info import WorkerRecord

QUEUES_AT_ONCE = 50
"""How many queues one update reads: those on the screen, and the others in turn. The first one reads all."""
LETTERS = 200
JOBS = 50
ARGUMENTS = 5_000
"""Characters of arguments that are kept for the page of a job."""
_PAGE_EVERY_S = 2.0
_SCHEDULES_EVERY_S = 5.0
_WINDOW = 500


class Collector:
    """Reads queues, running jobs and workers again and again, and the content of the open page."""

    def __init__(self, app: JetJobs, *, only_running: bool = False) -> None:
        self._app = app
        self._only_running = only_running
        self._states: dict[str, QueueState] = {}
        self._history: dict[str, RateHistory] = {}
        self._read_at: dict[str, int] = {}
        self._round = 0
        self._lost_since: dict[str, float] = {}
        self._place: object = None
        self._content: Content | None = None
        self._content_at = 0.0
        self._letters_of: object = None

    async def snapshot(self, visible: Sequence[str] = ()) -> Snapshot:
        """The present state. Of many queues, those not in `visible` are read in turn."""
        app = self._app
        running, workers = await asyncio.gather(app.jobs.running(), app.workers.list())
        if not self._only_running:
            await self._read_queues(visible, workers)
        lost = self._lost(running, workers)
        queues = [self._states[name] for name in sorted(self._states)]
        return Snapshot(time.time(), queues, running, workers, self._history, lost)

    async def _read_queues(self, visible: Sequence[str], workers: Sequence[WorkerRecord]) -> None:
        self._round += 1
        names = await self._app.queues.names()
        for known in (self._states, self._history, self._read_at):
            for gone in known.keys() - set(names):
                del known[gone]
        chosen = due_queues(names, visible, self._read_at)
        for first in range(0, len(chosen), QUEUES_AT_ONCE):
            some = chosen[first : first + QUEUES_AT_ONCE]
            await asyncio.gather(*(self._read_queue(name, workers) for name in some))

    async def _read_queue(self, name: str, workers: Sequence[WorkerRecord]) -> None:
        before = self._states.get(name)
        jetstream = self._app.jetstream
        try:
            state = await queue_state(
                jetstream.connection, jetstream.names, name, workers, before.lanes if before is not None else ()
            )
        except QueueNotFound:
            return  # deleted since the queues were listed
        self._states[name], self._read_at[name] = state, self._round
        history = self._history.setdefault(name, RateHistory())
        if before is not None and state.in_per_s is not None and state.out_per_s is not None:
            history.add(before.at, state.at, state.in_per_s, state.out_per_s)

    def _lost(self, running: Sequence[JobStatus], workers: Sequence[WorkerRecord]) -> dict[str, float]:
        """The running jobs without a worker. Their lease began before their worker was seen to be gone."""
        now = time.monotonic()
        gone = {job.id for job in running if not has_worker(job, workers)}
        self._lost_since = {job_id: self._lost_since.get(job_id, now) for job_id in gone}
        lease = max((worker.lease.total_seconds() for worker in workers), default=0.0)
        lease = lease or self._app.settings.queues.lease.total_seconds()
        return {job_id: max(0.0, lease - (now - since)) for job_id, since in self._lost_since.items()}

    # Pages

    async def content(self, page: Page) -> Content | None:
        """What the page shows besides the snapshot; None for a page without own content."""
        readers = {"queue": self._jobs, "job": self._job, "dead": self._dead, "schedules": self._schedules}
        reader = readers.get(page.kind)
        if reader is None:
            self._place = self._content = None
            return None
        every_s = _SCHEDULES_EVERY_S if page.kind == "schedules" else _PAGE_EVERY_S
        same = self._place == page.place and self._content is not None
        if same and page.kind != "job" and time.monotonic() - self._content_at < every_s:
            return self._content
        try:
            found = await reader(page, self._content if same else None)
        except JetJobsError as error:
            if not self._app.jetstream.connection.connected:
                raise
            found = Content(error=str(error))
        self._place, self._content, self._content_at = page.place, found, time.monotonic()
        return found

    async def _jobs(self, page: Page, _: Content | None) -> Content:
        found = await self._app.jobs.page(JobQuery(queue=page.queue), limit=JOBS)
        return Content(jobs=[item.status for item in found.items], more=found.cursor is not None)

    async def _job(self, page: Page, before: Content | None) -> Content:
        queue, task, job_id = page.subject
        status = await self._app.jobs.get(job_id, queue=queue, task=task)
        known = before is not None and before.job is not None and before.job.run == status.run
        if before is not None and known and before.arguments:
            return Content(job=status, arguments=before.arguments)
        return Content(job=status, arguments=await self._arguments(status))

    async def _arguments(self, status: JobStatus) -> str:
        jetstream = self._app.jetstream
        place = status.queue, status.task, status.id
        if status.state is JobState.DEAD:
            message = await jetstream.dead.get(*place)
        else:
            message = await jetstream.locator.find_live(*place)
        if message is None:
            return "not kept: the job has ended"
        return json_line(shown_arguments(message.data, message.headers))[:ARGUMENTS]

    async def _dead(self, page: Page, before: Content | None) -> Content:
        """The newest letters. They are read again only if the stream has changed."""
        jetstream = self._app.jetstream
        try:
            state = await stream_state(jetstream.connection, jetstream.names.dead_stream)
        except TopologyMissing:
            return Content()
        version = (page.queue, state["last_seq"], state["messages"])
        if before is not None and not before.error and self._letters_of == version:
            return before
        letters, more = await self._newest(page.queue, state)
        self._letters_of = version
        return Content(letters=letters, more=more)

    async def _newest(self, queue: str, state: Mapping[str, int]) -> tuple[list[DeadLetter], bool]:
        """Read from near the end, further back only if there are few letters of that queue."""
        first, last, window = state["first_seq"], state["last_seq"], _WINDOW
        while True:
            start = max(first, last - window)
            found: deque[DeadLetter] = deque(maxlen=LETTERS)
            seen = 0
            async for letter in self._app.dead.list(DeadLetterFilter(queue or None), start=start):
                seen += 1
                found.append(replace(letter, body=b""))  # not shown, and may be large
            if seen >= LETTERS or start <= first:
                return [*reversed(found)], seen > LETTERS or start > first
            window *= 8

    async def _schedules(self, page: Page, _: Content | None) -> Content:
        try:
            return Content(schedules=await self._app.schedules.list())
        except TopologyMissing:
            return Content()


def due_queues(names: Sequence[str], visible: Sequence[str], read_at: Mapping[str, int]) -> list[str]:
    """The queues to read now: those on the screen, those that were never read, and those that were read longest
    ago, up to the limit.

    >>> due_queues(["a", "b", "c"], ["c"], {"a": 1})
    ['c', 'b', 'a']
    """
    there = set(names)
    shown = [name for name in dict.fromkeys(visible) if name in there]
    others = sorted(there - set(shown), key=lambda name: (read_at.get(name, 0), name))
    unread = sum(name not in read_at for name in others)
    return [*shown, *others][: max(QUEUES_AT_ONCE, len(shown) + unread)]
