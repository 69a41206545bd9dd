"""Declare flows: jobs of which some wait for others and get their results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Concatenate, Generic, Literal, ParamSpec, cast

from typing_extensions import TypeVar

from jetjobs.define.flows.arguments import StepArguments, encode_arguments
from jetjobs.define.flows.graph import Graph, Node
from jetjobs.define.flows.placeholder import Placeholder
from jetjobs.define.result_type import Known, Returnable
from jetjobs.define.task import Chain, Step
from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError
from jetjobs.model.flow.entries import Completed
from jetjobs.model.flow.flow_plan import FlowPlan, write_returned
from jetjobs.model.flow.steps import WAIT, After, OnFailure
from jetjobs.model.public import public
from jetjobs.model.wire.ids import check_flow_id
from jetjobs.model.wire.validation import check_token

P = ParamSpec("P")
R = TypeVar("R", default=Any)
S = TypeVar("S")
T = TypeVar("T")

DEFAULT_DEADLINE = timedelta(days=7)
MAX_DEADLINE = timedelta(days=30)


@public("jetjobs")
class FlowSteps:
    """Adds steps to a flow: the flow itself, or what `flow.after(...)` returns."""

    def __init__(self, graph: Graph, waits: tuple[Node, ...]) -> None:
        self._graph = graph
        self._waits = waits

    def add(self, step: Step[P, S], /, *args: P.args, **kwargs: P.kwargs) -> S:
        """Add one job. Returns a placeholder for its result, which can be passed to other steps.

        InvalidArguments if an argument does not fit the task, DefinitionError for a step that cannot work.
        """
        call = step._step()
        arguments = encode_arguments(call.task.signature, args, kwargs)
        return cast(S, Placeholder(self._graph.insert(call, arguments, self._waits)))

    def map(
        self,
        step: Step[Concatenate[T, P], S],
        items: Iterable[T],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> list[S]:
        """Add one job for each item, which becomes its first argument. Returns a placeholder for the list of their
        results, in the order of the items. `items` may be the result of another step.
        """
        return cast("list[S]", Placeholder(self._graph.insert_map(step._step(), items, args, kwargs, self._waits)))


@public("jetjobs")
class Flow(FlowSteps, Returnable, Generic[R]):
    """Jobs of which some wait for others: `flow.add(ship, flow.add(charge, order))`.

    A flow with an `id` is stored once, however often it is enqueued. `deadline` is how long it may take. If a job
    is dead, `on_failure="wait"` keeps the steps after it until it is replayed; `"cancel"` cancels the flow.
    """

    def __init__(
        self,
        name: str,
        *,
        id: str | None = None,
        deadline: Duration = DEFAULT_DEADLINE,
        on_failure: Literal["wait", "cancel"] = "wait",
    ) -> None:
        super().__init__(Graph(check_token("flow", name)), ())
        self.name = name
        self.id = None if id is None else check_flow_id(id)
        of = f"flow {name!r}: "
        self.deadline = to_duration("deadline", deadline, of=of, positive=True)
        if self.deadline > MAX_DEADLINE:
            raise DefinitionError(f"{of}the deadline can be at most {MAX_DEADLINE.days} days away")
        if on_failure not in ("wait", "cancel"):
            raise DefinitionError(
                f"{of}on_failure must be 'wait' or 'cancel', not {on_failure!r:.40}",
                hint="to go on without the result of a step that failed, use task.settled",
            )
        self.on_failure = on_failure
        self._returns: Node | None = None
        self._alarm: Node | None = None

    @classmethod
    def of(
        cls,
        chain: Chain[S],
        *,
        name: str = "",
        id: str | None = None,
        deadline: Duration = DEFAULT_DEADLINE,
        on_failure: Literal["wait", "cancel"] = "wait",
    ) -> Flow[S]:
        """A chain as a flow: `Flow.of(charge.bind(7).then(ship), id="order-7")`."""
        name = name or chain.tasks[0].name
        flow: Flow[Any] = Flow(name, id=id, deadline=deadline, on_failure=on_failure)
        last: Node | None = None
        for call, (body, places) in chain.links:
            last = flow._graph.insert(call, StepArguments(body, dict.fromkeys(places, Placeholder(last))))
        return flow.returns(cast(S, Placeholder(last)))

    @classmethod
    def value(cls, value: S) -> Flow[S]:
        """For tasks that return a flow, where nothing has to follow: the result of the job is `value`."""
        flow: Flow[S] = Flow("value")
        flow._known = Known(value)
        return flow

    def after(self, *steps: object) -> FlowSteps:
        """Steps that are added to it run after `steps`, without their results: `flow.after(rows).add(vacuum)`."""
        if not steps:
            raise DefinitionError(f"flow {self.name!r}: after() needs steps to wait for")
        nodes = dict.fromkeys(map(self._graph.own, steps))
        return FlowSteps(self._graph, tuple(node for node in nodes if not node.is_empty))

    def on_failed(self, step: Step[P, object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Run a task if the flow fails: a job that others wait for is dead, or the deadline has passed."""
        if self._alarm is not None:
            raise DefinitionError(f"flow {self.name!r} has a task for on_failed already")
        call = step._step()
        arguments = encode_arguments(call.task.signature, args, kwargs)
        if arguments.open:
            raise DefinitionError(f"flow {self.name!r}: the task of on_failed cannot get the result of a step")
        self._alarm = self._graph.insert(call, arguments)

    def returns(self, step: S) -> Flow[S]:
        """Make the result of a step that of the flow, and return the flow."""
        if self._returns is not None:
            raise DefinitionError(f"flow {self.name!r} returns the result of step {self._returns.name!r} already")
        node = self._graph.own(step)
        node.check_stored()
        self._returns = node
        return cast("Flow[S]", self)

    def plan(self) -> FlowPlan:
        """All jobs of the flow, as they are stored. DefinitionError without any, or if one waits for too many."""
        nodes = [node for node in self._graph.nodes.values() if node is not self._alarm]
        if not nodes:
            raise DefinitionError(f"flow {self.name!r} has no steps")
        ends = {node for node in nodes if not node.dependents and not node.is_empty}
        if self._returns is not None and not self._returns.is_empty:
            ends = {self._returns}
        alarm = self._alarm if ends else None
        gate = None if alarm is None else alarm.gate
        steps = []
        for node in nodes:
            gates = [dependent.gate for dependent in node.dependents.values()]
            if gate is not None and node in ends:
                gates.append(gate)
            policy = OnFailure("settled" if node.settled else self.on_failure, gate)
            steps.append(node.planned(policy, gates, node.after))
        if alarm is not None:
            unless = tuple(node.name for node in nodes if node in ends)
            steps.append(alarm.planned(WAIT, (), After({}, (), unless)))
        for step in steps:
            step.check()
        return FlowPlan(
            self.name,
            tuple(steps),
            self.deadline.total_seconds(),
            self.id or "",
            "" if self._returns is None else self._returns.name,
            "" if alarm is None else alarm.name,
        )

    def decode(self, completed: Completed | None) -> Any:
        """The result of the flow, from the entries of the step that it returns."""
        if self._returns is None or completed is None:
            return None
        decode = self._returns.task.signature.result.decode
        results = [entry.failure or decode(json.dumps(entry.result)) for entry in completed.entries]
        return results if self._returns.many else results[0]

    def as_result(self) -> bytes:
        plan = self.plan()
        if not plan.returns:
            raise DefinitionError(f"flow {self.name!r} returns nothing", hint="use `return flow.returns(step)`")
        if plan.known_result is not None and not any(step.bodies for step in plan.steps):
            return plan.known_result
        return write_returned(plan)

    def __repr__(self) -> str:
        return f"<Flow {self.name} steps={len(self._graph.nodes)}>"
