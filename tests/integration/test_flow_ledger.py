"""The ledger of flows: entries are counted by the server, and only the indexes decide that a node is complete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from jetjobs import JetJobs
from jetjobs.jetstream.flows.ledger import Ledger, Written
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.flow.entries import entry_headers
from jetjobs.model.flow.progress import NodeCounts
from jetjobs.model.flow.steps import Position
from jetjobs.model.wire.flow_names import FlowNames
from jetjobs.model.wire.ids import flow_key
from tests.support.server import Truth
from tests.support.workers import provisioned

KEY = flow_key("one")


@pytest.fixture
async def ledger(app: JetJobs) -> AsyncIterator[Ledger]:
    async with provisioned(app):
        jetstream = app.jetstream
        yield Ledger(jetstream.connection, jetstream.publisher, FlowNames(jetstream.names))


async def add(ledger: Ledger, index: int, count: int = 3, run: str = "r", node: str = "resize") -> Written:
    position = Position(node, index, count)
    headers = entry_headers(position, "succeeded", json.dumps(index * 10).encode())
    return await ledger.add(KEY, position, "end", headers, f"{KEY}.{node}-{index}.{run}", lambda: True)


async def test_each_entry_reports_how_many_there_are(ledger: Ledger, truth: Truth) -> None:
    assert [(await add(ledger, index)).count for index in (2, 0, 1)] == [1, 2, 3]
    assert await truth.subjects("jobs-ledger") == {f"jobs.ledger.{KEY}.resize.3.end": 3}
    completed = await ledger.completed(KEY, "resize", 3)
    assert completed is not None
    assert completed.results == [0, 10, 20]


async def test_a_repeated_entry_is_stored_once_and_reports_the_present_count(ledger: Ledger, truth: Truth) -> None:
    first = await add(ledger, 0)
    await add(ledger, 1)
    assert await add(ledger, 0) == Written(2, first.sequence)
    assert await truth.subjects("jobs-ledger") == {f"jobs.ledger.{KEY}.resize.3.end": 2}


async def test_a_count_that_is_too_high_completes_nothing(ledger: Ledger) -> None:
    for run in ("a", "b", "c"):
        written = await add(ledger, 0, run=run)
    assert written.count == 3
    assert await ledger.completed(KEY, "resize", written.sequence) is None


async def test_many_entries_are_read_in_the_order_of_their_indexes(ledger: Ledger) -> None:
    await asyncio.gather(*(add(ledger, index, 700) for index in reversed(range(700))))
    completed = await ledger.completed(KEY, "resize", 700)
    assert completed is not None
    assert completed.results == [index * 10 for index in range(700)]


async def test_entries_of_another_program_neither_complete_a_node_nor_break_its_reading(
    ledger: Ledger, truth: Truth
) -> None:
    subject = f"jobs.ledger.{KEY}.resize.2.end"
    bad = [
        {"Nats-Incr": "100"},
        {"Nats-Incr": "1", "Jetjobs-Index": "7", "Jetjobs-State": "succeeded"},
        {"Nats-Incr": "1", "Jetjobs-Index": "1", "Jetjobs-State": "fine"},
        {"Nats-Incr": "1", "Jetjobs-Index": "1", "Jetjobs-State": "succeeded", "Jetjobs-Result": "no JSON"},
    ]
    for headers in bad:
        await truth.js.publish(subject, b"", headers=headers)
    await truth.js.publish(f"jobs.ledger.{KEY}.resize.many.end", b"", headers={"Nats-Incr": "1"})
    written = await add(ledger, 0, 2)
    assert await ledger.completed(KEY, "resize", written.sequence) is None
    written = await add(ledger, 1, 2)
    completed = await ledger.completed(KEY, "resize", written.sequence)
    assert completed is not None
    assert completed.results == [0, 10]


async def test_an_answer_that_is_older_than_what_is_known_does_not_count(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.jetstream.flows.ledger._FRESH_S", 0.2)
    written = await add(ledger, 0, 1)
    with pytest.raises(BrokerUnavailable, match="does not know its last entries yet"):
        await ledger.completed(KEY, "resize", written.sequence + 1)


async def test_counts_by_node(ledger: Ledger) -> None:
    await add(ledger, 0)
    await add(ledger, 0, 1, node="join")
    position = Position("resize", 1, 3)
    await ledger.add(KEY, position, "dead", entry_headers(position, "dead"), "x", lambda: True)
    counts = {found.node: found for found in await ledger.counts(KEY)}
    assert counts == {"resize": NodeCounts("resize", 3, 1, 1), "join": NodeCounts("join", 1, 1, 0)}
    assert [entry.position for entry in await ledger.failures(KEY)] == [position]
