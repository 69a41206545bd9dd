"""Flows as users declare them: what becomes of the steps, and what is refused before anything is stored."""

# No `from __future__ import annotations`: tasks are declared inside tests, with local types.

import copy
import json
import math
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, PlainSerializer

from jetjobs import INJECTED, Context, Failed, Flow, JetJobs, RetryPolicy, Router, Secret, Settings
from jetjobs.define.flows.flow_handle import FlowHandle
from jetjobs.define.task import SyncTask
from jetjobs.errors import DefinitionError, InvalidArguments, NotYetKnown, UnstorableValue
from jetjobs.model.flow.entries import Completed, Entry
from jetjobs.model.flow.flow_plan import FlowPlan, PlannedStep, read_returned
from jetjobs.model.flow.steps import After, GateRef, OnFailure, Position, Source

app = JetJobs("test", settings=Settings())


class Image(BaseModel):
    path: str
    width: int = 0


@app.task
async def charge(order: int) -> float:
    return order / 100


@app.task(queue="mail")
async def ship(receipt: float, carrier: str, day: datetime | None = None) -> str:
    return carrier


@app.task
def resize(path: str, width: int = 100) -> Image:
    return Image(path=path, width=width)


@app.task
async def gallery(images: list[Image | Failed], user: int) -> str:
    return ""


@app.task
async def anything(value: Any, more: Any = None) -> Any: ...


@app.task(store_result=False)
async def vacuum() -> None: ...


@app.task
async def login(user: str, password: Annotated[str, Secret()]) -> str:
    return user


def steps_of(flow: Flow[Any]) -> dict[str, PlannedStep]:
    return {step.node: step for step in flow.plan().steps}


def arguments(step: PlannedStep, index: int = 0) -> Any:
    return json.loads(step.bodies[index])


# What becomes of the steps


def test_a_chain_passes_each_result_as_the_first_argument() -> None:
    chain = charge.bind(7).then(ship, carrier="dhl").then(anything.options(step="last"))
    plan = Flow.of(chain).plan()
    first, second, third = plan.steps
    assert (plan.name, plan.returns, plan.id) == ("charge", "last", "")
    assert first == PlannedStep(
        "charge", "charge", "default", "normal", (b'{"order":7}',), next=(GateRef("mail", "ship", "ship"),)
    )
    assert second.after == After({"/receipt": Source("charge")})
    assert arguments(second) == {"receipt": None, "carrier": "dhl"}
    assert (second.queue, second.next) == ("mail", (GateRef("default", "anything", "last"),))
    assert third.after == After({"/value": Source("ship")})
    assert repr(chain) == "<Chain charge > ship > anything>"


def test_a_chain_can_be_continued_in_two_ways() -> None:
    start = charge.bind(7).then(ship, "dhl")
    assert len(Flow.of(start.then(anything)).plan().steps) == 3
    assert len(Flow.of(start).plan().steps) == 2


def test_a_chain_becomes_a_flow_with_options() -> None:
    flow = Flow.of(
        charge.bind(7).then(ship, "dhl"), name="order", id="order-7", deadline="2h", on_failure="cancel"
    )
    plan = flow.plan()
    assert (plan.name, plan.id, plan.deadline_s) == ("order", "order-7", 7200)
    assert {step.on_failure.policy for step in plan.steps} == {"cancel"}


def test_a_group_is_placed_at_once_and_joined() -> None:
    flow = Flow("upload")
    images = flow.map(resize.settled, ["a", "b", "c"], width=800)
    flow.returns(flow.add(gallery, images, 7))
    steps = steps_of(flow)
    group = steps["resize"]
    assert [arguments(group, index) for index in range(3)] == [{"path": p, "width": 800} for p in "abc"]
    assert (group.many, group.count, group.is_gate) == (True, 3, False)
    assert group.on_failure == OnFailure("settled")
    assert group.next == (GateRef("default", "gallery", "gallery"),)
    assert steps["gallery"].after == After({"/images": Source("resize", True)})
    assert arguments(steps["gallery"]) == {"user": 7, "images": None}


def test_results_may_be_in_lists_and_dicts() -> None:
    flow = Flow("f")
    one, two = flow.add(charge, 1), flow.map(charge, [1, 2])
    flow.add(anything, [one, {"a/b": two, "n": 7}, (one, "text", None, True, 1.5)], more=one)
    step = steps_of(flow)["anything"]
    assert step.after == After(
        {
            "/value/0": Source("charge"),
            "/value/1/a~1b": Source("charge_2", True),
            "/value/2/0": Source("charge"),
            "/more": Source("charge"),
        }
    )
    assert arguments(step) == {
        "value": [None, {"a/b": None, "n": 7}, [None, "text", None, True, 1.5]],
        "more": None,
    }


def test_a_map_over_a_result_is_a_template() -> None:
    flow = Flow("f")
    paths = flow.add(anything, 1)
    flow.map(resize, paths, width=800)
    step = steps_of(flow)["resize"]
    assert (step.map, step.many, step.count, step.is_gate) == ("/path", True, None, True)
    assert step.after == After({"/path": Source("anything")})
    assert arguments(step) == {"path": None, "width": 800}


def test_a_map_over_a_map_gets_its_list() -> None:
    flow = Flow("f")
    flow.map(anything, flow.map(resize, ["a"]))
    assert steps_of(flow)["anything"].after == After({"/value": Source("resize", True)})


def test_a_map_over_a_known_list_waits_for_another_argument() -> None:
    flow = Flow("f")
    flow.map(resize, ["a", "b"], flow.add(anything, 1))
    step = steps_of(flow)["resize"]
    assert step.after == After({"/width": Source("anything")})
    assert (step.map, arguments(step)) == ("/path", {"path": ["a", "b"], "width": None})
    after = flow.after(flow.add(charge, 1))
    after.map(resize, ["c"])
    step = steps_of(flow)["resize_2"]
    assert (step.after, step.map) == (After({}, ("charge",)), "/path")
    assert arguments(step) == {"path": ["c"]}


def test_a_map_over_a_list_of_results() -> None:
    flow = Flow("f")
    flow.map(anything, [flow.add(charge, 1), 7])
    step = steps_of(flow)["anything"]
    assert step.after == After({"/value/0": Source("charge")})
    assert arguments(step) == {"value": [None, 7]}


def test_nothing_waits_for_a_map_over_an_empty_list() -> None:
    flow = Flow("f")
    nothing = flow.map(resize.settled, [])
    flow.add(gallery, nothing, 7)
    flow.after(nothing).add(vacuum)
    flow.map(anything, nothing)
    flow.map(ship, [1.5, 2.5], "dhl", nothing)  # type: ignore[arg-type]
    steps = steps_of(flow)
    assert (steps["resize"].count, steps["resize"].bodies) == (0, ())
    assert (steps["gallery"].after, arguments(steps["gallery"])) == (None, {"user": 7, "images": []})
    assert steps["vacuum"].after is None
    assert (steps["anything"].count, steps["anything"].is_gate) == (0, False)
    assert [arguments(steps["ship"], i)["receipt"] for i in (0, 1)] == [1.5, 2.5]
    assert not steps["ship"].is_gate


def test_an_empty_map_after_another_step_is_decided_when_that_has_run() -> None:
    flow = Flow("f")
    last = flow.after(flow.add(charge, 1)).map(resize, [])
    flow.after(last).add(vacuum)
    steps = steps_of(flow)
    assert (steps["resize"].map, arguments(steps["resize"])) == ("/path", {"path": []})
    assert steps["vacuum"].after == After({}, ("resize",))


def test_steps_that_only_wait() -> None:
    flow = Flow("f")
    one, two = flow.add(vacuum), flow.add(charge, 1)
    flow.after(one, two, one).add(anything, two)
    step = steps_of(flow)["anything"]
    assert step.after == After({"/value": Source("charge")}, ("vacuum",))
    assert steps_of(flow)["vacuum"].next == (GateRef("default", "anything", "anything"),)


def test_options_of_a_step() -> None:
    flow = Flow("f", on_failure="cancel")
    policy = RetryPolicy(max_attempts=2)
    flow.add(
        login.options(
            queue="web",
            priority="high",
            max_attempts=3,
            retry=policy,
            headers={"tenant": "7"},
            callback="https://shop.example/hook",
            step="in",
        ),
        "ada",
        password="x",
    )
    (step,) = flow.plan().steps
    assert (step.node, step.task, step.queue, step.lane, step.max_attempts) == ("in", "login", "web", "high", 3)
    assert step.headers == {
        "tenant": "7",
        "Jetjobs-Secret": "password",
        "Jetjobs-Retry": policy.to_header(),
        "Jetjobs-Callback": "https://shop.example/hook",
    }
    assert step.on_failure == OnFailure("cancel")


def test_the_alarm_is_a_gate_that_the_end_removes() -> None:
    flow = Flow("f")
    rows = flow.add(charge, 1)
    flow.add(anything, rows)
    flow.add(charge, 2)
    flow.on_failed(ship, 1.5, carrier="alarm")
    steps = steps_of(flow)
    alarm = GateRef("mail", "ship", "ship")
    assert steps["ship"].after == After({}, (), ("anything", "charge_2"))
    assert steps["ship"].on_failure == OnFailure()
    assert steps["charge"].next == (GateRef("default", "anything", "anything"),)
    assert steps["anything"].next == steps["charge_2"].next == (alarm,)
    assert {steps[name].on_failure for name in ("charge", "anything", "charge_2")} == {OnFailure("wait", alarm)}
    assert flow.plan().ends == ("anything", "charge_2")
    flow.returns(rows)
    assert steps_of(flow)["ship"].after == After({}, (), ("charge",))
    assert flow.plan().ends == ("charge",)


def test_an_alarm_of_a_flow_without_jobs_is_left_out() -> None:
    flow = Flow("f")
    flow.returns(flow.map(resize, []))
    flow.on_failed(vacuum)
    assert flow.plan().on_failed == ""
    assert [*flow.plan().chunks("f")] == []


def test_names_are_those_of_the_tasks_with_a_number() -> None:
    flow = Flow("f")
    for _ in range(3):
        flow.add(charge, 1)
    flow.add(charge.options(step="charge_4"), 1)
    flow.add(charge, 1)
    assert [*steps_of(flow)] == ["charge", "charge_2", "charge_3", "charge_4", "charge_5"]


def test_no_step_gets_the_name_of_a_job_of_a_group() -> None:
    flow = Flow("f")
    flow.map(charge, [1, 2, 3])  # charge-0, charge-1, charge-2
    flow.add(charge, 1)
    flow.add(resize, "a")
    flow.add(resize, "b")
    flow.map(resize, ["c"])
    uids = [job.uid for chunk in flow.plan().chunks("f") for job in chunk.jobs]
    assert len(uids) == len(set(uids)) == 7


def test_a_long_name_has_room_for_its_number() -> None:
    long = app.task(name="n" * 64)(charge.function)
    flow = Flow("f")
    for _ in range(11):
        flow.add(long, 1)
    names = [*steps_of(flow)]
    assert len(set(names)) == 11
    assert {len(name) for name in names} == {64}


def test_a_flow_may_have_many_chains_but_an_alarm_watches_a_limited_number() -> None:
    flow = Flow("f")
    for number in range(5_000):
        flow.add(ship, flow.add(charge, number), "dhl")
    assert len(flow.plan().steps) == 10_000
    flow.on_failed(vacuum)
    with pytest.raises(DefinitionError, match="step 'vacuum' has 59,"):
        flow.plan()


def test_the_same_declaration_has_the_same_digest() -> None:
    def declare(order: int) -> FlowPlan:
        flow = Flow("f", id=f"order-{order}")
        flow.returns(flow.add(ship, flow.add(charge, order), "dhl"))
        return flow.plan()

    assert declare(7).digest == declare(7).digest
    assert declare(7).digest != declare(8).digest


def test_a_flow_has_a_deadline() -> None:
    assert Flow("f").deadline == timedelta(days=7)
    assert Flow("f", deadline=90).deadline == timedelta(seconds=90)
    for deadline in ("31d", 0, -1, "soon"):
        with pytest.raises(DefinitionError, match="deadline"):
            Flow("f", deadline=deadline)


def test_names_and_ids_and_policies_of_flows_are_checked() -> None:
    with pytest.raises(DefinitionError, match="invalid flow name"):
        Flow("a flow")
    for flow_id in ("", "a.b", "x" * 101, 7):
        with pytest.raises(DefinitionError, match="invalid flow id"):
            Flow("f", id=flow_id)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="'wait' or 'cancel'") as raised:
        Flow("f", on_failure="settled")  # type: ignore[arg-type]
    assert "task.settled" in str(raised.value.hint)


# Arguments


def test_arguments_are_checked_when_a_step_is_added() -> None:
    flow = Flow("f")
    with pytest.raises(InvalidArguments, match="order"):
        flow.add(charge, "seven")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="order: is missing"):
        flow.add(charge)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="width"):
        flow.map(resize, ["a"], width="wide")  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="path"):
        flow.map(resize, ["a", 7])  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="carrier: is missing"):
        charge.bind(7).then(ship)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="order: Input should be a valid integer"):
        flow.after(flow.add(charge, 1)).map(charge, ["x"])  # type: ignore[arg-type]
    assert [*steps_of(flow)] == ["charge"]


def test_the_known_arguments_beside_a_result_are_checked() -> None:
    flow = Flow("f")
    receipt = flow.add(charge, 1)
    with pytest.raises(InvalidArguments, match="carrier: is missing") as raised:
        flow.add(ship, receipt)  # type: ignore[call-arg]
    assert "ship(receipt: float, carrier: str" in str(raised.value.hint)
    with pytest.raises(InvalidArguments, match="carrier: Input should be a valid string"):
        flow.add(ship, receipt, 7)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="colour: is not an argument"):
        flow.add(ship, receipt, "dhl", colour=receipt)  # type: ignore[call-arg]
    with pytest.raises(InvalidArguments, match="receipt given twice"):
        flow.add(ship, receipt, "dhl", receipt=receipt)  # type: ignore[misc]
    day = datetime(2026, 1, 2, tzinfo=UTC)
    flow.add(ship, receipt, carrier="dhl", day=day)
    assert arguments(steps_of(flow)["ship"]) == {
        "receipt": None, "carrier": "dhl", "day": "2026-01-02T00:00:00Z",
    }  # fmt: skip


def test_an_injected_argument_cannot_be_passed() -> None:
    @app.task
    async def injected(n: int, ctx: Context = INJECTED) -> None: ...

    flow = Flow("f")
    with pytest.raises(InvalidArguments, match="ctx is injected"):
        flow.add(injected, 1, ctx=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidArguments, match="ctx: is not an argument"):
        flow.add(injected, 1, ctx=flow.add(anything, 1))


@pytest.mark.parametrize(
    "value", [datetime(2026, 1, 1), Image(path="a"), math.nan, "\ud800", {7: 1}, {1, 2}, b"x"]
)
def test_only_json_can_be_beside_a_result(value: Any) -> None:
    flow = Flow("f")
    with pytest.raises(InvalidArguments, match=r"value\.1: .* cannot be in one list or dict") as raised:
        flow.add(anything, [flow.add(charge, 1), value])
    assert "an argument of its own" in str(raised.value.hint)


def test_a_result_cannot_be_a_key_or_in_a_set() -> None:
    flow = Flow("f")
    result = flow.add(charge, 1)
    with pytest.raises(DefinitionError, match="cannot be the key of a dict"):
        flow.add(anything, {result: 1})
    with pytest.raises(DefinitionError, match="cannot be in a set"):
        flow.add(anything, {result})


def test_arguments_that_contain_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArguments, match="contain themselves"):
        Flow("f").add(anything, loop)


# Placeholders


def touches() -> list[Any]:
    return [
        lambda r: r.cents,
        lambda r: r[0],
        lambda r: bool(r),
        lambda r: [*r],
        lambda r: len(r),
        lambda r: 1 in r,
        lambda r: r(),
        lambda r: r == 1,
        lambda r: r != 1,
        lambda r: r < 1,
        lambda r: r + 1,
        lambda r: 1 + r,
        lambda r: -r,
        lambda r: f"{r}",
        lambda r: str(r),
        lambda r: int(r),
        lambda r: float(r),
        lambda r: setattr(r, "x", 1),
        lambda r: r.__setitem__(0, 1),
        lambda r: range(r),
    ]


@pytest.mark.parametrize("touch", touches())
def test_touching_a_result_raises_not_yet_known(touch: Any) -> None:
    with pytest.raises(NotYetKnown, match="result of step 'charge' is not known") as raised:
        touch(Flow("f").add(charge, 1))
    assert "returns a flow" in str(raised.value.hint)


def test_a_result_can_be_printed_for_debugging_and_looked_at_by_libraries() -> None:
    result = Flow("f").add(charge, 1)
    assert repr(result) == "<result of step 'charge'>"
    assert not hasattr(result, "__wrapped__")
    assert {result: 1}[result] == 1
    assert copy.copy([result])[0] is result


# Refused


def test_results_of_another_flow_are_refused() -> None:
    one, two = Flow("one"), Flow("two")
    result = one.add(charge, 1)
    for use in (
        lambda: two.add(ship, result, "dhl"),
        lambda: two.map(charge, result),  # type: ignore[arg-type]
        lambda: two.after(result),
        lambda: two.returns(result),
    ):
        with pytest.raises(DefinitionError, match="belongs to flow 'one', not to this flow 'two'"):
            use()
    assert not two._graph.nodes


def test_only_results_can_be_waited_for_and_returned() -> None:
    flow = Flow("f")
    with pytest.raises(DefinitionError, match="expected the result of a step, not int"):
        flow.returns(7)
    with pytest.raises(DefinitionError, match="expected the result of a step, not AsyncTask"):
        flow.after(charge)
    with pytest.raises(DefinitionError, match=r"after\(\) needs steps"):
        flow.after()


def test_a_result_that_is_not_stored_cannot_be_used() -> None:
    flow = Flow("f")
    result = flow.add(vacuum)
    for use in (lambda: flow.add(anything, result), lambda: flow.returns(result)):
        with pytest.raises(DefinitionError, match="store_result=False") as raised:
            use()
        assert "flow.after" in str(raised.value.hint)
    flow.after(result).add(charge, 1)


def test_a_settled_result_cannot_be_mapped() -> None:
    flow = Flow("f")
    settled = flow.map(resize.settled, ["a"])
    for use in (
        lambda: flow.map(anything, settled),
        lambda: flow.map(resize, ["a"], settled),  # type: ignore[arg-type]
        lambda: flow.map(resize, flow.add(anything.settled, 1)),
    ):
        with pytest.raises(DefinitionError, match="settled step") as raised:
            use()
        assert raised.value.hint
    flow.after(settled).map(resize, ["b"])


@pytest.mark.parametrize(
    "options",
    [
        {"key": "k"},
        {"delay": 5},
        {"run_at": datetime.now(UTC)},
        {"job_id": "x"},
        {"deadline": datetime.now(UTC)},
    ],
)
def test_options_that_a_step_cannot_have(options: Any) -> None:
    with pytest.raises(DefinitionError, match=f"option '{next(iter(options))}' cannot be used") as raised:
        Flow("f").add(charge.options(**options), 1)
    assert raised.value.hint
    with pytest.raises(DefinitionError, match="cannot be used"):
        Flow.of(charge.options(**options).bind(1).then(ship, "dhl"))


def test_at_most_100_steps_wait_for_one() -> None:
    flow = Flow("f")
    result = flow.add(charge, 1)
    for _ in range(100):
        flow.after(result).add(vacuum)
    with pytest.raises(DefinitionError, match="over 100 steps wait for step 'charge'") as raised:
        flow.add(anything, result)
    assert "flow.map" in str(raised.value.hint)
    assert len(flow.plan().steps) == 101


def test_a_step_that_waits_for_too_many_is_refused() -> None:
    flow = Flow("f")
    flow.add(anything, [flow.add(charge, n) for n in range(2_000)])
    with pytest.raises(DefinitionError, match=r"step 'anything' has .* bytes of headers"):
        flow.plan()


def test_names_of_steps_are_checked() -> None:
    flow = Flow("f")
    flow.map(charge, [1, 2])
    flow.add(charge.options(step="one"), 1)
    for name in ("one", "charge", "charge-0", "charge-77"):
        with pytest.raises(DefinitionError, match="is taken"):
            flow.add(charge.options(step=name), 1)
    flow.add(charge.options(step="resize-1"), 1)
    with pytest.raises(DefinitionError, match="is taken"):
        flow.map(charge.options(step="resize"), [1])
    with pytest.raises(DefinitionError, match="reserved"):
        flow.add(charge.options(step="x0123456789ab-a"), 1)
    with pytest.raises(DefinitionError, match="invalid step name"):
        charge.options(step="a.b")


@pytest.mark.parametrize("items", ["text", b"bytes", {"a": 1}, 7, None])
def test_a_map_needs_a_list(items: Any) -> None:
    with pytest.raises(DefinitionError, match=r"flow\.map needs a list"):
        Flow("f").map(charge, items)


def test_a_map_takes_any_iterable() -> None:
    flow = Flow("f")
    flow.map(charge, (n for n in range(3)))
    assert steps_of(flow)["charge"].count == 3


def test_a_task_without_arguments_cannot_be_mapped() -> None:
    with pytest.raises(DefinitionError, match="no argument to map over"):
        Flow("f").map(vacuum, [1])  # type: ignore[arg-type]


def test_a_flow_has_steps_one_result_and_one_alarm() -> None:
    with pytest.raises(DefinitionError, match="no steps"):
        Flow("f").plan()
    flow = Flow("f")
    flow.on_failed(vacuum)
    with pytest.raises(DefinitionError, match="no steps"):
        flow.plan()
    with pytest.raises(DefinitionError, match="on_failed already"):
        flow.on_failed(vacuum)
    result = flow.add(charge, 1)
    flow.returns(result)
    with pytest.raises(DefinitionError, match="returns the result of step 'charge' already"):
        flow.returns(result)
    other = Flow("g")
    with pytest.raises(DefinitionError, match="cannot get the result of a step"):
        other.on_failed(anything, other.add(charge, 1))


# Returned flows


@app.task
async def returns_flow(order: int) -> Flow[str]:
    return Flow.of(charge.bind(order).then(ship, "dhl"))


@app.task
def decides(order: int) -> Flow[str]:
    return Flow.value("nothing") if order == 0 else Flow.of(charge.bind(order).then(ship, "dhl"))


@app.task
async def unannotated(order: int) -> Any: ...


@app.task
async def either(order: int) -> Flow[int] | int:
    return 1


def test_a_returned_flow_is_encoded_in_place_of_the_result() -> None:
    for task in (returns_flow, unannotated, either):
        flow = Flow.of(charge.bind(7).then(ship, "dhl"))
        assert read_returned(task.signature.result.encode(flow)) == flow.plan()
    assert returns_flow.signature.result.encode("ada") == b'"ada"'
    assert read_returned(b'"ada"') is None


def test_a_returned_flow_does_not_get_to_a_serializer_of_the_result() -> None:
    def task() -> Flow[Annotated[Any, PlainSerializer(repr)]]: ...  # type: ignore[empty-body]

    flow = Flow.of(charge.bind(7).then(ship, "dhl"))
    assert read_returned(app.task(name="serializes")(task).signature.result.encode(flow)) == flow.plan()


async def test_a_task_that_returns_a_flow_has_the_result_of_the_flow() -> None:
    assert returns_flow.signature.result.decode(b'"ada"') == "ada"
    assert either.signature.result.decode(b"7") == 7
    assert isinstance(await returns_flow(1), Flow)
    assert isinstance(decides(1), Flow)
    assert "-> jetjobs.Flow[str]" in returns_flow.signature.text()


def test_a_task_may_decide_that_nothing_follows() -> None:
    assert decides.signature.result.encode(decides(0)) == b'"nothing"'
    assert read_returned(decides.signature.result.encode(decides(1))) is not None
    flow: Flow[Any] = Flow("f")
    flow.returns(flow.map(charge, []))
    assert unannotated.signature.result.encode(flow) == b"[]"
    flow.add(charge, 1)
    plan = read_returned(unannotated.signature.result.encode(flow))
    assert plan is not None
    assert plan.known_result == b"[]"


def test_a_returned_flow_that_cannot_run_is_not_retried() -> None:
    flow = Flow("f")
    for problem in ("no steps", "returns nothing"):
        with pytest.raises(UnstorableValue, match=f"returned a flow that cannot run: .*{problem}"):
            returns_flow.signature.result.encode(flow)
        flow.add(charge, 1)


def test_a_task_that_returns_a_flow_stores_its_record() -> None:
    async def task() -> Flow[str]: ...  # type: ignore[empty-body]

    with pytest.raises(DefinitionError, match="needs store_result=True"):
        app.task(store_result=False, name="unstored")(task)


# Results


def entries(*results: Any) -> Completed:
    count = len(results)
    return Completed(
        "n",
        tuple(
            Entry(Position("n", i, count), "dead", result.as_dict())
            if isinstance(result, Failed)
            else Entry(Position("n", i, count), "succeeded", result)
            for i, result in enumerate(results)
        ),
    )


def test_the_result_of_a_flow_has_the_type_of_its_step() -> None:
    flow = Flow("f")
    flow.returns(flow.add(resize, "a"))
    assert flow.decode(entries({"path": "a", "width": 1})) == Image(path="a", width=1)
    failed = Failed("id", "exhausted", "no")
    flow = Flow("f")
    flow.returns(flow.map(resize.settled, ["a", "b"]))
    assert flow.decode(entries({"path": "a"}, failed)) == [Image(path="a"), failed]
    assert flow.decode(entries()) == []
    assert Flow("f").decode(None) is None


def test_a_failure_gets_to_the_task_as_failed() -> None:
    failed = Failed("id", "exhausted", "no")
    body = json.dumps({"images": [{"path": "a"}, failed.as_dict()], "user": 7}).encode()
    assert gallery.signature.decode(body)["images"] == [Image(path="a"), failed]


def test_a_type_that_would_hide_failures_is_refused() -> None:
    def task(rows: list[dict[str, Any] | Failed]) -> None: ...

    with pytest.raises(DefinitionError, match="argument 'rows' would take a Failed for dict") as raised:
        app.task(name="hiding")(task)
    assert "Failed | dict" in str(raised.value.hint)

    def better(rows: list[Failed | dict[str, Any]]) -> None: ...

    made = app.task(name="better")(better)
    body = json.dumps({"rows": [Failed("id", "r", "e").as_dict(), {"a": 1}]}).encode()
    assert made.signature.decode(body)["rows"] == [Failed("id", "r", "e"), {"a": 1}]


# Enqueueing


class Stub(Router):
    """A router that keeps what it is asked to store."""

    def __init__(self) -> None:
        super().__init__()
        self.flows: list[Flow[Any]] = []

    async def enqueue_flow(self, flow: Flow[Any]) -> FlowHandle[Any]:
        self.flows.append(flow)
        return FlowHandle("id", flow.name, duplicate=False)


async def test_a_chain_is_stored_by_the_app_of_its_first_task() -> None:
    router, stub = Router(), Stub()
    first = router.task(charge.function)
    stub.include(router)
    handle = await first.bind(7).then(ship, "dhl").enqueue()
    assert (handle.id, repr(handle)) == ("id", "<FlowHandle id charge>")
    assert [step.node for step in stub.flows[0].plan().steps] == ["charge", "ship"]


def greet(name: str) -> str:
    return name


async def test_a_chain_of_a_task_without_an_app_cannot_be_stored() -> None:
    alone = SyncTask[[str], str](greet, charge.send, charge.send_sync, {})
    with pytest.raises(DefinitionError, match="belongs to no app or router"):
        await alone.bind("ada").then(anything).enqueue()


async def test_a_router_without_an_app_cannot_store_a_flow() -> None:
    with pytest.raises(DefinitionError, match="flow 'f' belongs to a router that no app includes"):
        await Router().enqueue_flow(Flow("f"))
