"""What the end of a job does for its flow: write its entry, and fire the gates whose steps are complete.

Everything here may be repeated: by a redelivery that finds the record of its job, and by several workers at once.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jetjobs.jetstream.flows.cancellation import FlowCancellation
from jetjobs.jetstream.flows.gate_arguments import WITHOUT_AFTER, GateArguments, with_arguments
from jetjobs.jetstream.flows.gates import Delivered, Gates
from jetjobs.jetstream.flows.ledger import Ledger, Written, fits_entry
from jetjobs.jetstream.flows.placement import Life, Placement
from jetjobs.jetstream.jobs.results import kept_s
from jetjobs.jetstream.messages.codec import header_number
from jetjobs.jetstream.messages.get import look_twice
from jetjobs.jetstream.messages.payloads import Payloads
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import DefinitionError, EnqueueError, MalformedJob
from jetjobs.model.flow.binding import Expanded
from jetjobs.model.flow.entries import (
    Completed,
    Entry,
    EntryState,
    entry_headers,
    entry_id,
    failed_result,
)
from jetjobs.model.flow.failed import Failed
from jetjobs.model.flow.flow_plan import FlowPlan, read_returned
from jetjobs.model.flow.replacement import replaced
from jetjobs.model.flow.steps import FlowHeaders, GateRef, Position, Up
from jetjobs.model.job import Job, lineage_of
from jetjobs.model.masking import read_paths, write_paths
from jetjobs.model.views.error_text import type_name
from jetjobs.model.wire import headers as h
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.ids import JobId, flow_key, returned_flow_id
from jetjobs.model.wire.lenient_json import read_json

RESULT_JSON = "result_json"
"""In the end of a job: its result as JSON, in place of `result`."""
MAX_ERROR = 2_000
"""Characters of the error in a failure."""
_log = logging.getLogger("jetjobs.flows")


class Incomplete(Exception):
    """Not all steps that a gate waits for have ended."""


class _Ending(NamedTuple):
    """The end of one job, and what bounds the reads and writes that follow it."""

    job: Job
    flow: FlowHeaders
    fkey: str
    held: Delivered
    owned: Callable[[], bool]


class _Place(NamedTuple):
    """A position in the ledger, and what follows the completion of its node."""

    position: Position
    next: tuple[GateRef, ...]
    up: Up | None


class _Result(NamedTuple):
    """What an entry says: a result as JSON or in an object, or a failure."""

    state: EntryState
    data: bytes = b"null"
    object: str = ""
    secret: str = ""


class FlowContinuation:
    """Lets the flows of one namespace go on."""

    def __init__(
        self,
        ledger: Ledger,
        gates: Gates,
        placement: Placement,
        cancellation: FlowCancellation,
        arguments: GateArguments,
        payloads: Payloads,
        clock: ServerClock,
    ) -> None:
        self._ledger = ledger
        self._gates = gates
        self._placement = placement
        self._cancellation = cancellation
        self._arguments = arguments
        self._payloads = payloads
        self._clock = clock

    async def ended(
        self, job: Job, end: Mapping[str, Any], held: Delivered, owned: Callable[[], bool] = lambda: True
    ) -> None:
        """Do what the stored end of a job requires of its flow. `end` is its done record, or the cause of its dead
        letter with `"state": "dead"`. BrokerError if the server does not store all of it."""
        try:
            flow = FlowHeaders.read(job.headers)
        except MalformedJob:
            return  # which is why it is dead: its place is not known
        ending = None if flow is None else _Ending(job, flow, flow_key(flow.flow), held, owned)
        if "continued_as" in end:
            await self._continue(job, ending, end)
        elif ending is not None and end.get("state") == "succeeded":
            await self._count(ending, _own(ending.flow), _result_of(end))
        elif ending is not None:
            await self._failed(ending, _failure_of(job, end))

    async def _continue(self, job: Job, ending: _Ending | None, end: Mapping[str, Any]) -> None:
        """Place the flow that a job has returned. It takes the place of the job, or is a flow of its own."""
        name = end.get("flow_object")
        headers = {k: v for k, v in job.headers.items() if k == h.PRODUCER}
        headers |= {h.PARENT: job.id, h.ROOT: lineage_of(job.headers)[1] or job.id}
        try:
            data = await self._payloads.get(str(name)) if name else json.dumps(end.get("flow"))
            plan = FlowPlan.from_json(data)
            if ending is None:
                flow_id = plan.id or returned_flow_id(job.id, job.run)
                await self._placement.enqueue(plan, flow_id, headers, job.id)
                return
            life = Life(ending.flow.flow, ending.fkey, job.run, deadline_of(job), headers)
            await self._placement.place(life, replaced(plan, ending.flow, job.uid))
        except (ValueError, MalformedJob, DefinitionError, EnqueueError) as error:
            # It would be the same each time. The record of the job says that it has ended.
            extra = {"event": "flow.refused", "job_id": job.id, "task": job.task, "error": str(error)}
            _log.error("a flow that a job has returned cannot be stored", extra=extra)
            if ending is not None:
                await self._failed(ending, _failure(job, "malformed", type_name(error), str(error)))
            return
        if plan.known_result is not None:  # no job of it will fill the place
            await self._count(ending, _own(ending.flow), _Result("succeeded", plan.known_result))

    # A failure

    async def _failed(self, ending: _Ending, result: _Result) -> None:
        flow = ending.flow
        # A map that has no jobs yet cannot stand for their failures: its list would be empty.
        if flow.on_failure.policy == "settled" and not (flow.waiting and flow.map is not None):
            await self._count(ending, _own(flow), result)
            return
        place = flow.up.failing if flow.up is not None else None
        if place is not None:
            await self._count(ending, _Place(place.step, place.next, place.up), result)
            return
        cancels = flow.on_failure.policy == "cancel"
        if not await self._placement.is_cancelled(ending.fkey):
            if flow.on_failure.gate is not None:
                await self._fire_on_failed(ending, flow.on_failure.gate)
            if cancels:
                why = f"job {ending.job.id} failed"
                await self._cancellation.mark(flow.flow, deadline_of(ending.job), "jetjobs", why)
        await self._write(ending, flow.step, "dead", result)
        if cancels:
            # Not those that wait for their next attempt: the job of on_failed may be among them.
            await self._cancellation.remove_waiting(flow.flow, (n.GATE,))

    async def _fire_on_failed(self, ending: _Ending, ref: GateRef) -> None:
        # One look is enough: it is usually gone after the first of many failures, and fired at the deadline.
        gate = await self._gates.read(ref, ending.fkey, Delivered(ref.queue, 1))
        if gate is not None and not await self._gates.is_left_to_the_clock(gate):
            await self._gates.fire(gate, with_arguments(gate.job), ending.owned)

    # An end that counts

    async def _count(self, ending: _Ending, place: _Place, result: _Result) -> None:
        """Write the entry of a place. If its node may be complete now, look."""
        position = place.position
        written = await self._write(ending, position, "end", result)
        if written.count < position.count:
            return
        done: Completed | None
        if position.count == written.count == 1:
            own = Entry(position, result.state, read_json(result.data), result.object, result.secret)
            done = Completed(position.node, (own,))
        else:
            done = await self._ledger.completed(ending.fkey, position.node, written.sequence)
        if done is not None:
            await self._completed(ending, place, done, written)

    async def _write(self, ending: _Ending, position: Position, kind: Any, result: _Result) -> Written:
        headers = entry_headers(
            position, result.state, result.data, result_object=result.object, secret=result.secret
        )
        message_id = entry_id(ending.fkey, position, ending.job.uid, ending.job.run, result.state)
        return await self._ledger.add(ending.fkey, position, kind, headers, message_id, ending.owned)

    async def _completed(self, ending: _Ending, place: _Place, done: Completed, written: Written) -> None:
        known = {done.node: done}
        for ref in place.next:
            await self._look_at(ending, ref, known, written.sequence)
        if place.up is not None and place.up.fills:
            up = place.up
            try:
                filled = await self._filled(ending, up, done)
            except MalformedJob as error:  # a result has expired, or all are too large
                await self._write(ending, up.step, "dead", _failure(ending.job, "malformed", "", str(error)))
            else:
                await self._count(ending, _Place(up.step, up.next, up.up), filled)

    async def _filled(self, ending: _Ending, up: Up, done: Completed) -> _Result:
        """What the completion of a node puts into a place further up."""
        if up.fills == "one" and len(done.entries) == 1:
            only = done.entries[0]
            return _Result(only.state, json.dumps(only.result).encode(), only.result_object, only.secret)
        values = await self._arguments.loaded(done)
        data = json.dumps([entry.result for entry in values.entries], separators=(",", ":")).encode()
        paths = {(*path[:1], "*", *path[1:]) for entry in done.entries for path in read_paths(entry.secret)}
        secret = write_paths(paths) if paths else ""
        if fits_entry(data):
            return _Result("succeeded", data, "", secret)
        name = n.result_object(str(JobId(ending.fkey, up.step.node)), ending.job.run, f"list-{up.step.index}")
        ttl_s = kept_s(ending.job, 0, await self._clock.seconds())
        await self._payloads.put(name, data, {"flow": ending.flow.flow}, ttl_s=ttl_s, owned=ending.owned)
        return _Result("succeeded", b"null", name, secret)

    # Gates

    async def _look_at(self, ending: _Ending, ref: GateRef, known: dict[str, Completed], sequence: int) -> None:
        """Fire the gate if all steps that it waits for are complete. The entries of `known` nodes have been read;
        those of others must be as new as `sequence`."""
        try:
            gate = await self._gates.read(ref, ending.fkey, ending.held)
        except MalformedJob as error:
            extra = {
                "event": "flow.gate_malformed",
                "flow": ending.flow.flow,
                "gate": str(ref),
                "error": str(error),
            }
            _log.error("a gate cannot be read; it is dead-lettered at its deadline", extra=extra)
            return
        if gate is None:
            return
        after = gate.flow.after or WITHOUT_AFTER
        for node in after.unless or after.needed:
            if node not in known:
                found = await self._ledger.completed(ending.fkey, node, sequence)
                if found is None:
                    return
                known[node] = found
        if after.unless:
            await self._placement.remove(gate)
            return
        if await self._gates.is_left_to_the_clock(gate) or await self._placement.is_cancelled(ending.fkey):
            return
        try:
            if gate.flow.map is not None:
                expanded = await self._arguments.expanded(gate.job, gate.flow, known)
                await self._place_map(ending, gate.job, gate.flow, expanded, gate.message.subject)
                return
            job = await self._arguments.bound(gate.job, gate.flow, known)
        except MalformedJob:
            job = gate.job  # fired as it is: the worker that receives it finds the same and dead-letters it
        await self._gates.fire(gate, job, ending.owned)

    async def look(self, job: Job) -> None:
        """Fire the gate of `job` if all steps that it waits for are complete: it was placed again by a replay."""
        flow = FlowHeaders.read(job.headers)
        assert flow is not None
        ending = _Ending(job, flow, flow_key(flow.flow), Delivered("", 0), lambda: True)
        await self._look_at(ending, GateRef(job.queue, job.task, job.uid), {}, 0)

    async def arrived(self, job: Job, held: Delivered, owned: Callable[[], bool]) -> Job | None:
        """The job of a gate that was moved to its lane without its arguments, at the deadline of its flow or by a
        replay: with its arguments; None if it is replaced by the jobs of a map, or not needed. Incomplete if steps
        before it have not ended. MalformedJob if a result does not fit.
        """
        flow = FlowHeaders.read(job.headers)
        assert flow is not None
        ending = _Ending(job, flow, flow_key(flow.flow), held, owned)
        after = flow.after or WITHOUT_AFTER
        known: dict[str, Completed] = {}
        for node in after.unless or after.needed:
            found = await look_twice(functools.partial(self._ledger.completed, ending.fkey, node, 0))
            if found is None and after.unless:
                return None if await self._placement.is_cancelled(ending.fkey) else with_arguments(job)
            if found is None:
                raise Incomplete(f"step {node!r}, which it waits for, has not ended")
            known[node] = found
        if after.unless:
            return None
        if flow.map is None:
            return await self._arguments.bound(job, flow, known)
        await self._place_map(ending, job, flow, await self._arguments.expanded(job, flow, known), "")
        return None

    async def _place_map(
        self, ending: _Ending, job: Job, flow: FlowHeaders, expanded: Expanded, gate: str
    ) -> None:
        if not expanded.jobs:
            # Before the gate is removed: until then the end of the step before it is repeated.
            place = _Place(Position(flow.step.node, 0, 0), flow.next, flow.up)
            written = await self._write(ending, place.position, "end", _Result("succeeded"))
            await self._completed(ending, place, Completed(flow.step.node, ()), written)
        await self._placement.expand(job, flow, expanded, gate)


def continued_as(job: Job, result: bytes) -> bytes:
    """Where the result of a job is that has returned a flow: `continued_as` of its record, as JSON."""
    if h.FLOW in job.headers:
        return json.dumps({"flow": job.headers[h.FLOW], "step": job.headers.get(h.STEP, "")}).encode()
    plan = read_returned(result)
    return json.dumps({"flow": (plan and plan.id) or returned_flow_id(job.id, job.run)}).encode()


def deadline_of(job: Job) -> float:
    """The deadline of the job's flow, in seconds since the epoch; 0 if it is not known."""
    found: float = header_number(job.headers, h.FLOW_DEADLINE, 0.0)
    return found


def _own(flow: FlowHeaders) -> _Place:
    return _Place(flow.step, flow.next, flow.up)


def _result_of(end: Mapping[str, Any]) -> _Result:
    data = end.get(RESULT_JSON) or json.dumps(end.get("result"), separators=(",", ":")).encode()
    return _Result("succeeded", data, str(end.get("result_object") or ""), str(end.get("secret") or ""))


def _failure_of(job: Job, end: Mapping[str, Any]) -> _Result:
    if end.get("state") == "cancelled":
        by = f" by {end['by']}" if end.get("by") else ""
        why = f"cancelled{by}: {end.get('reason') or 'no reason given'}"
        return _Result("cancelled", failed_result(Failed(job.id, "cancelled", why[:MAX_ERROR])))
    return _failure(job, str(end.get("reason")), str(end.get("type")), str(end.get("text")))


def _failure(job: Job, reason: str, kind: str, text: str) -> _Result:
    error = f"{kind}: {text}" if kind else text
    return _Result("dead", failed_result(Failed(job.id, reason, error[:MAX_ERROR])))
