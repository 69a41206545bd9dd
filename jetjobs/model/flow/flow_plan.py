"""A flow as a list of jobs to store: which ones, in which chunks, and under which marks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from jetjobs.model.errors import DefinitionError
from jetjobs.model.flow.chunks import cut
from jetjobs.model.flow.steps import (
    WAIT,
    After,
    FlowHeaders,
    GateRef,
    OnFailure,
    Position,
    Up,
    is_node,
    read_gates,
    write_gates,
)
from jetjobs.model.wire.ids import nested_node
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import PRIORITIES
from jetjobs.model.wire.validation import is_token

MAX_STEP_HEADERS: Final = 24 * 1024
"""Bytes of headers of a job when it is stored. Moves and failures add to them."""

# Names in marks. No step has them: `~` is not a character of names.
_WHOLE, _GATES, _JOBS = "~flow", "~gates", "~jobs"


RETURNED: Final = b"\0"
"""The first byte of a flow in place of a result. No JSON begins with it."""


class PlannedJob(NamedTuple):
    """One message of a flow. Its run, deadline and producer are added when it is stored."""

    queue: str
    lane: str
    """The lane that a worker takes it from. A gate is moved there when it is fired."""
    task: str
    uid: str
    body: bytes
    headers: dict[str, str]
    max_attempts: int
    gate: bool


class PlannedChunk(NamedTuple):
    """Messages of one queue that are stored in one batch with a mark: all of them or none, and once."""

    queue: str
    name: str
    """With `first`, the end of the mark's subject."""
    first: int
    jobs: list[PlannedJob]


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A node of a flow: one job, a group of jobs, or a gate."""

    node: str
    task: str
    queue: str
    lane: str
    bodies: tuple[bytes, ...]
    """The arguments of each job. A gate has one body."""
    many: bool = False
    """Whether its result is a list: it is a group, or a gate with `map`."""
    next: tuple[GateRef, ...] = ()
    after: After | None = None
    map: str | None = None
    on_failure: OnFailure = WAIT
    up: Up | None = None
    takes: Position | None = None
    """The place in the ledger that its only job takes over; None for its own."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that are not those of flows."""
    max_attempts: int = 0

    @property
    def is_gate(self) -> bool:
        return self.after is not None or self.map is not None

    @property
    def count(self) -> int | None:
        """The number of its jobs; None for a map over a list that is not known yet."""
        return None if self.map is not None else len(self.bodies)

    @property
    def ref(self) -> GateRef:
        """Where its gate is."""
        return GateRef(self.queue, self.task, self.node)

    def job(self, flow_id: str, index: int = 0) -> PlannedJob:
        own = self.takes or Position(self.node, index, self.count or 0)
        flow = FlowHeaders(flow_id, own, self.next, self.after, self.map, self.up, on_failure=self.on_failure)
        uid = f"{self.node}-{index}" if self.many and not self.is_gate else self.node
        headers = {**self.headers, **flow.write()}
        return PlannedJob(
            self.queue, self.lane, self.task, uid, self.bodies[index], headers, self.max_attempts, self.is_gate
        )

    def check(self) -> None:
        """DefinitionError if its headers are too large to be stored and moved."""
        if not self.bodies:
            return
        size = sum(len(name) + len(value.encode()) + 4 for name, value in self.job("f" * 100).headers.items())
        if size > MAX_STEP_HEADERS:
            raise DefinitionError(
                f"step {self.node!r} has {size:,} bytes of headers; the limit is {MAX_STEP_HEADERS:,}",
                hint="it waits for too many steps or has too many dependents: use flow.map for steps of one task,"
                " or join them in groups",
            )

    def _written(self) -> dict[str, Any]:
        written: dict[str, Any] = {
            "node": self.node,
            "task": self.task,
            "queue": self.queue,
            "lane": self.lane,
            "bodies": [body.decode() for body in self.bodies],
            "many": self.many,
            "next": write_gates(self.next),
            "after": None if self.after is None else str(self.after),
            "map": self.map,
            "on_failure": str(self.on_failure),
            "headers": dict(self.headers),
            "max_attempts": self.max_attempts,
        }
        return {key: value for key, value in written.items() if value not in (None, "", {}, 0, False)}

    @classmethod
    def _read(cls, found: Any) -> PlannedStep:
        node, task, queue, lane = (str(found[key]) for key in ("node", "task", "queue", "lane"))
        # They become parts of subjects: a forged record must not make its reader write elsewhere.
        if not is_node(node) or not is_token(task) or not is_token(queue) or lane not in PRIORITIES:
            raise ValueError(f"not a step: {node!r} of task {task!r} in queue {queue!r}")
        return cls(
            node,
            task,
            queue,
            lane,
            tuple(body.encode() for body in found.get("bodies", ())),
            found.get("many", False),
            read_gates(found.get("next", "")),
            After.parse(found["after"]) if "after" in found else None,
            found.get("map"),
            OnFailure.parse(found["on_failure"]),
            headers=found.get("headers", {}),
            max_attempts=found.get("max_attempts", 0),
        )


@dataclass(frozen=True, slots=True)
class FlowPlan:
    """All jobs of a flow, as they are placed."""

    name: str
    steps: tuple[PlannedStep, ...]
    deadline_s: float
    """Seconds from the enqueue to the deadline."""
    id: str = ""
    """The id that the caller chose; empty for a new one."""
    returns: str = ""
    """The node whose result is that of the flow; empty if it has none."""
    on_failed: str = ""
    """The node that runs if the flow fails."""
    under: str = ""
    """The uid of the job that returned this flow and is replaced by it; empty for a flow of its own."""

    @property
    def final(self) -> PlannedStep | None:
        """The step whose result is that of the flow."""
        return next((step for step in self.steps if step.node == self.returns), None)

    @property
    def known_result(self) -> bytes | None:
        """The result, where it is known before anything runs: that of a map over an empty list."""
        final = self.final
        return b"[]" if final is not None and final.count == 0 else None

    @property
    def ends(self) -> tuple[str, ...]:
        """The nodes whose completion ends the flow: the final one, or all that no other waits for."""
        final = self.final
        if final is not None and final.count != 0:
            return (final.node,)
        return tuple(
            step.node
            for step in self.steps
            if step.count != 0 and step.node != self.on_failed and not _followed(step, self.on_failed)
        )

    @property
    def digest(self) -> str:
        """A hash of the content, without the id: the same flow enqueued again has the same one."""
        return hashlib.sha256(json.dumps(self._written(), sort_keys=True).encode()).hexdigest()

    def chunks(self, flow_id: str) -> Iterator[PlannedChunk]:
        """What to store, in this order: the gates of all queues, then the jobs that wait for nothing. A flow of
        one queue that fits one batch is a single chunk.
        """
        gates, jobs = self._by_queue(gates=True), self._by_queue(gates=False)
        queues = {*gates, *jobs}
        if len(queues) == 1:
            (queue,) = queues
            whole = [*gates.get(queue, ()), *jobs.get(queue, ())]
            if len(cut(_sizes(whole))) == 1:
                yield PlannedChunk(
                    queue, self._mark(_WHOLE), 0, [step.job(flow_id, index) for step, index in whole]
                )
                return
        for name, lists in ((_GATES, gates), (_JOBS, jobs)):
            for queue, listed in lists.items():
                for chunk in cut(_sizes(listed)):
                    found = [step.job(flow_id, index) for step, index in listed[chunk.start : chunk.stop]]
                    yield PlannedChunk(queue, self._mark(name), chunk.start, found)

    def _by_queue(self, *, gates: bool) -> dict[str, list[tuple[PlannedStep, int]]]:
        found: dict[str, list[tuple[PlannedStep, int]]] = {}
        for step in self.steps:
            if step.is_gate is gates and step.bodies:
                found.setdefault(step.queue, []).extend((step, index) for index in range(len(step.bodies)))
        return found

    def _mark(self, name: str) -> str:
        return nested_node(self.under, name) if self.under else name

    def _written(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "deadline_s": self.deadline_s,
            "returns": self.returns,
            "on_failed": self.on_failed,
            "steps": [step._written() for step in self.steps],
        }

    def to_json(self) -> bytes:
        """The flow as a task returns it. A flow that replaces a job is not written: it follows from this one."""
        return json.dumps({**self._written(), "id": self.id}, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes | str) -> FlowPlan:
        """ValueError if it cannot be read."""
        found = read_json(data)
        try:
            steps = tuple(PlannedStep._read(step) for step in found["steps"])
            return cls(
                str(found["name"]),
                steps,
                float(found["deadline_s"]),
                str(found["id"]),
                str(found["returns"]),
                str(found["on_failed"]),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a flow: {error!r}") from None


def write_returned(plan: FlowPlan) -> bytes:
    """A flow in place of the result of a job."""
    return RETURNED + plan.to_json()


def read_returned(result: bytes) -> FlowPlan | None:
    """The flow in place of a result; None for a result. ValueError for a flow that cannot be read."""
    return FlowPlan.from_json(result[len(RETURNED) :]) if result[:1] == RETURNED else None


def _followed(step: PlannedStep, on_failed: str) -> bool:
    """Whether a step of the flow waits for it."""
    return any(gate.uid != on_failed for gate in step.next)


def _sizes(listed: list[tuple[PlannedStep, int]]) -> list[int]:
    return [len(step.bodies[index]) for step, index in listed]
