"""Follow a job as it goes: told by its events, made sure of by a look at the streams each second."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.places import Places
from jetjobs.jetstream.results import read_record
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.job import FINAL, JobState, JobStatus
from jetjobs.model.names import Names
from jetjobs.model.reading import at, read_running

LOOK_S = 1.0


class Following:
    """What `JobHandle.follow` needs of the server."""

    def __init__(self, connection: Connection, places: Places, names: Names) -> None:
        self._connection = connection
        self._places = places
        self._names = names

    async def follow(self, queue: str, task: str, job_id: str) -> AsyncIterator[JobStatus]:
        """Each status that differs from the one before. Ends with the job, or when it is nowhere."""
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        sid = await self._connection.nc.listen(
            self._names.job_event("*", queue, task, job_id),
            lambda subject, reply, data, headers: _put_newest(told, data),
        )
        last: JobStatus | None = None
        try:
            while True:
                event = await _event(told, LOOK_S) if last is not None else None
                status = _as_told(last, event) if last is not None and event else None
                if status is None:
                    # A server that does not answer just now is no news.
                    with contextlib.suppress(BrokerUnavailable):
                        status = await self._places.status(queue, task, job_id)
                if status is None:
                    await asyncio.sleep(LOOK_S)
                    continue
                if last is None or _differs(status, last):
                    yield status
                last = status
                if status.state is None or status.state in FINAL:
                    return
        finally:
            with contextlib.suppress(Exception):
                await self._connection.nc.unlisten(sid)


def _differs(status: JobStatus, last: JobStatus) -> bool:
    """The start of a running job is worked out anew for each record, to about a microsecond: that is no change."""
    if status.started_at and last.started_at:
        return status._replace(started_at=last.started_at) != last
    return status != last


def _as_told(last: JobStatus, event: dict[str, Any]) -> JobStatus | None:
    """The status after an event; None when that must be looked up."""
    if event["progress"] is None:
        return None
    return last._replace(
        state=JobState.RUNNING,
        attempt=event["attempt"] or last.attempt,
        started_at=at(event["started_at"]),
        worker=event["worker"],
        progress=event["progress"],
        message=event["message"],
    )


async def _event(told: asyncio.Queue[dict[str, Any]], wait_s: float) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(wait_s):
            return await told.get()
    except TimeoutError:
        return None


def _put_newest(told: asyncio.Queue[dict[str, Any]], data: bytes) -> None:
    """Only the newest matters: a slow reader is not to fill our memory."""
    if told.full():
        told.get_nowait()
    told.put_nowait(read_running(read_record(data)))
