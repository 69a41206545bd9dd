"""A flow that a job returned takes the place of that job."""

from __future__ import annotations

from dataclasses import replace

from jetjobs.model.errors import DefinitionError
from jetjobs.model.flow.flow_plan import FlowPlan, PlannedStep
from jetjobs.model.flow.steps import After, FlowHeaders, GateRef, OnFailure, Source, Up
from jetjobs.model.wire.ids import nested_node


def replaced(plan: FlowPlan, job: FlowHeaders, uid: str) -> FlowPlan:
    """The jobs of a returned flow as part of the flow of the job that returned it.

    The final job takes over position and dependents of the job, so that headers do not grow with each returned
    flow. A final group fills the position with its list. Id, deadline and policy of the outer flow hold for all.
    DefinitionError if the flow cannot take the place of a job.
    """
    if plan.on_failed:
        raise DefinitionError(
            f"flow {plan.name!r} has on_failed, but was returned by a job of another flow",
            hint="on_failed belongs to the outer flow",
        )
    place = Up(job.step, job.next, settled=job.on_failure.policy == "settled", up=job.up)
    outer = OnFailure("wait", job.on_failure.gate) if place.settled else job.on_failure
    steps = []
    for step in plan.steps:
        inner = _nested(step, uid)
        inner = replace(inner, on_failure=OnFailure("settled", outer.gate) if _settles(step) else outer)
        if step.node != plan.returns:
            failing = place.failing
            inner = replace(inner, up=None if failing is None else replace(failing, fills=""))
        elif step.many or step.next:
            inner = replace(inner, up=replace(place, fills="list" if step.many else "one"))
        else:
            settled = place.settled or _settles(step)
            policy = OnFailure("settled", outer.gate) if settled else outer
            inner = replace(inner, takes=job.step, next=job.next, up=job.up, on_failure=policy)
        inner.check()
        steps.append(inner)
    return replace(plan, steps=tuple(steps), returns=nested_node(uid, plan.returns), under=uid)


def _settles(step: PlannedStep) -> bool:
    return step.on_failure.policy == "settled"


def _nested(step: PlannedStep, uid: str) -> PlannedStep:
    """The step with the names that it and its neighbours have in the outer flow."""

    def named(node: str) -> str:
        return nested_node(uid, node)

    after = step.after
    if after is not None:
        sources = {pointer: Source(named(source.node), source.many) for pointer, source in after.values.items()}
        after = After(sources, tuple(map(named, after.nodes)))
    gates = tuple(GateRef(gate.queue, gate.task, named(gate.uid)) for gate in step.next)
    return replace(step, node=named(step.node), next=gates, after=after)
