"""Fill one page of a list of jobs from the streams that contain them, with a bounded number of reads."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.status import ListingSource, read_arguments
from jetjobs.jetstream.messages.scan import page
from jetjobs.model.errors import TopologyMissing
from jetjobs.model.job import JobState
from jetjobs.model.views.job_query import JobPage, JobQuery, ListedJob, Position, write_cursor
from jetjobs.model.wire.headers import SECRET

SCAN_LIMIT = 10_000
"""The most messages that are read for one page."""
_BATCH = 256


class Lister:
    """Fills one page of a list."""

    def __init__(
        self, jetstream: JetStreamClient, query: JobQuery, limit: int, within: Collection[str] | None
    ) -> None:
        self._jetstream, self._query, self._limit, self._within = jetstream, query, limit, within
        self._items: list[ListedJob] = []
        self._scanned = 0
        self._missing = {path for path, _ in query.where}
        self._secret: set[str] = set()

    async def fill(self, sources: list[ListingSource], position: Position | None) -> JobPage:
        for source in sources:
            start = position.sequence if position is not None and position.source == source.key else 1
            reached = await self._read(source, start)
            if reached is not None:
                return self._page(write_cursor(self._query, Position(source.key, reached)))
        return self._page(None)

    def _page(self, cursor: str | None) -> JobPage:
        unknown = tuple(sorted(self._missing)) if self._scanned else ()
        return JobPage(self._items, cursor, self._scanned, unknown, tuple(sorted(self._secret)))

    async def _read(self, source: ListingSource, start: int) -> int | None:
        """Collect the matches of one source. Returns where to continue when the page is full, None at the end."""
        since = ""
        if start == 1 and self._query.since is not None:
            since = self._query.since.isoformat()
        while source.until is None or start <= source.until:
            try:
                batch = min(_BATCH, 4 * self._limit)
                found = await page(self._jetstream.connection, source.stream, source.subject, start, batch, since)
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
        if status is None or (self._within is not None and status.queue not in self._within):
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
