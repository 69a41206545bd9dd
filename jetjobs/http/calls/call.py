"""One request as an operation gets it: who calls, the services of the API, and the wait for the end of a job."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

from jetjobs.admin.dead_letters import DeadLetters
from jetjobs.app import JetJobs
from jetjobs.define.handle import JobHandle
from jetjobs.http.calls.start_times import StartTimes
from jetjobs.http.calls.task_catalog import TaskCatalog
from jetjobs.http.event_feed import EventFeed
from jetjobs.http.problems import Problem, code_of, field_errors
from jetjobs.http.producer import Producer
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import (
    JetJobsError,
    JobAmbiguous,
    JobNotFound,
    QueueNotFound,
    ResultError,
    ResultNotReady,
)
from jetjobs.model.views.access import READ, Access

MAX_WAIT_S = 60.0
MAX_PRODUCERS = 1_000
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class Answer(NamedTuple):
    """A status, a JSON value and headers."""

    status: int
    body: Any
    headers: Mapping[str, str] = {}


class End(NamedTuple):
    """The end of a job, with the result of one that succeeded. Its secrets are masked."""

    result: Any


class Services:
    """What all calls share."""

    def __init__(self, app: JetJobs) -> None:
        self.app = app
        self.catalog = TaskCatalog(app)
        self.start_times = StartTimes(app)
        self.feed = EventFeed(app)
        self.stopping = asyncio.Event()
        """Set when the server stops: waits end."""
        self._producers: dict[str, Producer] = {}

    def stop(self) -> None:
        """End waits and event streams."""
        self.stopping.set()
        self.feed.close()

    def producer(self, name: str) -> Producer:
        """What stores jobs in the name of a caller."""
        if (found := self._producers.get(name)) is None:
            if len(self._producers) == MAX_PRODUCERS:
                self._producers.clear()
            found = self._producers[name] = Producer(self.app, name)
        return found


@dataclass(frozen=True, slots=True)
class Call:
    """One request."""

    services: Services
    access: Access
    path: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    root: str
    """The path under which the API is mounted."""
    receive: Receive
    renew: Callable[[], Awaitable[Access]]
    """The caller again, or Problem 401 if its token has been revoked or has expired."""

    @property
    def app(self) -> JetJobs:
        return self.services.app

    @property
    def by(self) -> str:
        """Who calls, as recorded with what the call changes."""
        return self.access.name

    async def dead_letters(self) -> DeadLetters:
        """As `app.dead`, also for tasks that only running workers know."""
        return DeadLetters(self.app.jetstream, await self.services.catalog.refresh())

    def require(self, scope: str) -> None:
        """Problem 403 unless the caller has the scope."""
        if not self.access.may(scope):
            raise missing_scope(self.access, scope)

    def require_queue(self, queue: str) -> None:
        """Problem 403 unless the caller may put jobs into the queue."""
        if not self.access.sees(queue):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                "queue_not_allowed",
                f"{self.access.name!r} may not use queue {queue!r}",
                hint=f"its queues are {', '.join(sorted(self.access.queues or ()))}",
                queue=queue,
            )

    def check_visible(self, queue: str) -> str:
        """The queue. QueueNotFound for one that the caller may not see, as if it did not exist."""
        if not self.access.sees(queue):
            raise QueueNotFound(f"queue {queue!r} does not exist", hint="GET /api/v1/queues lists the queues")
        return queue

    async def place(self, job_id: str, queue: str | None, task: str | None) -> tuple[str, str]:
        """Queue and task of a job that the caller may see. JobNotFound for any other."""
        try:
            found = [await self.app.jobs.locate(job_id, queue, task)]
        except JobAmbiguous as error:
            found = [place for place in error.places if self.access.sees(place[0])]
            if len(found) > 1:
                error.hint = "add ?queue= and ?task="
                raise
        found = [place for place in found if self.access.sees(place[0])]
        if not found:
            raise JobNotFound(
                f"no job with id {job_id}", job_id=job_id, hint="it never existed, or its record has expired"
            )
        return found[0]

    async def wait(self, handle: JobHandle[Any], wait_s: float) -> End | None:
        """Wait until the job has ended. None after `wait_s`, when the server stops, and for a task that stores no
        result. A client that disconnects ends the wait; the job continues."""
        if not wait_s or not handle.stores_result:
            return None
        waiting = asyncio.ensure_future(_end_of(handle, wait_s))
        leaving = asyncio.ensure_future(self._disconnected())
        stopping = asyncio.ensure_future(self.services.stopping.wait())
        events: list[asyncio.Future[Any]] = [waiting, leaving, stopping]
        try:
            await asyncio.wait(events, return_when=asyncio.FIRST_COMPLETED)
            return waiting.result() if waiting.done() else None
        finally:
            for one in events:
                one.cancel()
            await asyncio.gather(*events, return_exceptions=True)

    async def _disconnected(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass


async def _end_of(handle: JobHandle[Any], wait_s: float) -> End | None:
    try:
        return End(await handle.shown_result(wait_s))
    except ResultNotReady:
        return None
    except ResultError:
        return End(None)  # dead or cancelled, or its record is gone: its status says so


def missing_scope(access: Access, scope: str) -> Problem:
    return Problem(
        HTTPStatus.FORBIDDEN,
        "missing_scope",
        f"{access.name!r} may not do this: it needs the scope {scope}",
        hint=f"its scopes are {', '.join(sorted(access.scopes)) or 'none'}",
        scope=scope,
    )


def unprocessable(error: JetJobsError, *place: str | int) -> Problem:
    """The problem of a value in the body, which is not that of a missing resource."""
    errors = field_errors([(place, str(error))])
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, code_of(error), str(error), hint=error.hint, errors=errors)


def read_wait(call: Call, wait: str | None, *, needs_read: bool = True) -> float:
    """How many seconds to wait for the end of the job: `?wait=10s`, or else `Prefer: wait=10`, which is cut to the
    maximum. Waiting shows the result, so that it needs the scope `read`."""
    if wait is None:
        seconds = min(_preferred(call.headers.get("prefer", "")), MAX_WAIT_S)
    else:
        seconds = parse_duration(wait).total_seconds()
    if seconds and needs_read:
        call.require(READ)
    return seconds


def _preferred(header: str) -> float:
    for part in header.split(","):
        name, _, value = part.partition("=")
        if name.strip().lower() == "wait":
            digits = value.partition(";")[0].strip().strip('"')
            return float(digits) if digits.isascii() and digits.isdigit() and len(digits) < 10 else 0.0
    return 0.0
