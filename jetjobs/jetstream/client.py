"""One object for everything on the server: the connection, the publishers, and the streams and buckets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jetjobs.jetstream.audit_log import AuditLog
from jetjobs.jetstream.flows.cancellation import FlowCancellation
from jetjobs.jetstream.flows.continuation import FlowContinuation
from jetjobs.jetstream.flows.flow_waiter import FlowWaiter
from jetjobs.jetstream.flows.gate_arguments import GateArguments
from jetjobs.jetstream.flows.gates import Delivered, Gates
from jetjobs.jetstream.flows.ledger import Ledger
from jetjobs.jetstream.flows.placement import Placement
from jetjobs.jetstream.flows.records import FlowRecords
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
from jetjobs.model.job import Job, JobState
from jetjobs.model.settings import Settings
from jetjobs.model.views.waiting_reason import Surroundings, WaitingReason, waiting_reason
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.flow_names import FlowNames
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
        self.webhooks = Webhooks(self.connection, self.publisher, self.names, settings.queues, observe)
        self.result_waiter = ResultWaiter(
            self.connection, self.names, self.payloads, self.results, self.dead, self.locator, self.waiting_reason
        )
        self.max_attempts: Callable[[str], int] = lambda task: 0
        """How many attempts the jobs of a task may have, as the app declares it; 0 if it does not declare it."""
        self.checkpoints = Checkpoints(self.connection, self.publisher, self.names)
        self.audit = AuditLog(self.connection, self.publisher, self.names)
        self.server_clock = ServerClock(self.connection, self.names)
        self.tokens = Tokens(self.connection, self.publisher, self.names, self.audit, self.server_clock)
        self._add_flows(FlowNames(names))
        self.ticks = Ticks(self.connection, self.publisher, self.batches, self.names, self.server_clock)
        self.schedules = ScheduleStore(self.connection, self.publisher, self.names, self.ticks, self.server_clock)

    def _add_flows(self, names: FlowNames) -> None:
        connection, publisher, clock = self.connection, self.publisher, self.server_clock
        self.ledger = Ledger(connection, publisher, names)
        self.flow_records = FlowRecords(connection, publisher, names)
        self.flow_cancellation = FlowCancellation(connection, names, clock, self.cancel_marks, self.flow_records)
        self.placement = Placement(
            connection, publisher, self.batches, self.payloads, names, clock, self.flow_records, self.cancel_marks
        )
        gates = Gates(connection, publisher, self.payloads, names, clock)
        self.gate_arguments = GateArguments(self.payloads)
        self.flow_waiter = FlowWaiter(
            connection, names, self.ledger, self.flow_records, self.gate_arguments, self.dead, clock
        )
        self.result_waiter.continued = self.flow_waiter.continued
        self.flow_continuation = FlowContinuation(
            self.ledger,
            gates,
            self.placement,
            self.flow_cancellation,
            self.gate_arguments,
            self.payloads,
            clock,
        )

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

    async def follow_up(
        self,
        job: Job,
        end: Mapping[str, Any],
        held: Delivered,
        timeout_s: float = PUBLISH_TIMEOUT_S,
        owned: Callable[[], bool] = lambda: True,
    ) -> None:
        """What follows the stored end of a job: its flow goes on, then its webhook is stored. Safe to repeat; who
        removes the message of the job does so only afterwards. `end` is as `JobLocator.end_of` returns it."""
        if h.FLOW in job.headers or "continued_as" in end:
            await self.flow_continuation.ended(job, end, held, owned)
        if h.CALLBACK in job.headers:
            await self.webhooks.add(job, end, timeout_s, owned)

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
