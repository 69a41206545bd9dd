"""Results are put into the arguments of a gate, with their secrets, and a map makes one job for each item."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.errors import MalformedJob
from jetjobs.model.flow.binding import bind, expand
from jetjobs.model.flow.entries import Completed, Entry
from jetjobs.model.flow.failed import Failed
from jetjobs.model.flow.steps import (
    After,
    FlowHeaders,
    GateRef,
    OnFailure,
    Position,
    Source,
    Up,
    write_pointer,
)
from jetjobs.model.masking import mask, read_paths

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def one(node: str, result: Any, secret: str = "") -> Completed:
    return Completed(node, (Entry(Position(node), "succeeded", result, "", secret),))


def many(node: str, results: list[Any], secret: str = "") -> Completed:
    count = len(results)
    return Completed(
        node,
        tuple(
            Entry(Position(node, index, count), "succeeded", result, "", secret)
            for index, result in enumerate(results)
        ),
    )


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


@st.composite
def holed(draw: st.DrawFn) -> tuple[Any, dict[str, Any], Any]:
    """Arguments with holes, what belongs into each, and the arguments without holes."""
    found: dict[str, Any] = {}

    def build(path: list[str | int], depth: int) -> tuple[Any, Any]:
        kind = draw(st.sampled_from(["hole", "value", "list", "dict"] if depth else ["hole", "value"]))
        if kind == "hole":
            found[write_pointer(path)] = value = draw(values)
            return None, value
        if kind == "value":
            value = draw(values)
            return value, value
        keys: list[Any] = (
            [*range(draw(st.integers(0, 3)))]
            if kind == "list"
            else draw(st.lists(st.text(), max_size=3, unique=True))
        )
        pairs = {key: build([*path, key], depth - 1) for key in keys}
        if kind == "list":
            return [a for a, _ in pairs.values()], [b for _, b in pairs.values()]
        return {key: a for key, (a, _) in pairs.items()}, {key: b for key, (_, b) in pairs.items()}

    names = draw(st.lists(st.text(min_size=1), max_size=3, unique=True))
    built = {name: build([name], 3) for name in names}
    return {n: a for n, (a, _) in built.items()}, found, {n: b for n, (_, b) in built.items()}


@given(holed())
def test_every_result_gets_to_its_place_and_nothing_else_changes(case: tuple[Any, dict[str, Any], Any]) -> None:
    arguments, holes, wanted = case
    sources = {pointer: Source(f"n{index}") for index, pointer in enumerate(holes)}
    completed = {sources[pointer].node: one(sources[pointer].node, value) for pointer, value in holes.items()}
    bound = bind(body(arguments), "a.b", After(sources), completed)
    assert json.loads(bound.body) == wanted
    assert bound.secret == "a.b"


def test_a_list_is_in_the_order_of_the_indexes() -> None:
    failed = Failed("k-resize-1", "exhausted", "no").as_dict()
    after = After({"/images": Source("resize", True), "/more/0": Source("charge")}, ("vacuum",))
    completed = {
        "resize": many("resize", [{"w": 1}, failed]),
        "charge": one("charge", "ok"),
        "vacuum": one("v", 1),
    }
    bound = bind(b'{"images":null,"more":[null,7],"n":1}', "", after, completed)
    assert json.loads(bound.body) == {"images": [{"w": 1}, failed], "more": ["ok", 7], "n": 1}


def test_text_that_utf8_cannot_express_survives() -> None:
    bound = bind(b'{"a":null}', "", After({"/a": Source("n")}), {"n": one("n", "\ud800ü")})
    assert json.loads(bound.body) == {"a": "\ud800ü"}
    assert bind(b'{"a":"\xc3\xbc"}', "", After({}), {}).body == b'{"a":"\xc3\xbc"}'


def test_secrets_of_results_are_masked_in_the_arguments() -> None:
    after = After(
        {
            "/images": Source("resize", True),
            "/login": Source("login"),
            "/both/0": Source("login"),
            "/plain": Source("plain"),
        }
    )
    completed = {
        "resize": many("resize", [{"url": "u", "token": "t"}] * 2, "result.token"),
        "login": one("login", "hush", "result"),
        "plain": one("plain", "shown"),
    }
    bound = bind(b'{"images":null,"login":null,"both":[null],"plain":null,"pin":1}', "pin", after, completed)
    assert mask(json.loads(bound.body), read_paths(bound.secret)) == {
        "images": [{"url": "u", "token": "***"}] * 2,
        "login": "***",
        "both": ["***"],
        "plain": "shown",
        "pin": "***",
    }


@pytest.mark.parametrize(
    ("arguments", "pointer"),
    [
        ({"a": [1]}, "/a/1"),
        ({"a": [1]}, "/a/x"),
        ({"a": [1]}, "/a/-1"),
        ({"a": 1}, "/a/b"),
        ({}, "/a/b"),
        ([], "/a"),
    ],
)
def test_a_result_without_a_place_is_malformed(arguments: Any, pointer: str) -> None:
    with pytest.raises(MalformedJob):
        bind(body(arguments), "", After({pointer: Source("n")}), {"n": one("n", 1)})


def test_a_body_that_is_not_json_is_malformed() -> None:
    with pytest.raises(MalformedJob, match="not a JSON object"):
        bind(b"{", "", After({}), {})


def test_one_result_is_wanted_and_several_are_there() -> None:
    with pytest.raises(MalformedJob, match="2 results where one is needed"):
        bind(b"{}", "", After({"/a": Source("n")}), {"n": many("n", [1, 2])})


GATE = FlowHeaders(
    "f",
    Position("report", 0, 0),
    (GateRef("default", "summary", "summary"),),
    After({"/customer": Source("customers")}),
    "/customer",
    Up(Position("outer"), fills="list"),
    on_failure=OnFailure("settled"),
)


@given(st.lists(values, max_size=20))
def test_a_map_makes_one_job_for_each_item(items: list[Any]) -> None:
    template = body({"customer": None, "day": "monday"})
    expanded = expand(GATE, "report", template, "", {"customers": one("customers", items)})
    assert [json.loads(job.body) for job in expanded.jobs] == [{"customer": one, "day": "monday"} for one in items]
    assert [job.uid for job in expanded.jobs] == [f"report-{index}" for index in range(len(items))]
    for index, job in enumerate(expanded.jobs):
        assert job.headers == FlowHeaders(
            "f", Position("report", index, len(items)), GATE.next, None, None, GATE.up, False, GATE.on_failure
        )


def test_a_map_over_a_list_in_its_own_arguments_waits_for_another_value() -> None:
    gate = FlowHeaders("f", Position("m", 0, 0), after=After({"/b": Source("n"), "/a/1": Source("n")}), map="/a")
    expanded = expand(gate, "m", b'{"a":[1,null],"b":null}', "", {"n": one("n", 7)})
    assert [json.loads(job.body) for job in expanded.jobs] == [{"a": 1, "b": 7}, {"a": 7, "b": 7}]


def test_secrets_in_the_items_of_a_map_are_masked_in_each_job() -> None:
    customers = one("customers", [{"name": "Ada", "token": "t"}], "result.*.token")
    expanded = expand(GATE, "report", b'{"customer":null,"pin":1}', "pin", {"customers": customers})
    assert mask(json.loads(expanded.jobs[0].body), read_paths(expanded.secret)) == {
        "customer": {"name": "Ada", "token": "***"},
        "pin": "***",
    }
    whole = expand(GATE, "report", b'{"customer":null}', "", {"customers": one("customers", ["t"], "result")})
    assert mask(json.loads(whole.jobs[0].body), read_paths(whole.secret)) == {"customer": "***"}


@pytest.mark.parametrize("value", [None, 7, "text", {"a": 1}])
def test_a_map_over_something_else_than_a_list_is_malformed(value: Any) -> None:
    with pytest.raises(MalformedJob, match="not a list") as raised:
        expand(GATE, "report", b'{"customer":null}', "", {"customers": one("customers", value)})
    assert raised.value.hint
