"""A deployment that adds a task: old and new workers take jobs from one queue, and no job is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from jetjobs.model.views.dead_letter import ReplayOutcome
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.workers import provisioned, running

OLD = """
from jetjobs import JetJobs

app = JetJobs("shop")


@app.task
async def a() -> None: ...
"""
NEW = (
    OLD
    + """

@app.task
async def b(n: int) -> int:
    return n
"""
)
JOBS = 500


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "old.py").write_text(OLD)
    (tmp_path / "new.py").write_text(NEW)
    return tmp_path


@pytest.fixture
async def shop(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    """The new version, from which jobs are enqueued."""
    app = JetJobs("shop", settings=build_settings({"nats": {"url": server.url}, "queues": {"namespace": "jobs"}}))

    @app.task
    async def a() -> None: ...

    @app.task
    async def b(n: int) -> int:
        return n

    async with provisioned(app):
        yield app


@contextmanager
def workers(
    folder: Path, server: EmbeddedServer, version: str, count: int, grace: str = "10m"
) -> Iterator[list[Process]]:
    env = {
        "NATS_URL": server.url,
        "JETJOBS_QUEUES__NAMESPACE": "jobs",
        "JETJOBS_QUEUES__UNKNOWN_TASK_GRACE": grace,
    }
    arguments = ["worker", f"{version}:app", "--log-format", "json"]
    with ExitStack() as stack:
        yield [stack.enter_context(Process(arguments, folder, env)) for _ in range(count)]


async def ready(app: JetJobs, count: int) -> None:
    await eventually(app.workers.list, 30, lambda found: sum(w.phase == "ready" for w in found) == count)


async def test_all_jobs_of_a_new_task_succeed_on_their_first_attempt(
    folder: Path, server: EmbeddedServer, shop: JetJobs, truth: Truth
) -> None:
    with workers(folder, server, "old", 2) as old, workers(folder, server, "new", 2):
        await ready(shop, 4)
        for start in range(0, JOBS, 50):
            await shop.enqueue_many([shop.tasks["b"].bind(n) for n in range(start, start + 50)])
            await asyncio.sleep(0.02)
        await asyncio.to_thread(old[0].wait_for, '"job.parked"')
        for process in old:
            assert await asyncio.to_thread(process.end) == 0
        await truth.until_empty(timeout=30)
        done = await truth.done()
        assert sorted(record["result"] for record in done.values()) == list(range(JOBS))
        assert {record["attempt"] for record in done.values()} == {1}
        assert await truth.dead() == {}


async def test_without_a_worker_that_knows_the_task_jobs_are_dead_after_the_grace_period_and_can_be_replayed(
    folder: Path, server: EmbeddedServer, shop: JetJobs, truth: Truth
) -> None:
    with workers(folder, server, "old", 1, grace="2s"):
        await ready(shop, 1)
        handles = (await shop.enqueue_many([shop.tasks["b"].bind(n) for n in range(20)])).stored
        await eventually(truth.dead, 30, lambda found: len(found) == 20)
        await truth.until_empty()
    letters = (await truth.dead()).values()
    assert {(letter["reason"], letter["text"]) for letter in letters} == {("unknown_task", "no task named 'b'")}
    for letter in letters:
        parked = float(letter["headers"]["Jetjobs-Parked"])
        assert 2.0 <= letter["at"] - parked <= 5.0
    async with running(shop.worker()):
        answers = [answer.outcome async for answer in shop.dead.replay_all()]
        assert answers == [ReplayOutcome.REPLAYED] * 20
        results = [await (await shop.job(handle.id)).result() for handle in handles]
    assert sorted(results) == list(range(20))
    assert await truth.dead() == {}
