"""The steps of a flow while it is declared: their names, what each waits for, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jetjobs.define.flows.arguments import (
    StepArguments,
    encode_arguments,
    encode_items,
    encode_template,
    holds_placeholder,
)
from jetjobs.define.flows.placeholder import Placeholder, node_of
from jetjobs.define.options import EnqueueOptions
from jetjobs.define.task import StepCall, Task
from jetjobs.model.errors import DefinitionError
from jetjobs.model.flow.flow_plan import PlannedStep
from jetjobs.model.flow.steps import After, GateRef, OnFailure, Source, write_pointer
from jetjobs.model.wire.headers import CALLBACK, RETRY_POLICY
from jetjobs.model.wire.ids import is_nested_node

MAX_DEPENDENTS = 100
"""Steps that wait for one step: each of its jobs names them all."""
MAX_NAME = 64

_OPTIONS = frozenset({"queue", "priority", "max_attempts", "retry", "headers", "callback", "step"})
_HINTS = {
    "key": "a flow is stored once for its id: Flow(..., id=...)",
    "job_id": "the ids of its jobs follow from the id of the flow: Flow(..., id=...)",
    "delay": "a step runs when the steps before it have ended",
    "run_at": "a step runs when the steps before it have ended",
    "deadline": "give the flow a deadline: Flow(..., deadline=...)",
}
_NUMBERED = re.compile(r"(.+)-[0-9]+")


@dataclass(eq=False, slots=True)
class Node:
    """A step."""

    graph: Graph
    name: str
    task: Task[Any, Any]
    options: EnqueueOptions
    settled: bool
    bodies: tuple[bytes, ...]
    many: bool
    values: dict[str, Node]
    """Whose result belongs where in the arguments, by JSON pointer."""
    waits: tuple[Node, ...]
    """Steps that it waits for besides those."""
    map: str | None
    dependents: dict[str, Node] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether it is a map over an empty list: it has no jobs, and nothing has to wait for it."""
        return not self.bodies

    @property
    def gate(self) -> GateRef:
        return GateRef(self.options.get("queue", self.task.queue), self.task.name, self.name)

    def check_stored(self) -> None:
        """DefinitionError if its result cannot be used."""
        if not self.task.store_result:
            raise DefinitionError(
                f"step {self.name!r} has no result to pass on: task {self.task.name!r} has store_result=False",
                hint="to only wait for a step, use flow.after(step)",
            )

    def planned(self, on_failure: OnFailure, gates: Iterable[GateRef], after: After | None) -> PlannedStep:
        options = self.options
        headers = {**self.task.own_headers, **options.get("headers", {})}
        if "retry" in options:
            headers[RETRY_POLICY] = options["retry"].to_header()
        if "callback" in options:
            headers[CALLBACK] = options["callback"]
        return PlannedStep(
            self.name,
            self.task.name,
            self.gate.queue,
            options.get("priority", self.task.priority),
            self.bodies,
            self.many,
            tuple(gates),
            after,
            self.map,
            on_failure,
            headers=headers,
            max_attempts=options.get("max_attempts", 0),
        )

    @property
    def after(self) -> After | None:
        """What it waits for; None for a step that waits for nothing."""
        if not self.values and not self.waits:
            return None
        values = {pointer: Source(source.name, source.many) for pointer, source in self.values.items()}
        return After(values, tuple(source.name for source in self.waits))


class Graph:
    """The steps of one flow. A step can refer to earlier ones only, which excludes cycles."""

    def __init__(self, flow: str) -> None:
        self.flow = flow
        self.nodes: dict[str, Node] = {}
        self._stems: set[str] = set()
        """The names of steps without the number at their end."""
        self._numbers: dict[str, int] = {}

    def own(self, step: object) -> Node:
        """The step of a placeholder. DefinitionError if it is that of another flow, or not a placeholder."""
        node: Node | None = node_of(step) if isinstance(step, Placeholder) else None
        if node is None:
            raise DefinitionError(
                f"flow {self.flow!r}: expected the result of a step, not {type(step).__name__}",
                hint="pass what flow.add or flow.map returned",
            )
        if node.graph is not self:
            raise DefinitionError(
                f"step {node.name!r} belongs to flow {node.graph.flow!r}, not to this flow {self.flow!r}",
                hint="a flow uses the results of its own steps only",
            )
        return node

    def insert_map(
        self, call: StepCall, items: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], waits: tuple[Node, ...]
    ) -> Node:
        """Add a group with one job for each item, or a map if the items or other arguments are not known yet."""
        signature = call.task.signature
        if not signature.positional:
            raise DefinitionError(f"task {call.task.name!r} takes no argument to map over")
        if not isinstance(items, Placeholder):
            if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
                raise DefinitionError(f"flow.map needs a list, not {type(items).__name__}")
            items = list(items)
            if not waits and not holds_placeholder([items, args, dict(kwargs)]):
                bodies = [encode_arguments(signature, (item, *args), kwargs).body for item in items]
                return self.insert(call, StepArguments(b"", {}), bodies=bodies)
        first = signature.positional[0]
        arguments = encode_template(signature, items, args, kwargs)
        if not arguments.open and not waits:  # all it depends on are maps over empty lists
            return self.insert(call, arguments, bodies=encode_items(arguments.body, first))
        return self.insert(call, arguments, waits, map_over=write_pointer([first]))

    def insert(
        self,
        call: StepCall,
        arguments: StepArguments,
        waits: tuple[Node, ...] = (),
        *,
        bodies: Sequence[bytes] | None = None,
        map_over: str | None = None,
    ) -> Node:
        """Add a step: one job, with `bodies` a group, with `map_over` a map. DefinitionError if it cannot work."""
        many = bodies is not None or map_over is not None
        name = self._name(call, many)
        _check_options(name, call.options)
        values = {pointer: self.own(place) for pointer, place in arguments.open.items()}
        for source in values.values():
            source.check_stored()
            if map_over is not None and source.settled:
                raise DefinitionError(
                    f"step {name!r} is a map and uses the result of settled step {source.name!r}",
                    hint="a replay could change that result while the jobs of the map are being stored;"
                    " add a step between the two that returns the list",
                )
        sources = dict.fromkeys([*values.values(), *waits])
        for source in sources:
            if len(source.dependents) == MAX_DEPENDENTS:
                raise DefinitionError(
                    f"over {MAX_DEPENDENTS} steps wait for step {source.name!r}",
                    hint="use flow.map for steps of one task",
                )
        node = Node(
            graph=self,
            name=name,
            task=call.task,
            options=call.options,
            settled=call.settled,
            bodies=(arguments.body,) if bodies is None else tuple(bodies),
            many=many,
            values=values,
            waits=tuple(source for source in waits if source not in values.values()),
            map=map_over,
        )
        self.nodes[name] = node
        if numbered := _NUMBERED.fullmatch(name):
            self._stems.add(numbered[1])
        for source in sources:
            source.dependents[name] = node
        return node

    def _name(self, call: StepCall, many: bool) -> str:
        """The name of a new step: that of its options, else that of its task, with a number if it is taken."""
        own, base = call.options.get("step"), call.task.name
        if is_nested_node(own or base):
            raise DefinitionError(f"step name {own or base!r} is reserved", hint='use task.options(step="name")')
        if own is not None:
            if self._taken(own, many):
                raise DefinitionError(f"flow {self.flow!r}: the name of step {own!r} is taken")
            return own
        number = self._numbers.get(base, 1)
        while self._taken(name := _numbered(base, number), many):
            number += 1
        self._numbers[base] = number + 1
        return name

    def _taken(self, name: str, many: bool) -> bool:
        """Whether a step or a job of a group has the name: `resize-2` is the third job of group `resize`."""
        if name in self.nodes or (many and name in self._stems):
            return True
        numbered = _NUMBERED.fullmatch(name)
        group = self.nodes.get(numbered[1]) if numbered else None
        return group is not None and group.many


def _numbered(base: str, number: int) -> str:
    suffix = "" if number == 1 else f"_{number}"  # jobs of a group end in "-" and a number
    return base[: MAX_NAME - len(suffix)] + suffix


def _check_options(step: str, options: EnqueueOptions) -> None:
    if refused := sorted(options.keys() - _OPTIONS):
        raise DefinitionError(
            f"step {step!r}: option {refused[0]!r} cannot be used in a flow", hint=_HINTS.get(refused[0])
        )
