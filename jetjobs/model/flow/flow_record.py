"""The record of a flow: what it is, where it came from and how it ended. It describes and decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final

from jetjobs.model.flow.flow_plan import FlowPlan, PlannedStep
from jetjobs.model.wire.lenient_json import as_int, as_seconds, read_record

MAX_NODES: Final = 2_000
"""The steps of a larger flow are left out of its record."""


@dataclass(frozen=True, slots=True)
class FlowRecord:
    """Value of the flow's key in the bucket of flows. Times are seconds since the epoch; 0 means not set."""

    id: str
    name: str
    digest: str
    run: str
    """The run of all jobs of the flow. An id that is used again has another one."""
    enqueued_at: float
    deadline: float
    placed: bool = False
    """Whether all jobs are stored. Until then any process that enqueues the flow again continues."""
    producer: str = ""
    parent: str = ""
    """The job that returned the flow; empty if it was enqueued."""
    returns: str = ""
    """The node whose result is that of the flow; empty if it has none."""
    many: bool = False
    """Whether that result is a list."""
    empty: bool = False
    """Whether that list is known to be empty: no job returns it."""
    ends: tuple[str, ...] = ()
    """The nodes whose completion ends the flow. Of a flow with too many of them, none; then `size` counts."""
    size: int = 0
    """How many nodes it has, those of `on_failed` and of returned flows not counted."""
    on_failed: str = ""
    nodes: tuple[Mapping[str, Any], ...] = field(default=())
    """The steps, without their arguments."""
    cancelled: Mapping[str, Any] = field(default_factory=dict)
    """Who cancelled the flow, why and when; empty if it was not."""
    sequence: int = 0
    """Of its message in the bucket; not part of the record."""

    def write(self) -> bytes:
        written = asdict(self)
        del written["sequence"]
        return json.dumps({name: value for name, value in written.items() if value}).encode()

    @classmethod
    def read(cls, data: bytes, sequence: int = 0) -> FlowRecord | None:
        """None if another program has stored something else."""
        found = read_record(data)
        if not isinstance(found.get("id"), str) or not isinstance(found.get("run"), str):
            return None
        known: dict[str, Any] = {"digest": "", "name": "", **found}
        known = {each.name: known[each.name] for each in fields(cls) if each.name in known}
        nodes, ends, cancelled = known.get("nodes"), known.get("ends"), known.get("cancelled")
        known |= {name: str(known[name]) for name in _TEXTS & known.keys()}
        known |= {name: known.get(name) is True for name in ("placed", "many", "empty")}
        known["size"] = as_int(known.get("size"))
        known |= {name: as_seconds(known.get(name)) for name in ("enqueued_at", "deadline")}
        known["nodes"] = tuple(node for node in nodes if isinstance(node, dict)) if isinstance(nodes, list) else ()
        known["ends"] = tuple(map(str, ends)) if isinstance(ends, list) else ()
        known["cancelled"] = cancelled if isinstance(cancelled, dict) else {}
        return cls(**{**known, "sequence": sequence})


_TEXTS = {"id", "name", "digest", "run", "producer", "parent", "returns", "on_failed"}


def describe_plan(plan: FlowPlan) -> dict[str, Any]:
    """The fields of the record that follow from the plan."""
    final = plan.final
    large = len(plan.steps) > MAX_NODES
    return {
        "name": plan.name,
        "digest": plan.digest,
        "returns": plan.returns,
        "many": final is not None and final.many,
        "empty": plan.known_result is not None,
        "ends": () if large and not plan.returns else plan.ends,
        "size": sum(step.count != 0 and step.node != plan.on_failed for step in plan.steps),
        "on_failed": plan.on_failed,
        "nodes": () if large else tuple(_described(step) for step in plan.steps),
    }


def _described(step: PlannedStep) -> dict[str, Any]:
    described: dict[str, Any] = {"node": step.node, "task": step.task, "queue": step.queue}
    if step.map is not None:
        described["map"] = True
    elif step.count != 1:
        described["count"] = step.count
    if step.after is not None and step.after.needed:
        described["after"] = list(step.after.needed)
    if step.on_failure.policy != "wait":
        described["on_failure"] = step.on_failure.policy
    return described
