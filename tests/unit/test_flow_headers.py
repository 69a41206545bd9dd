"""The headers, names and chunks of flows: what is written is read again, and nothing else is accepted."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.errors import MalformedJob
from jetjobs.jetstream.transport.api import matches
from jetjobs.model.flow.chunks import CHUNK_BYTES, CHUNK_SIZE, cut
from jetjobs.model.flow.steps import (
    After,
    FlowHeaders,
    GateRef,
    OnFailure,
    Position,
    Source,
    Up,
    pointer_tokens,
    read_gates,
    write_gates,
    write_pointer,
)
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.flow_names import FlowNames, LedgerSubject
from jetjobs.model.wire.ids import flow_key, is_id, join_id, nested_node, parse_id, returned_flow_id
from jetjobs.model.wire.subjects import JobSubject, Names

NAMES = FlowNames(Names("shop"))

tokens = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True).filter(lambda t: t.isascii())
nodes = st.from_regex(r"[A-Za-z0-9_-]{1,78}", fullmatch=True).filter(lambda t: t.isascii())
gates = st.builds(GateRef, tokens, tokens, nodes)
positions = st.tuples(nodes, st.integers(0, 99_999), st.integers(1, 1000)).map(
    lambda p: Position(p[0], p[1], p[1] + p[2])
) | nodes.map(lambda node: Position(node, 0, 0))
pointers = st.lists(st.text(), min_size=1, max_size=4).map(write_pointer)
sources = st.builds(Source, nodes, st.booleans())
node_lists = st.lists(nodes, max_size=3).map(tuple)
afters = st.builds(After, st.dictionaries(pointers, sources, max_size=4), node_lists, node_lists)
gate_lists = st.lists(gates, max_size=3).map(tuple)
fills = st.sampled_from(["one", "list", ""])
ups = st.recursive(
    st.builds(Up, positions, gate_lists, fills, st.booleans()),
    lambda up: st.builds(Up, positions, gate_lists, fills, st.booleans(), up),
    max_leaves=4,
)
policies = st.builds(OnFailure, st.sampled_from(["wait", "settled", "cancel"]), st.none() | gates)
flow_headers = st.builds(
    FlowHeaders,
    tokens,
    positions,
    gate_lists,
    st.none() | afters,
    st.none() | pointers,
    st.none() | ups,
    st.booleans(),
    policies,
)


@given(flow_headers)
def test_headers_are_read_as_they_were_written(headers: FlowHeaders) -> None:
    written = headers.write()
    assert FlowHeaders.read(written) == headers
    assert all(value.isascii() and value.isprintable() for name, value in written.items() if name != h.MAP)


def test_headers_have_the_documented_form() -> None:
    up = Up(Position("order", 3, 50), (GateRef("mail", "notify", "notify"),), "list", True)
    headers = FlowHeaders(
        "upload-7",
        Position("gallery"),
        (GateRef("mail", "notify", "notify"), GateRef("default", "vacuum", "x0123456789ab-vacuum")),
        After({"/images": Source("resize", True), "/receipt": Source("charge")}, ("vacuum",)),
        "/images",
        up,
        True,
        OnFailure("cancel", GateRef("mail", "page", "page")),
    )
    assert headers.write() == {
        "Jetjobs-Flow": "upload-7",
        "Jetjobs-Step": "gallery.0.1",
        "Jetjobs-Next": "mail.notify.notify,default.vacuum.x0123456789ab-vacuum",
        "Jetjobs-After": '{"/images":"resize[]","/receipt":"charge","":["vacuum"]}',
        "Jetjobs-Map": "/images",
        "Jetjobs-Up": '{"step":"order.3.50","next":"mail.notify.notify","fills":"list","settled":true}',
        "Jetjobs-Bound": "1",
        "Jetjobs-On-Failure": "cancel mail.page.page",
    }
    assert str(After({}, (), ("rows",))) == '{"!":["rows"]}'
    assert FlowHeaders("f", Position("a")).write() == {"Jetjobs-Flow": "f", "Jetjobs-Step": "a.0.1"}


def test_a_job_without_a_flow_has_none_of_these_headers() -> None:
    assert FlowHeaders.read({h.STEP: "nonsense"}) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (h.FLOW, "a.b"),
        (h.STEP, "resize"),
        (h.STEP, "resize.1"),
        (h.STEP, "resize.5.5"),
        (h.STEP, "resize.-1.5"),
        (h.STEP, "resize.1.999999999"),
        (h.STEP, "re*size.1.5"),
        (h.STEP, f"{'n' * 79}.0.1"),
        (h.NEXT, "mail.notify"),
        (h.NEXT, "mail.notify.*"),
        (h.AFTER, ""),
        (h.AFTER, "[]"),
        (h.AFTER, '{"images":"resize"}'),
        (h.AFTER, '{"/images":7}'),
        (h.AFTER, '{"/images":">"}'),
        (h.AFTER, '{"":"resize"}'),
        (h.AFTER, "[" * 100_000),
        (h.MAP, "images"),
        (h.UP, ""),
        (h.UP, '{"step":"a.0.1","fills":"all"}'),
        (h.UP, '{"step":"a.0.1","up":[]}'),
        (h.ON_FAILURE, "explode"),
        (h.ON_FAILURE, "wait mail"),
    ],
)
def test_an_invalid_header_is_named(name: str, value: str) -> None:
    headers = {h.FLOW: "f", h.STEP: "a.0.1", name: value}
    with pytest.raises(MalformedJob, match=name):
        FlowHeaders.read(headers)


def test_only_a_gate_that_was_not_fired_is_waiting() -> None:
    gate = FlowHeaders("f", Position("a"), after=After({}, ("b",)))
    assert gate.waiting
    assert not FlowHeaders("f", Position("a"), after=gate.after, bound=True).waiting
    assert FlowHeaders("f", Position("a", 0, 0), map="/x").waiting
    assert not FlowHeaders("f", Position("a")).waiting


def test_a_failure_goes_to_the_nearest_settled_place() -> None:
    outer = Up(Position("outer", 1, 2), settled=True)
    assert Up(Position("inner"), up=outer).failing is outer
    assert Up(Position("inner"), settled=True, up=outer).failing.step.node == "inner"  # type: ignore[union-attr]
    assert Up(Position("inner")).failing is None


@given(st.lists(gates))
def test_gates_are_written_in_order(found: list[GateRef]) -> None:
    assert read_gates(write_gates(found)) == tuple(found)


@given(st.lists(st.text(), min_size=1))
def test_a_pointer_leads_to_any_key(names: list[str]) -> None:
    assert pointer_tokens(write_pointer(names)) == names


def test_a_pointer_escapes_its_own_escapes() -> None:
    assert write_pointer(["~1", "a~0/b"]) == "/~01/a~00~1b"
    assert pointer_tokens("/~01/a~00~1b") == ["~1", "a~0/b"]


def test_the_needed_nodes_are_named_once() -> None:
    after = After({"/a": Source("x"), "/b": Source("y", True), "/c": Source("x")}, ("y", "z"), ("w",))
    assert after.needed == ("x", "y", "z")


def test_names_of_flows() -> None:
    fkey = flow_key("upload-7")
    assert NAMES.ledger_stream == "shop-ledger"
    assert NAMES.flows_bucket == "shop-flows"
    assert NAMES.ledger(fkey, "resize", 50, "end") == f"shop.ledger.{fkey}.resize.50.end"
    assert NAMES.ledger(fkey, "resize", "*", "*") == f"shop.ledger.{fkey}.resize.*.*"
    assert NAMES.mark("mail", fkey, "resize", 500) == f"shop.work.mail.mark.flow.{fkey}.resize.500"
    assert NAMES.gate("mail", "notify", fkey, "notify") == f"shop.work.mail.gate.notify.{fkey}.notify"
    assert NAMES.cancel_key(fkey) == f"flow.{fkey}"
    assert matches(NAMES.ledger_of(fkey), NAMES.ledger(fkey, "resize", 50, "dead"))
    assert matches(NAMES.ledger_filter, NAMES.ledger(fkey, "resize", 50, "dead"))


def test_a_mark_is_not_found_among_the_jobs_of_its_flow() -> None:
    fkey = flow_key("f")
    mark = NAMES.mark("mail", fkey, "resize", 0)
    assert not matches(NAMES.jobs_of("mail", "*", fkey), mark)
    assert matches(NAMES.marks_of("mail", fkey), mark)
    assert not matches(Names("shop").schedule_mark("mail", "*"), mark)
    assert matches(NAMES.jobs_of("mail", "gate", fkey), NAMES.gate("mail", "notify", fkey, "notify"))


@given(nodes, st.integers(0, 10**8 - 1), st.sampled_from(["end", "dead"]))
def test_a_ledger_subject_is_parsed_as_it_was_built(node: str, count: int, kind: str) -> None:
    subject = NAMES.ledger("k" + "a" * 26, node, count, kind)  # type: ignore[arg-type]
    assert LedgerSubject.parse(subject) == LedgerSubject("shop", "k" + "a" * 26, node, count, kind)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "subject", ["shop.ledger.k.n.1", "shop.ledger.k.n.x.end", "shop.ledger.k.n.1.up", "shop.dead.k.n.1.end", ""]
)
def test_other_subjects_are_not_those_of_entries(subject: str) -> None:
    with pytest.raises(ValueError, match="ledger entry"):
        LedgerSubject.parse(subject)


@given(nodes, st.integers(0, 10**8 - 1))
def test_the_longest_node_makes_a_valid_id(node: str, index: int) -> None:
    fkey = flow_key("f")
    job_id = join_id(fkey, f"{node}-{index}")
    assert is_id(job_id)
    assert parse_id(job_id) == (fkey, f"{node}-{index}")
    assert JobSubject.parse(NAMES.gate("q", "t", fkey, f"{node}-{index}")).job_id == job_id


def test_names_of_nested_steps_do_not_grow() -> None:
    name = "node"
    for _ in range(5):
        name = nested_node(name, "node")
        assert len(name) == len("node") + 14
    assert nested_node("a", "node") != nested_node("b", "node")
    assert flow_key("a") != flow_key("b")


def test_the_flow_of_a_job_depends_on_its_run() -> None:
    assert returned_flow_id("a", "1") != returned_flow_id("a", "2")
    assert is_id(returned_flow_id("a" * 128, "b" * 128))


@given(st.lists(st.integers(0, CHUNK_BYTES * 2), max_size=1200))
def test_chunks_cover_the_list_and_respect_both_limits(sizes: list[int]) -> None:
    chunks = cut(sizes)
    assert [index for chunk in chunks for index in chunk] == [*range(len(sizes))]
    for chunk in chunks:
        assert len(chunk) == 1 or sum(sizes[index] for index in chunk) <= CHUNK_BYTES
        assert 1 <= len(chunk) <= CHUNK_SIZE
    # As large as possible, so that every process cuts alike.
    for one, following in pairwise(chunks):
        grown = sum(sizes[index] for index in one) + sizes[following.start]
        assert len(one) == CHUNK_SIZE or grown > CHUNK_BYTES


def test_a_long_list_of_small_messages_is_cut_at_500() -> None:
    assert cut([10] * 1201) == [range(500), range(500, 1000), range(1000, 1201)]
    assert cut([]) == []
