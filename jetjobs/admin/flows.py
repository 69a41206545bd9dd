"""`app.flows`: the status of flows, their results, and how to cancel and retry them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

from jetjobs.admin.changes.replay import FLOW_AGAIN_S, Replayer
from jetjobs.define.flows.flow_handle import FlowHandle, FlowLookup
from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.dead_letters import read_letter
from jetjobs.jetstream.messages.publisher import WrongLastSequence
from jetjobs.jetstream.workers.control_client import ANSWER_S, ask_all
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import FlowCancelled
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.flow_record import FlowRecord
from jetjobs.model.flow.flow_status import (
    FlowCancelAnswer,
    FlowCancelOutcome,
    FlowRetryAnswer,
    FlowState,
    FlowStatus,
)
from jetjobs.model.flow.progress import flow_status
from jetjobs.model.public import public
from jetjobs.model.views.audit import DONE, UNCHANGED
from jetjobs.model.views.dead_letter import DeadLetter, ReplayOptions, ReplayOutcome
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import flow_key


@public("jetjobs.admin")
class Flows:
    """The flows of one namespace, of all its apps."""

    def __init__(self, jetstream: JetStreamClient, registry: Router, lookup: FlowLookup) -> None:
        """`lookup` is what handles use."""
        self._jetstream = jetstream
        self._lookup = lookup
        self._waiter = jetstream.flow_waiter
        self._registry = registry

    async def status(self, flow_id: str, /) -> FlowStatus:
        """The state of a flow and the progress of its steps. FlowNotFound if there is none."""
        return await self._waiter.status(flow_id)

    def follow(self, flow_id: str, /) -> AsyncIterator[FlowStatus]:
        """The status now and after each change, until the flow has ended. One that failed may be retried."""
        return self._waiter.follow(flow_id)

    async def list(self, *, state: FlowState | None = None, name: str | None = None) -> AsyncIterator[FlowStatus]:
        """The flows whose records are kept, without their failures, oldest change first. One whose dead jobs are
        being replayed is listed as failed."""
        counts = await self._jetstream.ledger.all_counts()
        now = await self._jetstream.server_clock.seconds()
        async for record in self._jetstream.flow_records.scan():
            if name in (None, record.name):
                status = flow_status(record, counts.get(flow_key(record.id), []), (), now)
                if state in (None, status.state):
                    yield status

    async def handle(self, flow_id: str, /) -> FlowHandle[Any]:
        """The handle of a flow by its id. Its result is plain JSON. FlowNotFound if there is none."""
        record = await self._waiter.record(flow_id)

        def decode(completed: Completed | None) -> Any:
            if completed is None:
                return None
            return completed.results if record.many else completed.results[0]

        handle: FlowHandle[Any] = FlowHandle(flow_id, record.name, duplicate=True)
        return handle.attach(self._lookup, decode)

    async def cancel(
        self, flow_id: str, /, *, by: str = "", reason: str = "", timeout: Duration = "10s"
    ) -> FlowCancelAnswer:
        """Cancel a flow: no job of it starts any more, those that run are stopped, those that wait are removed.
        Repeating it changes nothing. FlowNotFound if there is none."""
        wait_s = min(ANSWER_S, to_duration("timeout", timeout).total_seconds())
        async with self._jetstream.audit.action("flow.cancel", flow_id, by=by, reason=reason) as outcome:
            answer = await self._cancel(flow_id, by, reason, wait_s)
            outcome.set(answer.outcome)
        return answer

    async def _cancel(self, flow_id: str, by: str, reason: str, wait_s: float) -> FlowCancelAnswer:
        status = await self._waiter.status(flow_id)
        if status.state is FlowState.SUCCEEDED:
            return FlowCancelAnswer(flow_id, FlowCancelOutcome.ENDED)
        cancellation = self._jetstream.flow_cancellation
        record = await self._waiter.record(flow_id)
        await cancellation.mark(flow_id, record.deadline, by, reason)
        removed = await cancellation.remove_waiting(flow_id)
        # Workers answer after they have received the mark. What they placed or moved before that is removed now.
        await ask_all(self._jetstream.connection, self._jetstream.names, "ping", timeout_s=wait_s)
        removed += await cancellation.remove_waiting(flow_id)
        return FlowCancelAnswer(flow_id, FlowCancelOutcome.CANCELLED, removed)

    async def retry(self, flow_id: str, /, *, step: str = "", by: str = "", reason: str = "") -> FlowRetryAnswer:
        """Replay the dead jobs of a flow, or of one step. The flow continues from there, and has at least another
        day for it. FlowNotFound if there is none, FlowCancelled if it was cancelled."""
        async with self._jetstream.audit.action("flow.retry", flow_id, by=by, reason=reason) as outcome:
            answer = await self._retry(flow_id, step, by, reason)
            outcome.set(DONE if answer.replayed else UNCHANGED, f"{len(answer.replayed)} jobs replayed")
        return answer

    async def _retry(self, flow_id: str, step: str, by: str, reason: str) -> FlowRetryAnswer:
        record = await self._waiter.record(flow_id)
        if record.cancelled:
            raise FlowCancelled(f"flow {flow_id} was cancelled: its jobs are dropped", flow_id=flow_id)
        await self._extend(record)
        replayer = Replayer(self._jetstream, self._registry, ReplayOptions(by=by, reason=reason))
        # Gates last: they look at once for what the others have not done yet.
        letters = sorted(await self._letters(flow_id, step), key=lambda letter: h.AFTER in letter.headers)
        answers = [await replayer.replay(letter) for letter in letters]
        done = (ReplayOutcome.REPLAYED, ReplayOutcome.ALREADY)
        return FlowRetryAnswer(flow_id, tuple(answer.letter.id for answer in answers if answer.outcome in done))

    async def _letters(self, flow_id: str, step: str) -> Sequence[DeadLetter]:
        entries = await self._jetstream.ledger.failures(flow_key(flow_id))
        failures = [entry.failure for entry in entries if step in ("", entry.position.node)]
        ids = dict.fromkeys(failure.job_id for failure in failures if failure is not None)
        dead = self._jetstream.dead
        subjects = [subject for job_id in ids for subject in await dead.subjects_of(job_id)]
        messages = [await dead.at(subject) for subject in subjects]
        return [read_letter(message) for message in messages if message is not None]

    async def _extend(self, record: FlowRecord) -> None:
        deadline = await self._jetstream.server_clock.seconds() + FLOW_AGAIN_S
        while record.deadline < deadline:
            try:
                await self._jetstream.flow_records.put(replace(record, deadline=deadline))
                return
            except WrongLastSequence:
                record = await self._waiter.record(record.id)
