"""Three replicas: the same guarantees when a leader dies."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.jetstream import client
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.transport import api
from jetjobs.model.events import JobStarted
from jetjobs.model.settings import build_settings
from jetjobs.model.wire.subjects import Names
from tests.support.cluster import Cluster
from tests.support.probe import Probe, wait_until
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=30)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 60.0)  # a new leader may take long on a busy machine
    with Cluster(tmp_path) as running_cluster:
        yield running_cluster


@pytest.mark.timeout(120)
async def test_jobs_keys_and_batches_work_on_three_replicas_and_survive_the_death_of_the_leader(
    cluster: Cluster,
) -> None:
    settings = build_settings({"nats": {"url": cluster.url}, "queues": {"lease": "5s"}})
    app = JetJobs("test", settings=settings)
    ran: Counter[int] = Counter()

    @app.task
    async def work(n: int) -> int:
        ran[n] += 1
        return n

    async with provisioned(app):
        truth = await Truth.connect(cluster.nodes[0].url)
        info = await truth.api("STREAM.INFO.jobs-work-default")
        assert info["config"]["num_replicas"] == 3
        assert {change.action for change in await app.plan()} == {"none"}

        handles = await asyncio.gather(*(work.options(key="one").enqueue(0) for _ in range(16)))
        assert len({handle.id for handle in handles}) == 1
        assert sum(not handle.duplicate for handle in handles) == 1
        async with running(app.worker(slots=20)):
            assert await handles[0].result(SOON) == 0
            report = await app.enqueue_many([work.bind(n) for n in range(1, 500)])
            assert report.refused == []

            await truth.close()
            leader = cluster.named(info["cluster"]["leader"])
            leader.kill()
            late = [await work.enqueue(n) for n in range(500, 520)]  # repeated until the new leader confirms
            delayed = await work.options(delay=timedelta(seconds=1)).enqueue(520)
            results = await asyncio.gather(*(h.result(SOON) for h in [*report.stored, *late, delayed]))
            assert results == list(range(1, 521))
            leader.start()
        survivor = next(node for node in cluster.nodes if node is not leader)
        truth = await Truth.connect(survivor.url)
        done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
        assert len(done) == 521
        assert set(done.values()) == {1}
        await truth.until_empty()
        await truth.close()
    assert set(ran) == set(range(521))


@pytest.mark.timeout(180)
async def test_an_object_is_readable_at_once_from_every_node_and_survives_the_death_of_its_leader(
    cluster: Cluster,
) -> None:
    app = JetJobs("test", settings=build_settings({"nats": {"url": cluster.url}}))
    labels = {"queue": "default", "task": "work", "id": "u1", "run": "r1"}

    @app.task
    async def work(text: str) -> str:
        return text

    async with provisioned(app):
        clients = []
        for node in cluster.nodes:
            settings = build_settings({"nats": {"url": node.url}})
            clients.append(JetStreamClient(settings, Names("jobs"), "reader", lambda event: None))
            await clients[-1].open()
        for number in range(20):
            data = f"{number:06d}".encode() * 50_000
            await app.jetstream.payloads.put(f"o{number}", data, labels)
            found = await asyncio.gather(*(client.payloads.get(f"o{number}") for client in clients))
            assert found == [data] * 3
        for client in clients:
            await client.close()

        info = await app.jetstream.connection.api(api.stream_info("OBJ_jobs-payloads"))
        assert info["config"]["num_replicas"] == 3
        leader = cluster.named(info["cluster"]["leader"])
        text = "".join(f"{number:08d}" for number in range(500_000))
        worker = app.worker()

        async with running(worker):
            await wait_until(lambda: worker.ready, timeout=30)
            sending = asyncio.create_task(work.enqueue(text))
            await asyncio.sleep(0.05)  # during, before or after it: all must work
            leader.kill()
            handle = await sending
            assert await handle.result(timedelta(seconds=90)) == text


@pytest.mark.timeout(120)
async def test_a_worker_continues_when_the_leader_of_its_lane_dies_while_it_holds_a_job(cluster: Cluster) -> None:
    settings = build_settings({"nats": {"url": cluster.url}, "queues": {"lease": "10s"}})
    app = JetJobs("test", settings=settings)
    probe = Probe()
    app.observe(probe)
    go_on = asyncio.Event()

    @app.task
    async def hold() -> str:
        await go_on.wait()
        return "held"

    @app.task
    async def work(n: int) -> int:
        return n

    async with provisioned(app):
        worker = app.worker(slots=10)
        async with running(worker):
            held = await hold.enqueue()
            await probe.wait(JobStarted, timeout=30)
            truth = await Truth.connect(cluster.nodes[0].url)
            leader = cluster.named((await truth.consumer())["cluster"]["leader"])
            await truth.close()
            leader.kill()
            # The open pull requests were lost with the leader: jobs must be delivered again nevertheless.
            handles = [await work.enqueue(n) for n in range(20)]
            assert await asyncio.gather(*(h.result(SOON) for h in handles)) == list(range(20))
            go_on.set()
            assert await held.result(SOON) == "held"
            leader.start()
        assert len(probe.of(JobStarted, lambda e: e.task == "hold")) <= 2  # redelivered at most once
        survivor = next(node for node in cluster.nodes if node is not leader)
        truth = await Truth.connect(survivor.url)
        await truth.until_empty(timeout=30)
        assert len(await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")) == 21
        assert await truth.subjects("jobs-dead") == {}
        await truth.close()
