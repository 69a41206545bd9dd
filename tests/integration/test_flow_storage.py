"""Storage that is full in the middle of a fan-in: no job is acked without its entry, and the join is right."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from jetjobs import Flow, JetJobs
from jetjobs.model.events import JobStarted, SettleFailed
from jetjobs.model.wire.ids import flow_key
from tests.support.probe import Probe
from tests.support.server import Truth, server_of
from tests.support.workers import provisioned, running

CHILDREN = 400


async def fill(truth: Truth) -> None:
    """Fill the storage up to the last kilobyte, so that some records fit and their entries do not."""
    await truth.api("STREAM.CREATE.filling", {"name": "filling", "subjects": ["filling"], "storage": "file"})
    for size in (100_000, 10_000, 1_000):
        while "error" not in json.loads((await truth.nc.request("filling", b"x" * size, timeout=5)).data):
            pass


async def entries(truth: Truth, key: str) -> set[str]:
    """The indexes of the children that have an entry."""
    found = set()
    for sequence in range(1, (await truth.api("STREAM.INFO.jobs-ledger"))["state"]["last_seq"] + 1):
        message = await truth.js.get_msg("jobs-ledger", sequence)
        if (message.subject or "").startswith(f"jobs.ledger.{key}.child."):
            found.add((message.headers or {})["Jetjobs-Index"])
    return found


async def test_the_join_of_a_fan_in_is_right_after_storage_was_full(tmp_path: Path) -> None:
    async with server_of(tmp_path, "jetstream { max_file_store: 6MB }") as (app, truth):
        await check(app, truth)


async def check(app: JetJobs, truth: Truth) -> None:
    probe, full = Probe(), asyncio.Event()
    app.observe(probe)

    @app.task
    async def child(n: int) -> int:
        if n >= CHILDREN // 2:
            await full.wait()
        return n

    @app.task
    async def join(ns: list[int]) -> list[int]:
        return ns

    async with provisioned(app):
        flow = Flow("full")
        handle = await app.enqueue_flow(flow.returns(flow.add(join, flow.map(child, range(CHILDREN)))))
        key = flow_key(handle.id)
        async with running(app.worker(slots=50)):
            await probe.finished(CHILDREN // 2, "succeeded")
            await fill(truth)
            full.set()
            await probe.wait(SettleFailed, 40, lambda event: event.kind == "outcome", timeout=30)
            left = {subject.rsplit("-", 1)[1] for subject in await truth.jobs() if ".child." in subject}
            counted = await entries(truth, key)
            assert left, "the storage was not full"
            assert {str(n) for n in range(CHILDREN)} - left <= counted
            assert not probe.of(SettleFailed, lambda event: event.kind == "record")
            await truth.js.delete_stream("filling")
            room_at = time.monotonic()
            await probe.wait(JobStarted, 1, lambda event: event.task == "join")
            assert time.monotonic() - room_at <= 2
            assert await handle.result(10) == list(range(CHILDREN))
            await truth.until_empty()
        assert len(probe.of(JobStarted, lambda event: event.task == "child")) == CHILDREN
        assert len(probe.of(JobStarted, lambda event: event.task == "join")) == 1
