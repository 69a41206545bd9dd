"""Jobs that end their worker, beside jobs that do not: only the guilty die."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.devserver import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.e2e import journal_tasks
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth

ROOT = Path(__file__).parent.parent.parent
APP = "tests.e2e.journal_tasks:app"


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    settings = build_settings({"nats": {"url": server.url}, "queues": {"lease": "2s"}})
    journal_tasks.app.configure(settings)
    async with journal_tasks.app as opened:
        await opened.provision()
        yield opened


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


def worker(server: EmbeddedServer, journal: Path, *options: str) -> Process:
    env = {"NATS_URL": server.url, "JOURNAL": str(journal), "JETJOBS_QUEUES__LEASE": "2s"}
    return Process(["worker", APP, "--log-format", "json", *options], ROOT, env)


def lines(journal: Path, kind: str) -> list[list[str]]:
    return [line.split() for line in journal.read_text().splitlines() if line.startswith(f"{kind} ")]


@pytest.mark.timeout(240)
async def test_of_a_fleet_that_jobs_end_again_and_again_only_those_jobs_are_dead(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--processes", "2", "--slots", "8") as fleet:
        await asyncio.to_thread(fleet.wait_for, "worker.ready", 2)
        killers = [await journal_tasks.die.enqueue(n) for n in (1, 2)]
        innocent = [await journal_tasks.wait.enqueue(n, 0.5) for n in range(20)]

        async def over() -> bool:
            return await truth.jobs() == [] and len(await truth.dead()) >= 2

        await eventually(over, 200)
        letters = await truth.dead()
        assert {job_id: letter["reason"] for job_id, letter in letters.items()} == {
            killer.id: "crashed" for killer in killers
        }
        # Three deliveries each. In one of them it may have died before it could run, by the hand of the other.
        runs = Counter(line[1] for line in lines(journal, "die"))
        assert runs.keys() == {"1", "2"}
        assert max(runs.values()) <= 3
        assert {line[2] for line in lines(journal, "end")} == {handle.id for handle in innocent}
        assert {line[3] for line in lines(journal, "begin")} == {"1"}  # a crash spends no attempt
        assert await asyncio.to_thread(fleet.end, signal.SIGTERM, 40) == 0


@pytest.mark.timeout(120)
async def test_what_was_sent_to_a_worker_that_stood_still_is_run_by_another_only(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal) as frozen:
        await asyncio.to_thread(frozen.wait_for, "worker.ready")

        async def asking() -> bool:
            infos = [await truth.consumer(lane) for lane in ("high", "low")]
            return all(info["num_waiting"] == 1 for info in infos)

        await eventually(asking)
        frozen.send(signal.SIGSTOP)
        # Its open requests are filled: the jobs lie in its socket, unread.
        handles = [
            await journal_tasks.wait.options(priority=p).enqueue(n, 0.1) for n, p in enumerate(("high", "low"))
        ]

        async def delivered() -> bool:
            infos = [await truth.consumer(lane) for lane in ("high", "low")]
            return all(info["num_ack_pending"] == 1 for info in infos)

        await eventually(delivered)
        with worker(server, journal) as other:

            async def done_elsewhere() -> bool:
                return len(lines(journal, "end")) == 2 and await truth.jobs() == []

            await eventually(done_elsewhere, 40)
            frozen.send(signal.SIGCONT)
            late = await journal_tasks.wait.enqueue(9, 0.1)

            async def all_done() -> bool:
                return late.id in {line[2] for line in lines(journal, "end")}

            await eventually(all_done, 40)
            assert await asyncio.to_thread(frozen.end, signal.SIGTERM, 40) == 0
            assert await asyncio.to_thread(other.end, signal.SIGTERM, 40) == 0
    ran = Counter(line[2] for line in lines(journal, "begin"))
    assert {handle.id: ran[handle.id] for handle in handles} == {handle.id: 1 for handle in handles}
    assert ran[late.id] == 1
    await truth.until_empty()
