"""The number of replicas in a cluster: three unless the settings say otherwise, and never one by accident."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.admin import Finding
from jetjobs.jetstream import topology
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import TopologyConflict
from jetjobs.model.settings import build_settings
from tests.support.cluster import Cluster
from tests.support.server import Truth

pytestmark = pytest.mark.timeout(120)


def app_of(cluster: Cluster, **queues: object) -> JetJobs:
    nats = {"url": cluster.url, "connect_timeout": "30s"}
    app = JetJobs("jobs")
    app.configure(build_settings({"nats": nats, "queues": queues}))

    @app.task
    async def work() -> None: ...

    return app


async def replicas_of(cluster: Cluster, namespace: str) -> set[int]:
    truth = await Truth.connect(cluster.url.split(",")[0])
    try:
        streams = (await truth.api("STREAM.NAMES"))["streams"]
        infos = [await truth.api(f"STREAM.INFO.{name}") for name in streams if f"{namespace}-" in name]
    finally:
        await truth.close()
    assert len(infos) > 5
    return {info["config"]["num_replicas"] for info in infos}


async def copies(app: JetJobs) -> list[Finding]:
    return [finding for finding in await app.doctor(only=["topology"]) if finding.check == "copies"]


async def test_a_cluster_that_does_not_advertise_its_nodes_or_has_one_away_gets_three_replicas(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path, advertise=False) as cluster:
        async with app_of(cluster, namespace="hidden") as app:
            await app.provision()
            assert await replicas_of(cluster, "hidden") == {3}
        cluster.follower().kill()
        async with app_of(cluster, namespace="away") as app:
            first = (await app.plan())[0]
            js = app.jetstream
            await topology.apply(js.connection, js.publisher, js.names, [first])
            info = await app.jetstream.connection.api(api.stream_info(first.wanted.stream))
            assert info["config"]["num_replicas"] == 3


async def test_a_cluster_of_two_is_refused_until_the_settings_name_the_number_of_replicas(tmp_path: Path) -> None:
    with Cluster(tmp_path, size=2) as cluster:
        async with app_of(cluster) as app:
            with pytest.raises(TopologyConflict, match="3 replicas") as caught:
                await app.provision()
            assert "queues.replicas" in str(caught.value.hint)
            assert {change.action for change in await app.plan()} == {"create"}  # nothing was created
        async with app_of(cluster, replicas=1) as app:
            await app.provision()
            assert await replicas_of(cluster, "jobs") == {1}
            [chosen] = await copies(app)
            assert (chosen.level, "queues.replicas" in chosen.text) == ("ok", True)
        async with app_of(cluster) as app:
            await app.provision()  # existing streams keep their number
            assert await replicas_of(cluster, "jobs") == {1}
            [warned] = await copies(app)
            assert warned.level == "warn"
            assert "1 of 3 replicas" in warned.text
