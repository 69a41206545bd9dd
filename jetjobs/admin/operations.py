"""The operations of an open app on jobs, dead letters, queues, schedules and workers, each group as a property."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from jetjobs.admin.dead_letters import DeadLetters
from jetjobs.admin.flows import Flows
from jetjobs.admin.jobs import Jobs
from jetjobs.admin.queues import Queues
from jetjobs.admin.schedules import Schedules
from jetjobs.admin.workers import Workers
from jetjobs.define.flows.flow_handle import FlowHandle
from jetjobs.define.handle import JobHandle, JobLookup
from jetjobs.define.router import Router
from jetjobs.jetstream.audit_log import AuditLog
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.tokens import Tokens
from jetjobs.jetstream.workers.control_client import EventStream
from jetjobs.model.durations import Duration
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.flow_status import FlowCancelAnswer, FlowRetryAnswer, FlowStatus
from jetjobs.model.job import JobStatus
from jetjobs.model.views.live_events import LiveEvent, event_subjects
from jetjobs.model.wire.lenient_json import read_json


class Operations(Router):
    """The part of an app that manages what is on the server. The app provides the connection."""

    _lookup: JobLookup
    """What the handles of the app use."""

    @property
    def jetstream(self) -> JetStreamClient:
        """The connection of the open app, for jetjobs' own modules."""
        raise NotImplementedError

    @property
    def dead(self) -> DeadLetters:
        """List, replay, export and delete dead letters."""
        return DeadLetters(self.jetstream, self)

    @property
    def jobs(self) -> Jobs:
        """Find, list, cancel and reschedule the jobs of the namespace."""
        return Jobs(self.jetstream)

    async def job(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> JobHandle[Any]:
        """The handle of a job by its id. JobNotFound if there is none, JobAmbiguous if two jobs have the id."""
        found_queue, found_task = await self.jobs.locate(job_id, queue, task)
        return self._handle(job_id, found_queue, found_task)

    def _handle(self, job_id: str, queue: str, task: str, run: str = "") -> JobHandle[Any]:
        known = self.tasks.get(task)
        handle: JobHandle[Any] = JobHandle(
            job_id,
            queue,
            task,
            run=run,
            stores_result=known.store_result if known is not None else True,
            duplicate=not run,
        )
        decode = known.signature.result.decode if known is not None else read_json
        return handle.attach(self._lookup, decode)

    @property
    def schedules(self) -> Schedules:
        """List, put, pause, resume, delete and run schedules."""
        return Schedules(self.jetstream, self, lambda job: self._handle(job.id, job.queue, job.task, job.run))

    @property
    def flows(self) -> Flows:
        """Find, list, cancel and retry the flows of the namespace."""
        return Flows(self.jetstream, self, self._lookup.flows)

    @property
    def queues(self) -> Queues:
        """List, pause, resume and purge queues."""
        return Queues(self.jetstream)

    @property
    def workers(self) -> Workers:
        """List, quiet and stop the running workers."""
        return Workers(self.jetstream)

    @property
    def audit(self) -> AuditLog:
        """List who changed what, and record further actions."""
        return self.jetstream.audit

    @property
    def tokens(self) -> Tokens:
        """Create, list and revoke tokens of the HTTP API."""
        return self.jetstream.tokens

    def events(
        self,
        *,
        queue: str | None = None,
        task: str | None = None,
        kinds: Sequence[str] | str = (),
        begun: Callable[[int], None] = lambda workers: None,
    ) -> AsyncGenerator[LiveEvent, None]:
        """Events of jobs and workers from now on, without end: `async for event in app.events()`.

        `kinds` are patterns such as `job.*`. With a queue or a task, only events of jobs come. Events are not
        stored: those that occur during an outage are missed. `begun` is called once, with the number of workers
        that publish events by then.
        """
        connection, names = self.jetstream.connection, self.jetstream.names
        return EventStream(connection, names, event_subjects(names, queue, task, kinds)).events(begun)


class FlowHandleLookup:
    """What the handles of flows of an app use: the session of the app that is open when they are asked."""

    def __init__(self, app: Operations) -> None:
        self._app = app

    async def result(
        self, handle: FlowHandle[Any], decode: Callable[[Completed | None], Any], timeout_s: float
    ) -> Any:
        return decode(await self._app.jetstream.flow_waiter.result(handle.id, timeout_s))

    def status(self, flow_id: str) -> Awaitable[FlowStatus]:
        return self._app.flows.status(flow_id)

    def follow(self, flow_id: str) -> AsyncIterator[FlowStatus]:
        return self._app.flows.follow(flow_id)

    def cancel(self, flow_id: str, *, by: str, reason: str, timeout: Duration) -> Awaitable[FlowCancelAnswer]:
        return self._app.flows.cancel(flow_id, by=by, reason=reason, timeout=timeout)

    def retry(self, flow_id: str, *, step: str, by: str, reason: str) -> Awaitable[FlowRetryAnswer]:
        return self._app.flows.retry(flow_id, step=step, by=by, reason=reason)


class HandleLookup:
    """What the handles of an app use: the session of the app that is open when they are asked, or `app.sync`."""

    def __init__(self, app: Operations, result_sync: Callable[..., Any]) -> None:
        self._app = app
        self.result_sync = result_sync
        self.flows = FlowHandleLookup(app)

    @property
    def jobs(self) -> Jobs:
        return self._app.jobs

    def result(self, handle: JobHandle[Any], decode: Callable[[bytes], Any], timeout_s: float) -> Awaitable[Any]:
        return self._app.jetstream.result_waiter.result(handle, decode, timeout_s)

    def shown(self, handle: JobHandle[Any], timeout_s: float) -> Awaitable[Any]:
        return self._app.jetstream.result_waiter.shown(handle, timeout_s)

    def status(self, handle: JobHandle[Any]) -> Awaitable[JobStatus]:
        return self._app.jetstream.result_waiter.status(handle)

    def follow(self, handle: JobHandle[Any]) -> AsyncIterator[JobStatus]:
        return self._app.jetstream.result_waiter.follow(handle)


def max_attempts(app: Router) -> Callable[[str], int]:
    """The number of attempts of a task by its name; 0 for an unknown one. It does not keep the app alive: a
    connection of `sync` is closed when the app is collected."""
    seen = weakref.ref(app)

    def of(name: str) -> int:
        task = None if (found := seen()) is None else found.tasks.get(name)
        return 0 if task is None else task.retry.max_attempts

    return of
