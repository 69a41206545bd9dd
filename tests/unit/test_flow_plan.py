"""Plans: what is stored in which chunk, and how a returned flow takes the place of its job."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.errors import DefinitionError
from jetjobs.model.flow.flow_plan import FlowPlan, PlannedJob, PlannedStep
from jetjobs.model.flow.replacement import replaced
from jetjobs.model.flow.steps import After, FlowHeaders, GateRef, OnFailure, Position, Source, Up
from jetjobs.model.wire.ids import nested_node

WAITS_FOR_A = After({"/x": Source("a")})


def step(node: str, queue: str = "default", bodies: int = 1, **more: object) -> PlannedStep:
    return PlannedStep(node, "t", queue, "normal", (b"{}",) * bodies, **more)  # type: ignore[arg-type]


def plan(*steps: PlannedStep, **more: object) -> FlowPlan:
    return FlowPlan("flow", steps, 60.0, **more)  # type: ignore[arg-type]


@st.composite
def plans(draw: st.DrawFn) -> FlowPlan:
    steps = []
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["one", "group", "gate", "map"]))
        size = draw(st.integers(0, 1100)) if kind == "group" else 1
        steps.append(
            PlannedStep(
                f"n{number}",
                "t",
                draw(st.sampled_from(["a", "b"])),
                draw(st.sampled_from(["high", "low"])),
                (draw(st.binary(max_size=3)).hex().encode(),) * size,
                kind in ("group", "map"),
                tuple(draw(st.lists(st.builds(GateRef, st.just("a"), st.just("t"), st.just("n9")), max_size=2))),
                WAITS_FOR_A if kind in ("gate", "map") else None,
                "/x" if kind == "map" else None,
                draw(st.sampled_from([OnFailure(), OnFailure("settled"), OnFailure("cancel")])),
                headers=draw(st.dictionaries(st.sampled_from(["A", "B"]), st.text(max_size=3), max_size=2)),
                max_attempts=draw(st.integers(0, 3)),
            )
        )
    return FlowPlan("flow", tuple(steps), 60.0, draw(st.sampled_from(["", "id"])), "n0")


@given(plans())
def test_a_plan_is_read_as_it_was_written(made: FlowPlan) -> None:
    assert FlowPlan.from_json(made.to_json()) == made
    assert FlowPlan.from_json(made.to_json()).digest == made.digest


@given(plans())
def test_every_job_is_in_one_chunk_and_gates_come_first(made: FlowPlan) -> None:
    chunks = [*made.chunks("f")]
    stored = [job for chunk in chunks for job in chunk.jobs]
    wanted = [each.job("f", index) for each in made.steps for index in range(len(each.bodies))]
    assert Counter(map(repr, stored)) == Counter(map(repr, wanted))
    assert len({(chunk.queue, chunk.name, chunk.first) for chunk in chunks}) == len(chunks)
    assert all(job.queue == chunk.queue and len(chunk.jobs) <= 500 for chunk in chunks for job in chunk.jobs)
    gates = [job.gate for job in stored]
    assert gates == sorted(gates, reverse=True)
    assert len({job.uid for job in stored}) == len(stored)


def test_a_flow_of_one_queue_that_fits_one_batch_is_stored_as_a_whole() -> None:
    made = plan(step("a"), step("b", after=WAITS_FOR_A))
    (chunk,) = made.chunks("f")
    assert (chunk.queue, chunk.name, chunk.first) == ("default", "~flow", 0)
    assert [job.uid for job in chunk.jobs] == ["b", "a"]


def test_the_chunks_of_several_queues_have_the_documented_marks() -> None:
    made = plan(step("a", "mail", 501, many=True), step("b", after=WAITS_FOR_A), step("c"))
    assert [(chunk.queue, chunk.name, chunk.first, len(chunk.jobs)) for chunk in made.chunks("f")] == [
        ("default", "~gates", 0, 1),
        ("mail", "~jobs", 0, 500),
        ("mail", "~jobs", 500, 1),
        ("default", "~jobs", 0, 1),
    ]
    under = replace(made, under="parent")
    assert {chunk.name for chunk in under.chunks("f")} == {
        nested_node("parent", "~gates"),
        nested_node("parent", "~jobs"),
    }


def test_jobs_have_the_headers_of_their_step() -> None:
    group = step("resize", bodies=2, many=True, next=(GateRef("mail", "t", "join"),), headers={"tenant": "7"})
    assert group.job("f", 1) == PlannedJob(
        "default",
        "normal",
        "t",
        "resize-1",
        b"{}",
        {
            "tenant": "7",
            "Jetjobs-Flow": "f",
            "Jetjobs-Step": "resize.1.2",
            "Jetjobs-Next": "mail.t.join",
        },
        0,
        False,
    )
    template = step("report", many=True, map="/x", after=WAITS_FOR_A).job("f")
    assert (template.uid, template.gate) == ("report", True)
    assert template.headers["Jetjobs-Step"] == "report.0.0"
    assert step("resize", bodies=1, many=True).job("f").uid == "resize-0"


def test_the_digest_is_that_of_the_content() -> None:
    made = plan(step("a"), id="one")
    assert replace(made, id="two").digest == made.digest
    assert plan(step("a"), step("b")).digest != made.digest
    assert plan(replace(step("a"), bodies=(b'{"n":1}',))).digest != made.digest


def test_the_ends_of_a_flow() -> None:
    chain = plan(step("a", next=(GateRef("default", "t", "b"),)), step("b", after=WAITS_FOR_A), step("c"))
    assert chain.ends == ("b", "c")
    assert replace(chain, returns="a").ends == ("a",)
    empty = plan(step("a"), step("none", bodies=0, many=True), returns="none")
    assert empty.ends == ("a",)
    assert empty.known_result == b"[]"
    assert chain.known_result is None
    alarm = GateRef("default", "t", "alarm")
    guarded = plan(step("a", next=(alarm,)), step("alarm", after=After({}, (), ("a",))), on_failed="alarm")
    assert guarded.ends == ("a",)


@pytest.mark.parametrize(
    "data",
    [
        "{",
        "[]",
        "{}",
        '{"name":"a","deadline_s":1,"id":"","returns":"","on_failed":"","steps":[{}]}',
        '{"name":"a","deadline_s":1,"id":"","returns":"","on_failed":"","steps":[{"node":"a","task":"t",'
        '"queue":"q.>","lane":"normal","on_failure":"wait"}]}',
        '{"name":"a","deadline_s":1,"id":"","returns":"","on_failed":"","steps":[{"node":"a","task":"t",'
        '"queue":"q","lane":"mark","on_failure":"wait"}]}',
    ],
)
def test_a_forged_plan_is_refused(data: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own text
        FlowPlan.from_json(data)


def test_headers_that_cannot_be_moved_are_refused() -> None:
    step("a", next=tuple(GateRef("q" * 60, "t" * 60, f"n{n}") for n in range(100))).check()
    with pytest.raises(DefinitionError, match="bytes of headers") as raised:
        step("a", after=After({f"/x/{n}": Source(f"step-{n}") for n in range(2000)})).check()
    assert raised.value.hint


# Replacement

NEXT = (GateRef("default", "join", "join"),)
ALARM = GateRef("mail", "page", "page")
JOB = FlowHeaders("f", Position("order", 3, 50), NEXT, on_failure=OnFailure("wait", ALARM))


def named(node: str) -> str:
    return nested_node("order-3", node)


def by_node(made: FlowPlan) -> dict[str, PlannedStep]:
    return {each.node: each for each in made.steps}


def test_the_final_job_takes_over_position_and_dependents() -> None:
    inner = plan(
        step("a", next=(GateRef("default", "t", "b"),)),
        step("b", after=WAITS_FOR_A),
        returns="b",
    )
    made = replaced(inner, replace(JOB, up=Up(Position("outer"), fills="list")), "order-3")
    steps = by_node(made)
    assert steps[named("a")].next == (GateRef("default", "t", named("b")),)
    assert steps[named("a")].up is None
    assert steps[named("a")].on_failure == OnFailure("wait", ALARM)
    final = steps[named("b")]
    assert final.after == After({"/x": Source(named("a"))})
    assert (final.takes, final.next, final.up) == (JOB.step, NEXT, Up(Position("outer"), fills="list"))
    assert final.job("f").headers["Jetjobs-Step"] == "order.3.50"
    assert final.job("f").uid == named("b")
    assert made.under == "order-3"


def test_returning_flows_again_and_again_does_not_grow_headers() -> None:
    headers, uid, sizes = replace(JOB, up=Up(Position("outer"), fills="list")), "order-3", set()
    for _ in range(10):
        made = replaced(plan(step("a"), returns="a"), headers, uid)
        job = made.steps[0].job("f")
        read = FlowHeaders.read(job.headers)
        assert read is not None
        headers, uid = read, job.uid
        assert (headers.step, headers.next, headers.up) == (JOB.step, NEXT, Up(Position("outer"), fills="list"))
        sizes.add(len(str(job.headers)))
    assert len(sizes) == 1


def test_a_final_group_fills_the_place_with_its_list() -> None:
    made = replaced(plan(step("a", bodies=2, many=True), returns="a"), JOB, "order-3")
    (group,) = made.steps
    assert group.takes is None
    assert group.up == Up(JOB.step, NEXT, "list")
    assert [group.job("f", index).headers["Jetjobs-Step"] for index in (0, 1)] == [
        f"{named('a')}.0.2",
        f"{named('a')}.1.2",
    ]


def test_a_final_job_that_others_wait_for_keeps_its_own_position() -> None:
    inner = plan(step("a", next=(GateRef("default", "t", "b"),)), step("b", after=After({}, ("a",))), returns="a")
    made = by_node(replaced(inner, JOB, "order-3"))
    assert made[named("a")].takes is None
    assert made[named("a")].up == Up(JOB.step, NEXT, "one")
    assert made[named("a")].next == (GateRef("default", "t", named("b")),)
    assert made[named("b")].after == After({}, (named("a"),))
    assert made[named("b")].up is None


def test_a_failure_inside_is_the_end_of_a_settled_place() -> None:
    inner = plan(step("a"), step("s", on_failure=OnFailure("settled")), step("b"), returns="b")
    made = by_node(replaced(inner, replace(JOB, on_failure=OnFailure("settled", ALARM)), "order-3"))
    place = Up(JOB.step, NEXT, settled=True)
    assert made[named("a")].up == place
    assert made[named("a")].on_failure == OnFailure("wait", ALARM)
    assert made[named("s")].on_failure == OnFailure("settled", ALARM)
    assert made[named("b")].on_failure == OnFailure("settled", ALARM)
    assert made[named("b")].takes == JOB.step
    # One level deeper: a job that is not settled itself returns a flow.
    headers = FlowHeaders.read(made[named("a")].job("f").headers)
    assert headers is not None
    deeper = replaced(plan(step("c"), step("d", bodies=2, many=True), returns="d"), headers, named("a"))
    assert deeper.steps[0].up == place
    assert deeper.steps[1].up == Up(headers.step, (), "list", up=place)
    assert deeper.steps[1].up is not None
    assert deeper.steps[1].up.failing == place


def test_the_policy_of_the_outer_flow_holds() -> None:
    job = replace(JOB, on_failure=OnFailure("cancel", ALARM))
    made = replaced(plan(step("a"), step("b", on_failure=OnFailure("wait")), returns="b"), job, "order-3")
    assert {each.on_failure for each in made.steps} == {OnFailure("cancel", ALARM)}


def test_a_settled_final_step_settles_the_place() -> None:
    made = replaced(plan(step("a", on_failure=OnFailure("settled")), returns="a"), JOB, "order-3")
    assert made.steps[0].on_failure == OnFailure("settled", ALARM)


def test_on_failed_of_a_returned_flow_is_refused() -> None:
    inner = plan(step("a"), step("alarm", after=After({}, (), ("a",))), returns="a", on_failed="alarm")
    with pytest.raises(DefinitionError, match="on_failed"):
        replaced(inner, JOB, "order-3")


def test_groups_in_groups_are_refused_before_their_headers_cannot_be_moved() -> None:
    def nest(depth: int) -> None:
        headers, uid = JOB, "order-3"
        for _ in range(depth):
            made = replaced(plan(step("a", many=True), returns="a"), headers, uid)
            job = made.steps[0].job("f")
            read = FlowHeaders.read(job.headers)
            assert read is not None
            headers, uid = read, job.uid

    nest(200)
    with pytest.raises(DefinitionError, match="bytes of headers"):
        nest(2000)


@given(plans(), st.sampled_from(["wait", "settled", "cancel"]))
def test_a_nested_flow_has_the_same_shape_under_other_names(made: FlowPlan, policy: str) -> None:
    nested = replaced(made, replace(JOB, on_failure=OnFailure(policy)), "order-3")  # type: ignore[arg-type]
    for before, after in zip(made.steps, nested.steps, strict=True):
        assert after.node == named(before.node)
        assert (after.bodies, after.queue, after.lane, after.many) == (
            before.bodies, before.queue, before.lane, before.many,
        )  # fmt: skip
        if after.takes is None:
            assert after.next == tuple(GateRef(gate.queue, gate.task, named(gate.uid)) for gate in before.next)
        assert sum([after.takes is not None, bool(after.up and after.up.fills)]) == (before.node == "n0")
