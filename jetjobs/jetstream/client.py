"""One object for everything on the server: the connection, the publishers, and the streams and buckets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable

from jetjobs.jetstream.audit_log import AuditLog
from jetjobs.jetstream.jobs.cancel_marks import CancelMarks
from jetjobs.jetstream.jobs.checkpoints import Checkpoints
from jetjobs.jetstream.jobs.dead_letters import DeadLetters
from jetjobs.jetstream.jobs.locator import JobLocator
from jetjobs.jetstream.jobs.result_waiter import JobReference, ResultWaiter
from jetjobs.jetstream.jobs.results import Results
from jetjobs.jetstream.messages.batch import BatchPublisher
from jetjobs.jetstream.messages.codec import max_attempts_in
from jetjobs.jetstream.messages.payloads import Payloads
from jetjobs.jetstream.messages.publisher import Publisher
from jetjobs.jetstream.queues.queue_state import lane_states, pause_of
from jetjobs.jetstream.schedules.store import ScheduleStore
from jetjobs.jetstream.schedules.ticks import Ticks
from jetjobs.jetstream.tokens import Tokens
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.jetstream.webhooks import Webhooks
from jetjobs.jetstream.wire_version import check_layout
from jetjobs.jetstream.workers.registry import live_workers
from jetjobs.model.errors import AccessDenied
from jetjobs.model.events import Event, Observer, PermissionDenied
from jetjobs.model.job import JobState
from jetjobs.model.settings import Settings
from jetjobs.model.views.waiting_reason import Surroundings, WaitingReason, waiting_reason
from jetjobs.model.wire.subjects import Names

PUBLISH_TIMEOUT_S = 15.0
"""How long a publish is repeated under one message id before it fails as unconfirmed."""


class JetStreamClient:
    """Created by the app and used by it and its workers. Does nothing before `open`."""

    def __init__(self, settings: Settings, names: Names, name: str, observe: Observer) -> None:
        self._settings = settings.nats
        self._name = name
        self.names = names
        self.connection = Connection(settings.nats, name, observe)
        self.publisher = Publisher(self.connection, self.names, PUBLISH_TIMEOUT_S)
        self.batches = BatchPublisher(self.connection, self.publisher, PUBLISH_TIMEOUT_S)
        self.payloads = Payloads(self.connection, self.publisher, self.names.payload_store, PUBLISH_TIMEOUT_S)
        self.results = Results(self.connection, self.publisher, self.names)
        self.dead = DeadLetters(self.connection, self.publisher, self.payloads, self.names)
        self.cancel_marks = CancelMarks(self.connection, self.publisher, self.names)
        self.locator = JobLocator(
            self.connection, self.publisher, self.results, self.dead, self.payloads, self.names
        )
        self.webhooks = Webhooks(
            self.connection, self.publisher, self.names, self.locator, settings.queues, observe
        )
        self.result_waiter = ResultWaiter(
            self.connection, self.names, self.payloads, self.results, self.dead, self.locator, self.waiting_reason
        )
        self.max_attempts: Callable[[str], int] = lambda task: 0
        """How many attempts the jobs of a task may have, as the app declares it; 0 if it does not declare it."""
        self.checkpoints = Checkpoints(self.connection, self.publisher, self.names)
        self.audit = AuditLog(self.connection, self.publisher, self.names)
        self.server_clock = ServerClock(self.connection, self.names)
        self.tokens = Tokens(self.connection, self.publisher, self.names, self.audit, self.server_clock)
        self.ticks = Ticks(self.connection, self.publisher, self.batches, self.names, self.server_clock)
        self.schedules = ScheduleStore(self.connection, self.publisher, self.names, self.ticks, self.server_clock)

    async def open(self, queues: Iterable[str] | None = ()) -> None:
        """Connect. BrokerError if that fails; TopologyConflict if the streams of `queues` have another layout.
        None stands for the queues that exist."""
        self._loop = asyncio.get_running_loop()
        await self.connection.open()
        try:
            await check_layout(self.connection, self.names, queues)
        except BaseException:
            await self.connection.close()
            raise

    def extra_connection(self, role: str) -> Connection:
        """Another connection to the same server, not open yet, for another event loop. Only its permission
        violations are reported."""
        return Connection(self._settings, f"{self._name}-{role}", self._report_denied)

    def _report_denied(self, event: Event) -> None:
        """An Observer for the other connections of this user, called in their threads."""
        if isinstance(event, PermissionDenied):
            with contextlib.suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self.connection.denials.report, event.kind, event.subject)

    async def close(self) -> None:
        await self.connection.close()

    async def waiting_reason(self, job: JobReference) -> WaitingReason | None:
        """Why the job has not ended; None if it has, or is not found. BrokerError if the server does not answer.

        What this user may not read is left out.
        """
        status = await self.locator.status(job.queue, job.task, job.id, job.run)
        around = Surroundings(await self.server_clock.seconds(self.names.work_stream(job.queue)))
        if status.state is JobState.QUEUED:
            around = await self._around_queue(job.queue, around)
        elif status.state is JobState.RETRYING:
            live = await self.locator.find_live(job.queue, job.task, job.id, job.run)
            carried = max_attempts_in(live.headers) if live is not None else 0
            around = around._replace(max_attempts=carried or self.max_attempts(job.task))
        return waiting_reason(status, around)

    async def _around_queue(self, queue: str, around: Surroundings) -> Surroundings:
        with contextlib.suppress(AccessDenied):
            lanes = await lane_states(self.connection, self.names, queue)
            pause = await pause_of(self.connection, self.names, queue, lanes)
            around = around._replace(pause=pause, queued=sum(lane.queued for lane in lanes))
        with contextlib.suppress(AccessDenied):
            around = around._replace(workers=await live_workers(self.connection, self.names))
        return around
