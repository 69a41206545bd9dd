"""A server that leads a stream is frozen, replaced and woken: it must not deny jobs that were stored since."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest

from jetjobs import JetJobs, JobState, JobStatus
from jetjobs.model.errors import BrokerError, BrokerUnavailable
from jetjobs.model.settings import build_settings
from tests.support.cluster import Cluster
from tests.support.job_states import HOUR, StateTasks
from tests.support.probe import eventually
from tests.support.server import Truth

STREAM = "STREAM.INFO.jobs-work-default"


def app_of(url: str) -> JetJobs:
    return JetJobs("test", settings=build_settings({"nats": {"url": url, "connect_timeout": "30s"}}))


@pytest.mark.patient
@pytest.mark.timeout(120)
async def test_a_confirmed_job_is_found_right_after_a_frozen_leader_woke(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        first = app_of(cluster.url)
        StateTasks(first)
        async with first:
            await first.provision()
        truth = await Truth.connect(cluster.url.split(",")[0])
        leader = (await truth.api(STREAM))["cluster"]["leader"]
        await truth.close()
        frozen = cluster.named(leader)
        others = ",".join(node.url for node in cluster.nodes if node is not frozen)
        reader, writer = app_of(frozen.url), app_of(others)
        zoo = StateTasks(writer)
        async with reader, writer:
            assert frozen.process is not None
            os.kill(frozen.process.pid, signal.SIGSTOP)
            try:
                # Confirmed by the next leader.
                async def stored() -> bool:
                    with contextlib.suppress(BrokerError):
                        await zoo.fine.options(job_id="mine", delay=HOUR).enqueue(1)
                        return True
                    return False

                await eventually(stored, 60)

                async def look() -> JobStatus | None:
                    with contextlib.suppress(BrokerUnavailable):  # not all streams have a leader again
                        return await reader.jobs.get("mine", queue="default", task="fine")
                    return None

                looking = asyncio.create_task(eventually(look, 60))
                await asyncio.sleep(0.1)  # the request is in the socket of the frozen server
            finally:
                os.kill(frozen.process.pid, signal.SIGCONT)
            assert (await looking).state is JobState.SCHEDULED
