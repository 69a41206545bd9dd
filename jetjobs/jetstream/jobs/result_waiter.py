"""Wait for a job to end, or follow it: by records pushed to an inbox, and by polling the streams."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from jetjobs.jetstream.jobs.dead_letters import DeadLetters, read_cause
from jetjobs.jetstream.jobs.locator import JobLocator
from jetjobs.jetstream.jobs.results import Results
from jetjobs.jetstream.messages.get import look_twice
from jetjobs.jetstream.messages.payloads import Payloads
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import (
    BrokerError,
    BrokerUnavailable,
    JobCancelled,
    JobFailed,
    MalformedJob,
    QueueNotFound,
    ResultError,
    ResultExpired,
    ResultNotReady,
)
from jetjobs.model.job import FINAL, JobState, JobStatus
from jetjobs.model.masking import mask_result
from jetjobs.model.views.waiting_reason import WaitingReason
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import as_time, read_json, read_record, read_running
from jetjobs.model.wire.subjects import Names

_POLL_S = 1.0
"""Polling interval when a push is expected. Polling only replaces a lost push."""
_FIRST_POLL_S = 0.02
_EXPLAIN_S = 1.0
"""How much longer a caller waits to learn why a job has not ended."""
_FETCH_S = 10.0
"""Minimum time for reading a large result, even if the job ended late."""


class JobReference(Protocol):
    """The fields of a job handle that waiting needs."""

    id: str
    queue: str
    task: str
    run: str
    stores_result: bool
    duplicate: bool


class ResultWaiter:
    """Waits for results, on one inbox for the whole process. It subscribes on first use."""

    def __init__(
        self,
        connection: Connection,
        names: Names,
        payloads: Payloads,
        results: Results,
        dead: DeadLetters,
        locator: JobLocator,
        explain: Callable[[JobReference], Awaitable[WaitingReason | None]],
    ) -> None:
        """`explain` returns why a job has not ended."""
        self._explain = explain
        self.continued: Callable[[dict[str, Any], float], Awaitable[bytes]]
        """Waits for the result of a job that has returned a flow, given `continued_as` of its record."""
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
        """The inbox that the record of the job is pushed to."""
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
                f"job {handle.id}: the result does not match the task's annotation: {error}", job_id=handle.id
            ) from error

    async def shown(self, handle: JobReference, timeout_s: float) -> Any:
        """See JobHandle.shown_result."""
        record, result = await self._succeeded(handle, timeout_s)
        return mask_result(read_json(result), record.get("secret"))

    async def _succeeded(self, handle: JobReference, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        """Record and result of a job that succeeded. Raises the outcome of one that did not."""
        if not handle.stores_result:
            raise _not_stored(handle)
        give_up = time.monotonic() + timeout_s
        record = await self._record(handle, timeout_s)
        if record["state"] == "cancelled":
            by = f" by {record['by']}" if record.get("by") else ""
            why = record.get("reason") or "no reason given"
            raise JobCancelled(f"job {handle.id} was cancelled{by}: {why}", job_id=handle.id)
        if record["state"] == "dead":
            raise JobFailed(
                f"job {handle.id} is dead ({record.get('reason')}): {record.get('type')}: {record.get('text')}",
                reason=str(record.get("reason")),
                error_type=str(record.get("type")),
                text=str(record.get("text")),
                traceback=str(record.get("traceback") or ""),
                job_id=handle.id,
            )
        if isinstance(record.get("continued_as"), dict):
            return record, await self.continued(record["continued_as"], max(0.0, give_up - time.monotonic()))
        if record.get("result_stored") is False:
            raise _not_stored(handle)
        if record["state"] != "succeeded" or not {"result", "result_object"} & record.keys():
            raise ResultError(f"job {handle.id} has a record that cannot be read", job_id=handle.id)
        return record, await self._result(handle, record, give_up)

    async def _result(self, handle: JobReference, record: dict[str, Any], give_up: float) -> bytes:
        """The result in the record, or in the object that it names."""
        name = record.get("result_object")
        if name is None:
            return json.dumps(record["result"]).encode()
        try:
            async with asyncio.timeout(max(_FETCH_S, give_up - time.monotonic())):
                return await self._payloads.get(str(name))
        except TimeoutError:
            raise ResultNotReady(
                f"job {handle.id} has ended, but its result was not read in time", job_id=handle.id
            ) from None
        except MalformedJob as error:
            raise ResultExpired(
                f"job {handle.id} has ended and its result is gone: {error}", job_id=handle.id
            ) from error

    async def _record(self, handle: JobReference, timeout_s: float) -> dict[str, Any]:
        await self._subscribe()
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        pushed = self._expected.setdefault(handle.id, loop.create_future())
        # The record of a duplicate is pushed to its first producer: poll, often at first, then less.
        pause = _FIRST_POLL_S if handle.duplicate else _POLL_S
        run = handle.run
        try:
            while True:
                record = await self._poll(handle)
                if record is not None:
                    return record
                remaining = give_up - loop.time()
                if remaining <= 0:
                    raise await self._not_ready(handle, timeout_s)
                await asyncio.wait({pushed}, timeout=min(pause, remaining))
                if pushed.done():
                    if _is_run(pushed.result(), handle):
                        return pushed.result()
                    pushed = self._expected[handle.id] = loop.create_future()  # of another run
                pause = min(pause * 2, _POLL_S)
                with contextlib.suppress(BrokerUnavailable):
                    run = await self._check_alive(handle, run)
        finally:
            self._expected.pop(handle.id, None)

    async def _not_ready(self, handle: JobReference, timeout_s: float) -> ResultNotReady:
        text = f"job {handle.id} has not ended within {timeout_s:g} s"
        if not self._connection.connected:
            return ResultNotReady(f"{text}: the connection to the server is lost", job_id=handle.id)
        reason = None
        with contextlib.suppress(BrokerError, QueueNotFound, TimeoutError):
            async with asyncio.timeout(_EXPLAIN_S):
                reason = await self._explain(handle)
        if reason is None:
            return ResultNotReady(text, job_id=handle.id)
        return ResultNotReady(f"{text}: {reason.text}", job_id=handle.id, hint=reason.hint)

    async def _poll(self, handle: JobReference) -> dict[str, Any] | None:
        """As `_ended`; None while the server does not answer, because the caller has time left."""
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
        """The run of the job, if it is known; see `JobLocator.find_live`. ResultExpired when the job is gone.

        Searches in the order of a job's life.
        """
        known = await look_twice(lambda: self._known_run(handle, run), lambda found: found is not None)
        if known is None:
            raise ResultExpired(
                f"job {handle.id} has ended and its record is gone or cannot be read",
                job_id=handle.id,
                hint="a job published without jetjobs is not found by this id before it runs",
            )
        return known

    async def _known_run(self, handle: JobReference, run: str) -> str | None:
        where = handle.queue, handle.task, handle.id
        if await self._locator.find_live(*where, run):
            return run
        running = await self._locator.running_without_id(*where)
        if not running and await self._ended(handle) is None:
            return None
        return str(running.get("run", run))

    # Following: by the events of the job, and by polling the streams each second.

    async def follow(self, handle: JobReference) -> AsyncIterator[JobStatus]:
        """Each status that differs from the previous one. Ends with the job, or when the job is not found."""
        pushed: asyncio.Queue[dict[str, Any]] = asyncio.Queue(1)
        sid = await self._connection.nc.listen(
            self._names.job_event("*", handle.queue, handle.task, handle.id),
            lambda subject, reply, data, headers: _put_newest(pushed, data),
        )
        last: JobStatus | None = None
        try:
            while True:
                event = await _event(pushed, _POLL_S) if last is not None else None
                status = _after_event(last, event) if last is not None and event else None
                if status is None:
                    # The server does not answer now: poll again.
                    with contextlib.suppress(BrokerUnavailable):
                        status = await self.status(handle, last.run if last is not None else "")
                if status is None:
                    await asyncio.sleep(_POLL_S)
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
            # Without a round trip: the server handles the next request of this connection after the subscription.
            await self._connection.nc.listen(f"{self._inbox}.*", self._on_record)

    def _on_record(self, subject: str, reply: str, data: bytes, headers: bytes | None) -> None:
        pushed = self._expected.get(subject[len(self._inbox) + 1 :])
        record = read_record(data)
        if pushed is not None and not pushed.done() and "state" in record:
            pushed.set_result(record)


def _not_stored(handle: JobReference) -> ResultExpired:
    hint = "declare it with store_result=True"
    return ResultExpired(f"task {handle.task!r} does not store results", job_id=handle.id, hint=hint)


def _is_run(record: dict[str, Any], handle: JobReference) -> bool:
    return "state" in record and handle.run in ("", record.get("run"))


def _differs(status: JobStatus, last: JobStatus) -> bool:
    """Ignores the start of a running job, which is computed for each record and varies by a microsecond."""
    if status.started_at and last.started_at:
        return replace(status, started_at=last.started_at) != last
    return status != last


def _after_event(last: JobStatus, event: dict[str, Any]) -> JobStatus | None:
    """The status after an event; None if the event does not contain it."""
    if event["progress"] is None:
        return None
    return replace(
        last,
        state=JobState.RUNNING,
        attempt=event["attempt"] or last.attempt,
        started_at=as_time(event["started_at"]),
        worker=event["worker"],
        progress=event["progress"],
        message=event["message"],
    )


async def _event(pushed: asyncio.Queue[dict[str, Any]], wait_s: float) -> dict[str, Any] | None:
    try:
        async with asyncio.timeout(wait_s):
            return await pushed.get()
    except TimeoutError:
        return None


def _put_newest(pushed: asyncio.Queue[dict[str, Any]], data: bytes) -> None:
    """Keep only the newest event, so that a slow reader does not fill the memory."""
    if pushed.full():
        pushed.get_nowait()
    pushed.put_nowait(read_running(read_record(data)))
