"""The state of a flow: what its record, the counts of its ledger and the time say together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from jetjobs.model.flow.failed import Failed
from jetjobs.model.flow.flow_record import FlowRecord
from jetjobs.model.flow.flow_status import FlowState, FlowStatus, StepStatus
from jetjobs.model.wire.ids import is_nested_node
from jetjobs.model.wire.lenient_json import as_time


@dataclass(frozen=True, slots=True)
class NodeCounts:
    """How many entries a node has in the ledger."""

    node: str
    count: int
    """How many jobs the node has."""
    ended: int
    dead: int

    @property
    def complete(self) -> bool:
        """Whether all its jobs have ended, if none is counted twice."""
        return self.ended >= max(1, self.count)


def flow_status(
    record: FlowRecord, counts: Iterable[NodeCounts], failures: Iterable[Failed], now: float
) -> FlowStatus:
    """The status of a flow. `failures` are those in its ledger."""
    by_node = _by_node(counts)
    steps = [_step(node, by_node.pop(str(node.get("node", "")), None)) for node in record.nodes]
    # Steps of flows that jobs have returned, or of a flow that is too large for its record.
    steps += [StepStatus(one.node, "", "", one.count, one.ended, one.dead, ()) for one in by_node.values()]
    return FlowStatus(
        record.id,
        record.name,
        flow_state(record, counts, now),
        as_time(record.enqueued_at),
        as_time(record.deadline),
        tuple(steps),
        tuple(failures),
    )


def flow_state(record: FlowRecord, counts: Iterable[NodeCounts], now: float) -> FlowState:
    by_node = _by_node(counts)
    if record.cancelled:
        return FlowState.CANCELLED
    if record.placed and _has_ended(record, by_node):
        return FlowState.SUCCEEDED
    if now >= record.deadline:
        return FlowState.EXPIRED
    failed = any(found.dead and not found.complete for found in by_node.values())
    return FlowState.FAILED if failed else FlowState.RUNNING


def _has_ended(record: FlowRecord, by_node: Mapping[str, NodeCounts]) -> bool:
    if record.ends:
        return all(node in by_node and by_node[node].complete for node in record.ends)
    complete = [node for node, found in by_node.items() if found.complete and not is_nested_node(node)]
    return len(complete) >= record.size


def _by_node(counts: Iterable[NodeCounts]) -> dict[str, NodeCounts]:
    """The counts by node. Of several for a node, one that is complete: another program has written the others."""
    found: dict[str, NodeCounts] = {}
    for each in counts:
        known = found.get(each.node)
        if known is None or (each.complete and not known.complete):
            found[each.node] = each
    return found


def _step(node: Mapping[str, Any], found: NodeCounts | None) -> StepStatus:
    count: int | None = None if node.get("map") else int(node.get("count", 1))
    if found is not None and (count is None or found.ended):
        count = found.count
    ended, dead = (0, 0) if found is None else (found.ended, found.dead)
    return StepStatus(
        str(node.get("node", "")),
        str(node.get("task", "")),
        str(node.get("queue", "")),
        count,
        ended if count is None else min(ended, count),
        0 if found is not None and found.complete else dead,
        tuple(map(str, node.get("after", ()))),
    )
