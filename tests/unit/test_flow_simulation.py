"""Random flows, run in memory by the pure decisions alone, in random order and with repeated ends.

Each result must be the one that plain Python computes, each job must be stored once, and nothing may be left over.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jetjobs import Failed, Flow, JetJobs, Settings
from jetjobs.define.flows.flow import FlowSteps
from jetjobs.model.flow.binding import bind, expand
from jetjobs.model.flow.entries import Completed, Entry, complete, entry_headers, failed_result
from jetjobs.model.flow.flow_plan import FlowPlan, read_returned
from jetjobs.model.flow.replacement import replaced
from jetjobs.model.flow.steps import FlowHeaders, GateRef, Position, Up

app = JetJobs("simulated", settings=Settings())
Spec = list[Any]


@app.task
def number(n: int) -> int:
    return n


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def times(n: int, factor: int) -> int:
    return n * factor


@app.task
def below(n: int) -> list[int]:
    return [*range(n % 4)]


@app.task
def shaky(n: int) -> int:
    if n % 2:
        raise ValueError("odd")
    return n


@app.task
def fine(numbers: list[int | Failed]) -> int:
    return sum(-1 if isinstance(one, Failed) else one for one in numbers)


@app.task(store_result=False)
def nothing() -> None: ...


@app.task
def nested(spec: Spec) -> Flow[int]:
    flow = Flow("nested")
    last = build(flow, spec)
    if spec[-1] == "watched":
        flow.after(last).add(nothing)
    return flow.returns(last)


@app.task
def nested_list(specs: list[Spec]) -> Flow[list[int]]:
    flow = Flow("list")
    return flow.returns(flow.map(nested, specs))


@app.task
def nested_shaky(n: int) -> Flow[int]:
    flow = Flow("shaky")
    return flow.returns(flow.add(times, flow.add(shaky, n), 1))


@app.task
def deeply_shaky(numbers: list[int]) -> Flow[list[int]]:
    flow = Flow("deep")
    return flow.returns(flow.map(nested_shaky, numbers))


def build(flow: FlowSteps, spec: Spec) -> int:
    """Add the steps of a spec; returns the placeholder of its value."""
    match spec:
        case ["number", n, *_]:
            return flow.add(number, n)
        case ["total", specs, *_]:
            return flow.add(total, [build(flow, one) for one in specs])
        case ["times", numbers, factor, *_]:
            return flow.add(total, flow.map(times, numbers, build(flow, factor)))
        case ["below", inner, *_]:
            return flow.add(total, flow.map(times, flow.add(below, build(flow, inner)), factor=3))
        case ["nested", inner, *_]:
            return flow.add(nested, inner)
        case ["nested_list", specs, *_]:
            return flow.add(total, flow.add(nested_list, specs))
        case ["settled", numbers, *_]:
            return flow.add(fine, flow.map(shaky.settled, numbers))
        case ["settled_nested", numbers, *_]:
            return flow.add(fine, flow.map(nested_shaky.settled, numbers))
        case ["settled_deep", numbers, *_]:
            deep = flow.map(deeply_shaky.settled, [numbers, [2, 4]])
            return flow.add(fine, flow.map(length, flow.add(keep, deep)))
    raise AssertionError(spec)


@app.task
def keep(lists: list[list[int] | Failed]) -> list[list[int]]:
    return [one for one in lists if not isinstance(one, Failed)]


@app.task
def length(numbers: list[int]) -> int:
    return len(numbers)


def value(spec: Spec) -> int:
    """What plain Python makes of a spec."""
    match spec:
        case ["number", n, *_]:
            return int(n)
        case ["total" | "nested_list", specs, *_]:
            return sum(map(value, specs))
        case ["times", numbers, factor, *_]:
            return sum(n * value(factor) for n in numbers)
        case ["below", inner, *_]:
            return sum(n * 3 for n in range(value(inner) % 4))
        case ["nested", inner, *_]:
            return value(inner)
        case ["settled" | "settled_nested", numbers, *_]:
            return sum(-1 if n % 2 else n for n in numbers)
        case ["settled_deep", numbers, *_]:
            return (0 if any(n % 2 for n in numbers) else len(numbers)) + 2
    raise AssertionError(spec)


numbers = st.lists(st.integers(-5, 9), max_size=3)
watched = st.sampled_from(["watched", ""])
specs = st.recursive(
    st.tuples(st.just("number"), st.integers(-5, 9), watched).map(list)
    | st.tuples(st.sampled_from(["settled", "settled_nested", "settled_deep"]), numbers, watched).map(list),
    lambda inner: (
        st.tuples(
            st.sampled_from(["total", "nested_list"]), st.lists(inner, max_size=3), watched
        ).map(list)
        | st.tuples(st.sampled_from(["below", "nested"]), inner, watched).map(list)
        | st.tuples(st.just("times"), numbers, inner, watched).map(list)
    ),
    max_leaves=6,
)  # fmt: skip


class Job:
    def __init__(self, task: str, uid: str, body: bytes, headers: FlowHeaders) -> None:
        self.task, self.uid, self.body, self.headers = task, uid, body, headers


class Simulation:
    """One flow, its ledger and its gates. Each end of a job may be performed again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.ready: list[Job] = []
        self.gates: dict[str, Job] = {}
        self.ledger: dict[str, list[Entry]] = {}
        self.dead: list[str] = []
        self.stored: Counter[str] = Counter()
        self._marks: set[tuple[str, str, int]] = set()

    def place(self, plan: FlowPlan) -> None:
        for chunk in plan.chunks("f"):
            mark = (chunk.queue, chunk.name, chunk.first)
            if mark in self._marks:
                continue
            self._marks.add(mark)
            for job in chunk.jobs:
                headers = FlowHeaders.read(job.headers)
                assert headers is not None
                assert headers.waiting is job.gate
                self._store(Job(job.task, job.uid, job.body, headers), gate=job.gate)

    def _store(self, job: Job, *, gate: bool = False) -> None:
        self.stored[job.uid] += 1
        if gate:
            self.gates[job.uid] = job
        else:
            self.ready.append(job)

    def run(self) -> None:
        while self.ready:
            job = self.ready.pop(self._random.randrange(len(self.ready)))
            task = app.tasks[job.task]
            try:
                result = task.signature.result.encode(task.function(**task.signature.decode(job.body)))
            except ValueError as error:
                result = failed_result(Failed(job.uid, "exhausted", str(error)))
                for _ in self._times():
                    self._failed(job, result)
                continue
            for _ in self._times():
                self._ended(job, result)

    def _times(self) -> range:
        """A worker may die after any part of an end; another one then performs it again."""
        return range(self._random.choice([1, 1, 2]))

    def _ended(self, job: Job, result: bytes) -> None:
        plan = read_returned(result)
        if plan is not None:
            self.place(replaced(plan, job.headers, job.uid))
            if plan.known_result is None:
                return
            result = plan.known_result
        self._write(job.headers.step, "succeeded", result)
        self._look(job.headers.step.node, job.headers.next, job.headers.up)

    def _failed(self, job: Job, result: bytes) -> None:
        headers = job.headers
        if headers.on_failure.policy == "settled":
            self._write(headers.step, "dead", result)
            self._look(headers.step.node, headers.next, headers.up)
            return
        self.dead.append(job.uid)
        place = None if headers.up is None else headers.up.failing
        if place is not None:
            self._write(place.step, "dead", result)
            self._look(place.step.node, place.next, place.up)

    def _write(self, position: Position, state: Any, result: bytes) -> None:
        entry = Entry.read(position.node, position.count, entry_headers(position, state, result))
        self.ledger.setdefault(position.node, []).append(entry)

    def _completed(self, node: str) -> Completed | None:
        return complete(self.ledger.get(node, []))

    def _look(self, node: str, gates: tuple[GateRef, ...], up: Up | None) -> None:
        """What the completion of a node sets off."""
        completed = self._completed(node)
        if completed is None:
            return
        for gate in gates:
            self._open(gate.uid)
        if up is not None and up.fills:
            results = completed.results
            filled = json.dumps(results if up.fills == "list" else results[0]).encode()
            state = "succeeded" if up.fills == "list" else completed.entries[0].state
            self._write(up.step, state, filled)
            self._look(up.step.node, up.next, up.up)

    def _open(self, uid: str) -> None:
        job = self.gates.get(uid)
        if job is None:
            return
        after = job.headers.after
        assert after is not None
        found = {node: self._completed(node) for node in after.needed}
        completed = {node: one for node, one in found.items() if one is not None}
        if len(completed) < len(found):
            return
        if job.headers.map is None:
            del self.gates[uid]
            self.ready.append(Job(job.task, uid, bind(job.body, "", after, completed).body, job.headers))
            return
        expanded = expand(job.headers, uid, job.body, "", completed)
        del self.gates[uid]
        for one in expanded.jobs:
            self._store(Job(job.task, one.uid, one.body, one.headers))
        if not expanded.jobs:
            node = job.headers.step.node
            self._write(Position(node, 0, 0), "succeeded", b"null")
            self._look(node, job.headers.next, job.headers.up)


@settings(max_examples=400)
@given(specs, st.integers(0, 2**32))
def test_a_flow_has_the_result_that_plain_python_computes(spec: Spec, seed: int) -> None:
    flow: Flow[Any] = Flow("simulated")
    flow.returns(build(flow, spec))
    plan = flow.plan()
    simulation = Simulation(seed)
    simulation.place(plan)
    simulation.place(plan)  # enqueued twice
    simulation.run()
    assert flow.decode(simulation._completed(plan.returns)) == value(spec)
    assert {uid: count for uid, count in simulation.stored.items() if count > 1} == {}
    if not simulation.dead:
        assert simulation.gates == {}
