"""Workers that are killed at each point of a job's end: another one continues, and each step is stored once."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from jetjobs import Flow, JetJobs, Settings
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.flow import chunks
from tests.integration import flow_tasks
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.workers import provisioned, running

ROOT = Path(__file__).parent.parent.parent
LEASE_S = 1.0


class Case(NamedTuple):
    """Where a worker is killed: `{point} {task} {number}` as in flow_tasks, or the mark of a chunk for a task."""

    flow: Callable[[], Flow[int]]
    result: int
    kill_at: str
    again: tuple[str, ...] = ()
    """Tasks of which one job runs twice."""
    chunk: str = "3"
    """The size of a chunk."""


JOIN = [
    Case(flow_tasks.join_of_three, 12, "ran double 1", ("double",)),
    Case(flow_tasks.join_of_three, 12, "ran double 3", ("double",)),
    Case(flow_tasks.join_of_three, 12, "record double 1"),
    Case(flow_tasks.join_of_three, 12, "record double 3"),
    Case(flow_tasks.join_of_three, 12, "entry double 1"),
    Case(flow_tasks.join_of_three, 12, "entry double 3"),
    Case(flow_tasks.join_of_three, 12, "fire total 1"),
    Case(flow_tasks.join_of_three, 12, "fired total 1"),
    Case(flow_tasks.join_of_three, 12, "ack double 1"),
    Case(flow_tasks.join_of_three, 12, "ack double 3"),
    Case(flow_tasks.join_of_three, 12, "record total 1"),
]
MAP = [
    Case(flow_tasks.map_of_eight, 56, "entry numbers 1"),
    Case(flow_tasks.map_of_eight, 56, "chunk double.0 1"),
    Case(flow_tasks.map_of_eight, 56, "chunk double.3 1"),
    Case(flow_tasks.map_of_eight, 56, "chunk double.6 1"),
    Case(flow_tasks.map_of_eight, 56, "chunked double.6 1"),
    Case(flow_tasks.map_of_eight, 56, "ack numbers 1"),
    Case(flow_tasks.map_of_eight, 56, "record double 8"),
    Case(flow_tasks.map_of_eight, 56, "fire total 1"),
    Case(flow_tasks.map_of_eight, 56, "fired total 1"),
]
RETURNED = [
    Case(flow_tasks.returned_flow, 20, kill_at, chunk="2")
    for kill_at in (
        "record nested 1",
        "chunked {gates}.0 1",
        "chunked {jobs}.0 1",
        "chunk {double}.2 1",
        "fire total 1",
        "fired total 1",
    )
]
NESTED = {name: flow_tasks.nested_name(name) for name in ("gates", "jobs", "double")}


@pytest.fixture
async def flows(settings_for: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[JetJobs]:
    flow_tasks.app.configure(settings_for(queues={"lease": f"{LEASE_S}s"}))
    monkeypatch.setattr(chunks, "CHUNK_SIZE", 3)
    async with provisioned(flow_tasks.app) as opened:
        yield opened


@pytest.mark.parametrize("case", [*JOIN, *MAP, *RETURNED], ids=lambda case: f"{case.flow.__name__} {case.kill_at}")
async def test_each_step_is_stored_and_fired_once(
    case: Case,
    server: EmbeddedServer,
    flows: JetJobs,
    truth: Truth,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    journal = tmp_path / "journal"
    env = {
        "NATS_URL": server.url,
        "JOURNAL": str(journal),
        "JETJOBS_QUEUES__LEASE": f"{LEASE_S}s",
        "KILL_AT": case.kill_at.format(**NESTED),
        "CHUNK_SIZE": case.chunk,
    }
    monkeypatch.setattr(chunks, "CHUNK_SIZE", int(case.chunk))
    monkeypatch.setenv("JOURNAL", str(journal))
    async with running(flows.worker()):
        undisturbed = await flows.enqueue_flow(case.flow())
        assert await undisturbed.result(10) == case.result
        await truth.until_empty()
    expected, runs = await stored(truth), Counter(ran(journal))
    journal.unlink()
    handle = await flows.enqueue_flow(case.flow())
    with Process(["worker", "tests.integration.flow_tasks:app", "--slots", "1"], ROOT, env) as killed:
        assert await asyncio.to_thread(killed.popen.wait, 20) == -signal.SIGKILL, killed.lines
        killed_at = time.monotonic()
    async with running(flows.worker()):
        assert await handle.result(10) == case.result
        assert time.monotonic() - killed_at <= LEASE_S + 1
        await truth.until_empty()
    assert await stored(truth) == {stream: 2 * count for stream, count in expected.items()}
    assert Counter(ran(journal)) == runs + Counter(case.again)
    assert not stored_twice(journal)


async def stored(truth: Truth) -> dict[str, int]:
    """How many messages each stream has ever stored, without the pin: a message that is stored twice counts."""
    found = {}
    for stream, pins in (("jobs-work-default", 1), ("jobs-ledger", 0)):
        found[stream] = (await truth.api(f"STREAM.INFO.{stream}"))["state"]["last_seq"] - pins
    return found


def ran(journal: Path) -> list[str]:
    """The task of each run."""
    return [line.split()[0] for line in journal.read_text().splitlines()]


def stored_twice(journal: Path) -> set[str]:
    """The jobs of which two messages have run, with their hops."""
    messages = {(job, sequence) for _, job, sequence in map(str.split, journal.read_text().splitlines())}
    return {job for job, count in Counter(job for job, _ in messages).items() if count > 1}
