"""Wait for a job to end, or follow it: told by a push to our inbox, made sure of by looks at the streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

from jetjobs.jetstream.jobs.dead_letters import DeadLetters, read_cause
from jetjobs.jetstream.jobs.locator import JobLocator
from jetjobs.jetstream.jobs.results import Results
from jetjobs.jetstream.messages.payloads import Payloads
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import (
    BrokerUnavailable,
    JobCancelled,
    JobFailed,
    MalformedJob,
    ResultError,
    ResultExpired,
    ResultNotReady,
)
from jetjobs.model.job import FINAL, JobState, JobStatus
from jetjobs.model.masking import mask_result
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import as_time, read_json, read_record, read_running
from jetjobs.model.wire.subjects import Names

_LOOK_S = 1.0
"""Between looks at the bucket when a push is expected; it only makes up for a lost one."""
_FIRST_LOOK_S = 0.02
_FETCH_S = 10.0
"""For reading a large result at least, however late the job has ended."""


class JobReference(Protocol):
    """What waiting needs to know of a handle."""

    id: str
    queue: str
    task: str
    run: str
    stores_result: bool
    duplicate: bool


class ResultWaiter:
    """One inbox for all results this process waits for. Subscribed on first use: who never asks pays nothing."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        payloads: Payloads,
        results: Results,
        dead: DeadLetters,
        locator: JobLocator,
    ) -> None:
        self._connection = connection
        self._names = names
        self._payloads = payloads
        self._results = results
        self._dead = dead
        self._locator = locator
        self._inbox = ""
        self._subscribed = False
        self._expected: dict[str, asyncio.Future[dict[str, Any]]] = {}

    def reply_for(self, job_id: str) -> str:
        """The inbox a worker is to push the job's record to."""
        if not self._inbox:
            self._inbox = self._connection.nc.new_inbox()
        return f"{self._inbox}.{job_id}"

    async def status(self, handle: JobReference, run: str = "") -> JobStatus:
        return await self._locator.status(handle.queue, handle.task, handle.id, run)

    async def result(self, handle: JobReference, decode: Callable[[bytes], Any], timeout_s: float) -> Any:
        """See JobHandle.result."""
        _, result = await self._succeeded(handle, timeout_s)
        try:
            return decode(result)
        except ValueError as error:
            raise ResultError(
                f"job {handle.id}: the result does not fit the task's annotation: {error}"
            ) from error

    async def shown(self, handle: JobReference, timeout_s: float) -> Any:
        """See JobHandle.shown_result."""
        record, result = await self._succeeded(handle, timeout_s)
        return mask_result(read_json(result), record.get("secret"))

    async def _succeeded(self, handle: JobReference, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """The record and the result of a job that has succeeded, or what it came to otherwise, raised."""
        if not handle.stores_result:
            raise ResultExpired(f"task {handle.task!r} keeps no result", hint="declare it with store_result=True")
        give_up = time.monotonic() + timeout_s
        record = await self._record(handle, timeout_s)
        if record["state"] == "cancelled":
            by = f" by {record['by']}" if record.get("by") else ""
            raise JobCancelled(f"job {handle.id} was cancelled{by}: {record.get('reason') or 'no reason given'}")
        if record["state"] == "dead":
            raise JobFailed(
                f"job {handle.id} is dead ({record.get('reason')}): {record.get('type')}: {record.get('text')}",
                reason=str(record.get("reason")),
                error_type=str(record.get("type")),
                text=str(record.get("text")),
                traceback=str(record.get("traceback") or ""),
            )
        if record["state"] != "succeeded" or not {"result", "result_object"} & record.keys():
            raise ResultError(f"job {handle.id} has a record that cannot be read")
        return record, await self._result(handle, record, give_up)

    async def _result(self, handle: JobReference, record: dict[str, Any], give_up: float) -> bytes:
        """The result in the record, or the object it names."""
        name = record.get("result_object")
        if name is None:
            return json.dumps(record["result"]).encode()
        try:
            async with asyncio.timeout(max(_FETCH_S, give_up - time.monotonic())):
                return await self._payloads.get(str(name))
        except TimeoutError:
            raise ResultNotReady(f"job {handle.id} has ended, but its result could not be read in time") from None
        except MalformedJob as error:
            raise ResultExpired(f"job {handle.id} has ended and its result is gone: {error}") from error

    async def _record(self, handle: JobReference, timeout_s: float) -> dict[str, Any]:
        await self._subscribe()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        told = self._expected.setdefault(handle.id, loop.create_future())
        # A duplicate's record is pushed to whoever enqueued it first: we look, soon at first, then less often.
        pause = _FIRST_LOOK_S if handle.duplicate else _LOOK_S
        run = handle.run
        try:
            while True:
                record = await self._look(handle)
                if record is not None:
                    return record
                remaining = give_up - loop.time()
                if remaining <= 0:
                    raise ResultNotReady(f"job {handle.id} has not ended within {timeout_s:g} s")
                await asyncio.wait({told}, timeout=min(pause, remaining))
                if told.done():
                    if _is_run(told.result(), handle):
                        return told.result()
                    told = self._expected[handle.id] = loop.create_future()  # of another life: wait on
                pause = min(pause * 2, _LOOK_S)
                with contextlib.suppress(BrokerUnavailable):
                    run = await self._check_alive(handle, run)
        finally:
            self._expected.pop(handle.id, None)

    async def _look(self, handle: JobReference) -> dict[str, Any] | None:
        """Like `_ended`; a server that does not answer just now is no answer, and the caller has time left."""
        try:
            return await self._ended(handle)
        except BrokerUnavailable:
            return None

    async def _ended(self, handle: JobReference) -> dict[str, Any] | None:
        done = await self._results.get(handle.queue, handle.task, handle.id)
        if done is not None and _is_run(record := read_record(done.data), handle):
            return record
        letter = await self._dead.get(handle.queue, handle.task, handle.id)
        if letter is not None and handle.run in ("", letter.headers.get(h.RUN)):
            return {"state": "dead", **read_cause(letter.headers)}
        return None

    async def _check_alive(self, handle: JobReference, run: str) -> str:
        """The job's run, if it was seen; see `JobLocator.find_live`. ResultExpired when it is gone.

        The order of looks is that of a job's life.
        """
        where = handle.queue, handle.task, handle.id
        if await self._locator.find_live(*where, run):
            return run
        running = await self._locator.running_without_id(*where)
        if not running and await self._ended(handle) is None:
            raise ResultExpired(
                f"job {handle.id} has ended and its record is gone, or cannot be read",
                hint="or it was published without jetjobs, and is not found by this id before it runs",
            )
        return str(running.get("run", run))

    # Following: told by the job's events, made sure of by a look at the streams each second.

    async def follow(self, handle: JobReference) -> AsyncIterator[JobStatus]:
        """Each status that differs from the one before. Ends with the job, or when it is nowhere."""
        told: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        sid = await self._connection.nc.listen(
            self._names.job_event("*", handle.queue, handle.task, handle.id),
            lambda subject, reply, data, headers: _put_newest(told, data),
        )
        last: JobStatus | None = None
        try:
            while True:
                event = await _event(told, _LOOK_S) if last is not None else None
                status = _as_told(last, event) if last is not None and event else None
                if status is None:
                    # A server that does not answer just now is no news.
                    with contextlib.suppress(BrokerUnavailable):
                        status = await self.status(handle, last.run if last is not None else "")
                if status is None:
                    await asyncio.sleep(_LOOK_S)
                    continue
                if last is None or _differs(status, last):
                    yield status
                last = status
                if status.state is None or status.state in FINAL:
                    return
        finally:
            with contextlib.suppress(Exception):
                await self._connection.nc.unlisten(sid)

    # Pushed records

    async def _subscribe(self) -> None:
        if not self._subscribed:
            self._subscribed = True
            self.reply_for("")
            # No round trip: what we ask next on this connection is answered after the server has heard of it.
            await self._connection.nc.listen(f"{self._inbox}.*", self._on_record)

    def _on_record(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        told = self._expected.get(subject[len(self._inbox) + 1 :])
        record = read_record(data)
        if told is not None and not told.done() and "state" in record:
            told.set_result(record)


def _is_run(record: dict[str, Any], handle: JobReference) -> bool:
    return "state" in record and handle.run in ("", record.get("run"))


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
        started_at=as_time(event["started_at"]),
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
