"""Cancel a flow: mark it, so that workers drop its jobs, and remove its jobs that wait."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import replace

from jetjobs.jetstream.flows.records import ENDED_S, FlowRecords
from jetjobs.jetstream.jobs.cancel_marks import FLOW_MARK, CancelMark, CancelMarks
from jetjobs.jetstream.messages.publisher import WrongLastSequence
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.jetstream.transport.server_clock import ServerClock
from jetjobs.model.errors import AccessDenied, TopologyMissing
from jetjobs.model.wire import subjects as n
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.ids import flow_key


class FlowCancellation:
    """Cancels flows of one namespace."""

    def __init__(
        self,
        connection: Connection,
        names: FlowNames,
        clock: ServerClock,
        marks: CancelMarks,
        records: FlowRecords,
    ) -> None:
        self._connection = connection
        self._names = names
        self._clock = clock
        self._marks = marks
        self._records = records

    async def mark(self, flow_id: str, deadline: float, by: str, why: str) -> None:
        """Mark the flow as cancelled. From then on no worker starts a job of it, and running ones are stopped."""
        now = await self._clock.seconds()
        until = max(deadline, now) + ENDED_S
        mark = CancelMark(flow_key(flow_id), by[:200], why[:500], until)
        await self._marks.put(FLOW_MARK, mark, math.ceil(until - now))
        record = await self._records.get(flow_id)
        while record is not None and not record.cancelled:
            cancelled = {"by": mark.by, "reason": mark.why, "at": now}
            try:
                # Kept for longer than the mark: a flow with this id would be cancelled from its start.
                await self._records.put(replace(record, cancelled=cancelled), until - now + ENDED_S)
            except WrongLastSequence:
                record = await self._records.get(flow_id)
                continue
            return

    async def remove_waiting(self, flow_id: str, lanes: Iterable[str] = n.WAITING) -> int:
        """Remove the jobs of the flow that wait in these lanes, from all queues. Returns how many. Those that this
        user may not remove are dropped when they are due."""
        fkey, removed = flow_key(flow_id), 0
        with contextlib.suppress(AccessDenied):
            for queue in await list_queues(self._connection, self._names.names):
                for lane in lanes:
                    query = {"filter": self._names.jobs_of(queue, lane, fkey)}
                    with contextlib.suppress(TopologyMissing):
                        stream = self._names.names.work_stream(queue)
                        removed += int((await self._connection.api(api.stream_purge(stream), query))["purged"])
        return removed
