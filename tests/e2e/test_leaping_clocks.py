"""The wall clock of a worker's machine leaps by an hour while it runs: every time is kept, and no body is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import clock_tasks
from tests.e2e.journal import ROOT, lines, until, until_journal
from tests.support.leaping_clock import leap
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth, server_settings
from tests.support.workers import provisioned

SOON = timedelta(seconds=20)
SWEEP = """
import asyncio, pathlib, sys
from jetjobs.worker.leader.maintenance import sweep_orphans
from tests.e2e.clock_tasks import app

async def sweep():
    async with app:
        await app.jetstream.server_clock.seconds()
        print("opened", flush=True)
        while not pathlib.Path(sys.argv[1]).exists():
            await asyncio.sleep(0.01)
        print("removed", await sweep_orphans(app.jetstream), flush=True)

asyncio.run(sweep())
"""


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    clock_tasks.app.configure(server_settings(server.url))
    async with provisioned(clock_tasks.app) as opened:
        yield opened


@pytest.mark.parametrize("leap_s", [3600, -3600])
async def test_delays_retries_deadlines_and_schedules_do_not_follow_a_leap_of_the_wall_clock(
    app: JetJobs, truth: Truth, server: EmbeddedServer, journal: Path, leap_s: int
) -> None:
    env = {"NATS_URL": server.url, "JOURNAL": str(journal)}
    arguments = ["worker", "tests.e2e.clock_tasks:app", "--log-format", "json"]
    with Process(arguments, ROOT, env) as worker:
        await until(worker, '"worker.ready"')
        await until_journal(journal, "tick", 1)
        leap(worker.popen.pid, leap_s)
        ticks = len(lines(journal, "tick"))
        now = datetime.now(UTC)
        ended = [
            await clock_tasks.flaky.enqueue(1),
            await clock_tasks.sleepy.enqueue(2),
            await clock_tasks.produce.enqueue(3),
            await clock_tasks.effect.options(deadline=now + clock_tasks.MINUTES).enqueue(4),
        ]
        expired = [
            await clock_tasks.effect.options(deadline=now - timedelta(seconds=1)).enqueue(5),
            await clock_tasks.long.options(deadline=now + timedelta(seconds=2)).enqueue(6),
        ]
        for handle in ended:
            await handle.result(SOON)
        await until_journal(journal, "effect", 2, 10)
        letters = await eventually(truth.dead, 10, where=lambda found: len(found) >= 2)
        assert {id: letter["reason"] for id, letter in letters.items()} == dict.fromkeys(
            (handle.id for handle in expired), "expired"
        )
        await until_journal(journal, "tick", ticks + 2, 10)
        assert worker.end() == 0
    assert sorted(int(line[1]) for line in lines(journal, "effect")) == [3, 4]
    assert await truth.jobs(lane="retry") == []
    records = await truth.done()
    for handle in ended:  # times on the server's clock
        assert abs(records[handle.id]["ended_at"] - now.timestamp()) < 60


@pytest.mark.parametrize("leap_s", [7200, -7200])
async def test_the_sweep_for_orphans_keeps_a_body_being_uploaded_when_the_wall_clock_leaps(
    app: JetJobs, truth: Truth, server: EmbeddedServer, tmp_path: Path, leap_s: int
) -> None:
    labels = {"queue": "default", "task": "effect", "id": "uploading", "run": "r1"}
    await app.jetstream.payloads.put("uploading.r1", b"x" * 200_000, labels)  # its job is not stored yet
    go = tmp_path / "go"
    with Process([str(go)], ROOT, {"NATS_URL": server.url}, program=("-c", SWEEP)) as sweeper:
        await until(sweeper, "opened")
        leap(sweeper.popen.pid, leap_s)
        go.touch()
        assert await until(sweeper, "removed") == "removed 0"
        assert sweeper.popen.wait(10) == 0
    assert set(await truth.objects()) == {"uploading.r1"}
