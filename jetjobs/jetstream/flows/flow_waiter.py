"""Read the status of a flow, follow it, and wait for its result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jetjobs.jetstream.flows.gate_arguments import GateArguments
from jetjobs.jetstream.flows.ledger import Ledger
from jetjobs.jetstream.flows.records import FlowRecords
from jetjobs.jetstream.jobs.dead_letters import DeadLetters
from jetjobs.jetstream.transport.backoff import backoff_s
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import BrokerUnavailable, FlowCancelled, FlowFailed, FlowNotFound, ResultNotReady
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.failed import Failed
from jetjobs.model.flow.flow_record import FlowRecord
from jetjobs.model.flow.flow_status import FlowState, FlowStatus
from jetjobs.model.flow.progress import NodeCounts, flow_status
from jetjobs.model.flow.steps import Position
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.ids import flow_key

MAX_FAILURES = 100
"""Failures in a status."""
ENDED = (FlowState.SUCCEEDED, FlowState.CANCELLED, FlowState.EXPIRED)
_POLL_S = 1.0
_FIRST_POLL_S = 0.01


class FlowWaiter:
    """Waits for the flows of one namespace."""

    def __init__(
        self,
        connection: Connection,
        names: FlowNames,
        ledger: Ledger,
        records: FlowRecords,
        arguments: GateArguments,
        dead: DeadLetters,
        clock: ServerClock,
    ) -> None:
        self._connection = connection
        self._names = names
        self._ledger = ledger
        self._records = records
        self._arguments = arguments
        self._dead = dead
        self._clock = clock

    async def record(self, flow_id: str) -> FlowRecord:
        """FlowNotFound if there is none."""
        record = await self._records.get(flow_id)
        if record is None:
            raise FlowNotFound(f"no flow has the id {flow_id!r}", hint="its record may have expired")
        return record

    async def status(self, flow_id: str) -> FlowStatus:
        """The state of a flow and the progress of its steps. FlowNotFound if there is none."""
        counts = await self._ledger.counts(flow_key(flow_id))
        failures = await self._failures(flow_id, counts)
        record = await self.record(
            flow_id
        )  # after the failures: one that cancels the flow is written after the mark
        status = flow_status(record, counts, failures, await self._clock.seconds())
        if status.state is FlowState.FAILED and not failures:
            return replace(status, state=FlowState.RUNNING)  # what was dead has been replayed
        return status

    async def _failures(self, flow_id: str, counts: Sequence[NodeCounts]) -> tuple[Failed, ...]:
        failing = {found.node for found in counts if found.dead and not found.complete}
        if not failing:
            return ()
        entries = await self._ledger.failures(flow_key(flow_id))
        found = [entry.failure for entry in entries if entry.position.node in failing]
        first = [failure for failure in dict.fromkeys(found) if failure is not None][:MAX_FAILURES]
        still = await asyncio.gather(*map(self._is_dead, first))
        return tuple(failure for failure, is_dead in zip(first, still, strict=True) if is_dead)

    async def _is_dead(self, failure: Failed) -> bool:
        """Whether a job that failed was not replayed since. A cancelled job has no letter and cannot be."""
        return failure.reason == "cancelled" or bool(await self._dead.subjects_of(failure.job_id))

    async def follow(self, flow_id: str) -> AsyncIterator[FlowStatus]:
        """The status now and after each change, until the flow has ended. One that failed may be retried."""
        last: FlowStatus | None = None
        async for status in self._looks(flow_id):
            if status != last:
                yield status
            last = status
            if status.state in ENDED:
                return

    async def result(self, flow_id: str, timeout_s: float) -> Completed | None:
        """The results of a flow that has succeeded; None if it has none. Raises as `FlowHandle.result`."""
        try:
            async with asyncio.timeout(timeout_s):
                async for status in self._looks(flow_id):
                    if status.state is FlowState.SUCCEEDED:
                        return await self._completed(flow_id)
                    if status.state is not FlowState.RUNNING:
                        raise _error(status, await self.record(flow_id))
        except TimeoutError:
            text = f"flow {flow_id} has not ended within {timeout_s:g} s"
            raise ResultNotReady(text, job_id=flow_id) from None
        raise AssertionError("not reached")

    async def continued(self, where: Mapping[str, Any], timeout_s: float) -> bytes:
        """The result, as JSON, of a job that has returned a flow. `where` is `continued_as` of its record."""
        flow_id, step = str(where.get("flow", "")), where.get("step")
        try:
            async with asyncio.timeout(timeout_s):
                # The record of the job is stored, and sent to its producer, before the flow is.
                failures = 0
                while await self._records.get(flow_id) is None:
                    failures += 1
                    await asyncio.sleep(backoff_s(failures))
                if step is not None:
                    return await self._at(flow_id, Position.parse(str(step)))
                done, many = await self.result(flow_id, timeout_s), (await self.record(flow_id)).many
                return json.dumps(None if done is None else done.results if many else done.results[0]).encode()
        except TimeoutError:
            text = f"flow {flow_id} has not ended within {timeout_s:g} s"
            raise ResultNotReady(text, job_id=flow_id) from None

    async def _at(self, flow_id: str, position: Position) -> bytes:
        """The result at a position of a flow, as JSON."""
        pattern = self._names.ledger(flow_key(flow_id), position.node, position.count, "end")
        async for status in self._looks(flow_id):
            ends = [entry for entry in await self._ledger.entries(pattern) if entry is not None]
            if mine := [entry for entry in ends if entry.position == position]:
                loaded = await self._arguments.loaded(Completed(position.node, (mine[0],)))
                return json.dumps(loaded.results[0]).encode()
            if status.state is not FlowState.RUNNING:
                raise _error(status, await self.record(flow_id))
        raise AssertionError("not reached")

    async def _completed(self, flow_id: str) -> Completed | None:
        record = await self.record(flow_id)
        if not record.returns or record.empty:
            return Completed(record.returns, ()) if record.empty else None
        found = await self._ledger.completed(flow_key(flow_id), record.returns, 0)
        if found is None:
            raise BrokerUnavailable(f"the entries of flow {flow_id} cannot be read now")
        return await self._arguments.loaded(found)

    async def _looks(self, flow_id: str) -> AsyncIterator[FlowStatus]:
        """The status after each entry of the flow, and once a second. Entries are heard on core NATS before the
        server has stored them, so that the first looks after one are close together."""
        news = asyncio.Event()
        sid = await self._connection.nc.listen(self._names.ledger_of(flow_key(flow_id)), lambda *_: news.set())
        pause_s = _FIRST_POLL_S
        try:
            while True:
                news.clear()
                began = time.monotonic()
                with contextlib.suppress(BrokerUnavailable):
                    yield await self.status(flow_id)
                # A flow that takes long to look at is looked at less often.
                await asyncio.sleep(min(_POLL_S, 5 * (time.monotonic() - began)))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await news.wait()
                pause_s = _FIRST_POLL_S if news.is_set() else min(2 * pause_s, _POLL_S)
        finally:
            with contextlib.suppress(Exception):
                await self._connection.nc.unlisten(sid)


def _error(status: FlowStatus, record: FlowRecord) -> FlowFailed | FlowCancelled:
    if status.state is FlowState.CANCELLED:
        by = f" by {record.cancelled['by']}" if record.cancelled.get("by") else ""
        why = record.cancelled.get("reason") or "no reason given"
        return FlowCancelled(f"flow {status.id} was cancelled{by}: {why}", flow_id=status.id)
    named = ", ".join(f"{failed.job_id} ({failed.reason})" for failed in status.failures[:5])
    more = f" and {len(status.failures) - 5} more" if len(status.failures) > 5 else ""
    if status.state is FlowState.FAILED:
        text, hint = f"jobs are dead: {named}{more}", "fix the cause, then `jetjobs flows retry`"
    else:
        text, hint = f"not ended by its deadline{f'; dead: {named}{more}' if named else ''}", None
    text = f"flow {status.id} has failed: {text}"
    return FlowFailed(text, flow_id=status.id, failures=status.failures, hint=hint)
