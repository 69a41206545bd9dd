"""Place the jobs of a flow: each chunk in one atomic batch with a mark, so that it is stored once.

The mark expects that there is none. A chunk that is placed again, by a repeated enqueue or by another worker, is
refused as a whole, for as long as the marks of the flow are kept.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from jetjobs.jetstream.flows.gates import Gate
from jetjobs.jetstream.flows.records import FlowRecords
from jetjobs.jetstream.jobs.cancel_marks import CancelMarks
from jetjobs.jetstream.messages.batch import BatchMessage, BatchPublisher, batch_message
from jetjobs.jetstream.messages.get import last_on
from jetjobs.jetstream.messages.payloads import MAX_OBJECT, Payloads, labels_of
from jetjobs.jetstream.messages.publisher import Outgoing, Publisher, WrongLastSequence
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.nats_client import header_lines
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import AccessDenied, JobTooLarge
from jetjobs.model.flow.binding import Expanded
from jetjobs.model.flow.chunks import cut
from jetjobs.model.flow.flow_plan import FlowPlan, PlannedChunk, PlannedJob
from jetjobs.model.flow.flow_record import FlowRecord, describe_plan
from jetjobs.model.flow.steps import FlowHeaders, Position
from jetjobs.model.job import Job
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.ids import JobId, flow_key, new_run


class Life(NamedTuple):
    """What all jobs of a flow have in common."""

    flow: str
    """The id of the flow."""
    fkey: str
    run: str
    deadline: float
    headers: Mapping[str, str]
    """Producer, parent and root."""


class Mark(NamedTuple):
    """The mark of a chunk."""

    subject: str
    body: bytes
    purges: str = ""
    """Subject of a gate that the stored chunk replaces."""


class Placement:
    """Places jobs of one namespace."""

    def __init__(
        self,
        connection: Connection,
        publisher: Publisher,
        batches: BatchPublisher,
        payloads: Payloads,
        names: FlowNames,
        clock: ServerClock,
        records: FlowRecords,
        marks: CancelMarks,
    ) -> None:
        self._connection = connection
        self._publisher = publisher
        self._batches = batches
        self._payloads = payloads
        self._names = names
        self._clock = clock
        self._records = records
        self._marks = marks

    async def enqueue(
        self, plan: FlowPlan, flow_id: str, headers: Mapping[str, str], parent: str = ""
    ) -> tuple[FlowRecord, bool]:
        """Store a flow, or continue one that was not stored completely. Returns its record, and whether the flow
        is new. FlowConflict if another flow has the id."""
        check_sizes(plan)
        now = await self._clock.seconds(self._names.names.work_stream(plan.steps[0].queue))
        record = FlowRecord(
            flow_id,
            run=new_run(),
            enqueued_at=now,
            deadline=now + plan.deadline_s,
            producer=headers.get(h.PRODUCER, ""),
            parent=parent,
            **describe_plan(plan),
        )
        record, new = await self._records.create(record, await self._queues(plan) if plan.id else ())
        if not record.placed:
            life = Life(record.id, flow_key(record.id), record.run, record.deadline, headers)
            await self.place(life, plan)
            with contextlib.suppress(WrongLastSequence):  # it was cancelled, or another process has placed it too
                await self._records.put(replace(record, placed=True))
        return record, new

    async def _queues(self, plan: FlowPlan) -> Collection[str]:
        """The queues in which an earlier flow with the same id may have left marks."""
        try:
            return await list_queues(self._connection, self._names.names)
        except AccessDenied:
            return {step.queue for step in plan.steps}

    async def is_cancelled(self, fkey: str) -> bool:
        return await self._marks.of_flow(fkey) is not None

    async def place(self, life: Life, plan: FlowPlan) -> None:
        """Store all jobs of the plan that are not stored yet: gates first, then the jobs that wait for nothing.

        Safe to repeat. TopologyMissing if a queue does not exist, BrokerError if the server does not store all of
        them.
        """
        now = await self._clock.seconds(self._names.names.work_stream(plan.steps[0].queue))
        for chunk in plan.chunks(life.flow):
            if await self.is_cancelled(life.fkey):
                return
            mark = self._mark(life.flow, chunk.queue, chunk.name, chunk.first, plan.under, _nodes(chunk))
            jobs = [(_job(life, planned, now), planned.gate) for planned in chunk.jobs]
            await self._store(chunk.queue, mark, jobs, life.deadline)

    async def expand(self, gate: Job, flow: FlowHeaders, expanded: Expanded, purges: str) -> None:
        """Store the jobs of a map. The last chunk removes the gate with subject `purges`. Safe to repeat."""
        now = await self._clock.seconds()
        template = gate._replace(hop=0, payload="", enqueued_at=now, due_at=0.0)
        shared = {k: v for k, v in gate.headers.items() if k not in (h.AFTER, h.MAP)}
        if expanded.secret:
            shared[h.SECRET] = expanded.secret
        jobs = expanded.jobs
        chunks = cut([len(job.body) for job in jobs]) or [range(0)]
        for chunk in chunks:
            if await self.is_cancelled(gate.key):
                return
            mark = self._mark(flow.flow, gate.queue, gate.uid, chunk.start, gate.uid, [flow.step.node])
            if chunk.stop == len(jobs):
                mark = mark._replace(purges=purges)
            placed = [
                template._replace(
                    id=str(JobId(gate.key, one.uid)), body=one.body, headers={**shared, **one.headers.write()}
                )
                for one in jobs[chunk.start : chunk.stop]
            ]
            await self._store(gate.queue, mark, [(job, False) for job in placed], 0.0)

    async def remove(self, gate: Gate) -> None:
        """Remove a gate that is not needed any more."""
        job, flow = gate.job, gate.flow
        mark = self._mark(flow.flow, job.queue, job.uid, 0, job.uid, [flow.step.node])
        await self._store(job.queue, mark._replace(purges=gate.message.subject), [], 0.0)

    def _mark(self, flow_id: str, queue: str, name: str, first: int, under: str, nodes: Iterable[str]) -> Mark:
        body = json.dumps({"flow": flow_id, "under": under, "nodes": list(nodes)}).encode()
        return Mark(self._names.mark(queue, flow_key(flow_id), name, first), body)

    async def _store(self, queue: str, mark: Mark, jobs: Sequence[tuple[Job, bool]], deadline: float) -> None:
        stream = self._names.names.work_stream(queue)
        limit = self._connection.inline_limit
        messages = [self._outgoing(job, gate, deadline) for job, gate in jobs]
        large = [index for index, message in enumerate(messages) if not self._publisher.fits(message, limit)]
        if large and await last_on(self._connection, stream, mark.subject) is not None:
            return  # found before the bodies are sent
        for index in large:
            job, gate = jobs[index]
            messages[index] = await self._put_large(job, gate, deadline)
        headers = {h.EXPECTED_LAST_SUBJECT_SEQ: "0"}
        if mark.purges:
            headers |= {h.SCHEDULER: mark.purges, h.SCHEDULE_NEXT: "purge"}
        guard = BatchMessage(mark.subject, mark.body, header_lines(headers))
        try:
            await self._batches.store(stream, [guard, *map(batch_message, messages)])
        except WrongLastSequence:
            return  # placed before

    def _outgoing(self, job: Job, gate: bool, deadline: float) -> Outgoing:
        return self._publisher.outgoing(job, deadline, lane=n.GATE) if gate else self._publisher.outgoing(job)

    async def _put_large(self, job: Job, gate: bool, deadline: float) -> Outgoing:
        job = job._replace(payload=n.body_object(job.id, job.run))
        await self._payloads.put(job.payload, job.body, labels_of(job))
        message = self._outgoing(job._replace(body=b""), gate, deadline)
        self._publisher.check_size(message, self._connection.inline_limit)
        return message


def check_sizes(plan: FlowPlan) -> None:
    """JobTooLarge if the arguments of a step are too large for the object store."""
    for step in plan.steps:
        if (size := max(map(len, step.bodies), default=0)) > MAX_OBJECT:
            raise JobTooLarge(
                f"the arguments of step {step.node!r} are {size:,} bytes; the limit is {MAX_OBJECT:,}",
                size=size,
                limit=MAX_OBJECT,
                hint="store the data elsewhere and pass a reference",
            )


def _nodes(chunk: PlannedChunk) -> dict[str, None]:
    """The nodes of the jobs in a chunk, in their order."""
    return dict.fromkeys(Position.parse(planned.headers[h.STEP]).node for planned in chunk.jobs)


def _job(life: Life, planned: PlannedJob, now: float) -> Job:
    headers = {**life.headers, **planned.headers, h.FLOW_DEADLINE: f"{life.deadline:.6f}"}
    return Job(
        str(JobId(life.fkey, planned.uid)),
        planned.task,
        planned.queue,
        planned.lane,
        planned.body,
        life.fkey,
        run=life.run,
        max_attempts=planned.max_attempts,
        enqueued_at=now,
        headers=headers,
    )
