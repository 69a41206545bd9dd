"""Ledger entries: written and read, and when those of a node are complete."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetjobs.model.flow.entries import (
    Completed,
    Entry,
    complete,
    entry_headers,
    entry_id,
    failed_result,
)
from jetjobs.model.flow.failed import Failed
from jetjobs.model.flow.steps import Position
from jetjobs.model.wire import headers as h

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def entry(index: int, count: int, state: str = "succeeded", result: Any = None) -> Entry:
    return Entry(Position("n", index, count), state, result)  # type: ignore[arg-type]


@given(values, st.integers(0, 99), st.text("abc.*,", max_size=20))
def test_an_entry_is_read_as_it_was_written(value: Any, index: int, secret: str) -> None:
    position = Position("resize", index, 100)
    result = json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")
    headers = entry_headers(position, "succeeded", result, secret=secret)
    assert all(text.isascii() and not set(text) & {"\r", "\n"} for text in headers.values())
    assert Entry.read("resize", 100, headers) == Entry(position, "succeeded", value, "", secret)


def test_an_entry_has_the_documented_form() -> None:
    headers = entry_headers(Position("resize", 3, 50), "succeeded", '{"name":"Ünï\u2028"}'.encode())
    assert headers == {
        "Nats-Incr": "1",
        "Jetjobs-Index": "3",
        "Jetjobs-State": "succeeded",
        "Jetjobs-Result": '{"name":"\\u00dcn\\u00ef\\u2028"}',
    }
    large = entry_headers(
        Position("resize", 3, 50), "succeeded", b"7", result_object="id.run.result-1", secret="s"
    )
    assert large[h.RESULT_OBJECT] == "id.run.result-1"
    assert large[h.SECRET] == "s"
    assert h.RESULT not in large
    assert entry_id("k1", Position("resize", 3, 50), "resize-3", "r1", "dead") == "k1.resize.3.resize-3.r1.dead"


def test_a_failure_is_read_as_such() -> None:
    failed = Failed("kx-resize-3", "exhausted", "ValueError: no")
    read = Entry.read("resize", 50, entry_headers(Position("resize", 3, 50), "dead", failed_result(failed)))
    assert read.failure == failed
    assert read.result == failed.as_dict()
    assert Entry.read("resize", 50, {h.INDEX: "1", h.STATE: "dead"}).failure == Failed("", "", "")
    assert entry(0, 1).failure is None


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {h.INDEX: "0"},
        {h.STATE: "succeeded"},
        {h.INDEX: "0", h.STATE: "fine"},
        {h.INDEX: "5", h.STATE: "succeeded"},
        {h.INDEX: "-1", h.STATE: "succeeded"},
        {h.INDEX: "0.1", h.STATE: "succeeded"},
        {h.INDEX: "0", h.STATE: "succeeded", h.RESULT: "{"},
        {h.INDEX: "0", h.STATE: "succeeded", h.RESULT: "[" * 100_000},
    ],
)
def test_a_forged_entry_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has its own text
        Entry.read("n", 5, headers)


@given(st.integers(1, 40), st.data())
def test_a_node_is_complete_when_every_index_has_an_entry(count: int, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(count)))
    repeated = data.draw(st.lists(st.sampled_from(order), max_size=20))
    written = [*order, *repeated]
    random.Random(count).shuffle(written)
    entries = [entry(index, count, result=index) for index in written]
    completed = complete(entries)
    assert completed == Completed("n", tuple(entry(index, count, result=index) for index in range(count)))
    assert completed.results == [*range(count)]
    missing = data.draw(st.integers(0, count - 1))
    assert complete(one for one in entries if one.position.index != missing) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["succeeded", "dead", "cancelled"])), max_size=30))
def test_the_first_success_of_an_index_counts_else_the_first_failure(ends: list[tuple[int, str]]) -> None:
    entries = [entry(index, 4, state, number) for number, (index, state) in enumerate(ends)]
    completed = complete(entries)
    if completed is None:
        assert {index for index, _ in ends} != {0, 1, 2, 3}
        return
    for index, one in enumerate(completed.entries):
        own = [each for each in entries if each.position.index == index]
        assert one == next((each for each in own if each.state == "succeeded"), own[0])


def test_no_number_of_repeats_completes_a_node() -> None:
    assert complete([entry(0, 3)] * 100) is None
    assert complete([]) is None


def test_entries_with_another_count_are_not_added_up() -> None:
    entries = [entry(0, 2), entry(1, 3)]
    assert complete(entries) is None


def test_the_count_that_was_complete_first_wins() -> None:
    forged = [entry(0, 1, result="forged")]
    honest = [entry(0, 2, result="a"), entry(1, 2, result="b")]
    assert complete([*honest, *forged]).results == ["a", "b"]  # type: ignore[union-attr]


def test_a_map_over_nothing_is_complete_with_one_entry() -> None:
    assert complete([entry(0, 0)]) == Completed("n", ())
