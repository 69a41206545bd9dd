"""A disk is full and the server has frozen streams: workers and the doctor say so, and a restart repairs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from jetjobs import JetJobs, Worker
from jetjobs.admin import Finding
from jetjobs.jetstream.messages import publisher, refused_writes
from jetjobs.model.errors import BrokerError, BrokerUnavailable, StorageFull
from jetjobs.model.events import JobStarted
from jetjobs.model.settings import build_settings
from jetjobs.observe.health import Health
from jetjobs.worker.fleet import registration
from tests.support.clock import FakeClock
from tests.support.full_disk import FullDisk, freeze
from tests.support.pages import Port
from tests.support.probe import Probe, eventually, wait_until
from tests.support.processes import run
from tests.support.server import Truth
from tests.support.workers import provisioned, running

REMEDY = "free the disk, then restart the server"


@pytest.fixture
def server() -> Iterator[FullDisk]:
    with FullDisk() as started:
        yield started


@pytest.fixture
async def ready_app(server: FullDisk, truth: Truth) -> AsyncIterator[JetJobs]:
    app = JetJobs("test", settings=build_settings({"nats": {"url": server.url}, "queues": {"lease": "5s"}}))

    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        yield app


@contextlib.contextmanager
def served(worker: Worker) -> Iterator[Port]:
    """The port of the worker."""
    health = Health(CollectorRegistry(), lambda: worker.problem, lambda: worker.loop_monitor.silent_s)
    try:
        yield Port(int(health.start("127.0.0.1:0").rpartition(":")[2]))
    finally:
        health.stop()


async def writes(app: JetJobs) -> list[Finding]:
    return [found for found in await app.doctor(only=["nats"]) if found.check == "writes"]


@pytest.mark.parametrize(
    ("stream", "subject"),
    [
        ("jobs-work-default", "jobs.work.default.mark.large"),
        ("OBJ_jobs-payloads", "$O.jobs-payloads.C.large"),
    ],
)
async def test_the_doctor_finds_a_frozen_stream_without_any_worker(
    ready_app: JetJobs, server: FullDisk, truth: Truth, stream: str, subject: str
) -> None:
    assert [found.level for found in await writes(ready_app)] == ["ok"]
    await freeze(truth, subject)
    (found,) = await writes(ready_app)
    assert (found.level, found.hint) == ("fail", REMEDY)
    assert found.text.startswith(f"stream {stream} stores nothing: write /")
    assert "file too large" in found.text
    server.restart_with_space()
    await wait_until(lambda: ready_app.jetstream.connection.connected)
    assert [found.level for found in await writes(ready_app)] == ["ok"]


async def test_a_worker_that_cannot_store_an_outcome_says_so_until_the_server_is_restarted(
    ready_app: JetJobs, server: FullDisk, truth: Truth, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_writes, "FROZEN_S", 1.0)
    monkeypatch.setattr(publisher, "TRY_S", 0.5)
    monkeypatch.setattr(registration, "BEAT_S", 0.2)
    probe = Probe()
    ready_app.observe(probe)
    async with running(ready_app.worker()) as worker:
        await wait_until(lambda: worker.ready)
        await freeze(truth, "$KV.jobs-done-default.work.large")
        handle = await ready_app.tasks["work"].enqueue()
        await wait_until(lambda: REMEDY in worker.problem)
        assert worker.problem.startswith("stream KV_jobs-done-default has confirmed nothing for ")
        assert not worker.ready
        (record,) = await ready_app.workers.list()
        (answer,) = (await ready_app.workers.request_all("ping")).by_worker.values()
        assert REMEDY in answer["refused"][0]
        (found,) = await writes(ready_app)
        assert found.level == "fail"
        assert found.text.startswith(f"worker {record.key}: stream KV_jobs-done-default has confirmed nothing")
        assert found.text.endswith(REMEDY)

        async def in_the_record() -> bool:
            return any(REMEDY in reason for reason in (await ready_app.workers.get(record.key)).refused)

        await eventually(in_the_record)
        command = ["workers", "show", record.key]
        shown = await asyncio.to_thread(run, command, tmp_path, env={"NATS_URL": server.url})
        assert "refused   stream KV_jobs-done-default has confirmed nothing" in shown.stdout
        with served(worker) as port:
            status, text = await port.get("/readyz")
        assert status == 503
        assert text.startswith("not ready: stream KV_jobs-done-default has confirmed nothing for ")
        assert text.endswith(f"{REMEDY}\n")
        server.restart_with_space()
        assert await handle.result(timedelta(seconds=30)) == "done"
        await wait_until(lambda: worker.ready)
        await truth.until_empty()
        assert [found.level for found in await writes(ready_app)] == ["ok"]
    assert set(await truth.done()) == {handle.id}
    assert len(probe.of(JobStarted)) == 1


async def test_an_idle_worker_that_cannot_write_its_record_is_not_ready_and_the_doctor_asks_it(
    ready_app: JetJobs, server: FullDisk, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refused_writes, "FROZEN_S", 1.0)
    monkeypatch.setattr(registration, "BEAT_S", 0.2)
    await freeze(truth, "$KV.jobs-workers.large")
    async with running(ready_app.worker(name="idle")) as worker:
        await wait_until(lambda: "KV_jobs-workers" in worker.problem)
        assert await ready_app.workers.list() == []  # so only its answer can say so
        (found,) = await eventually(lambda: writes(ready_app), where=lambda found: found[0].level == "fail")
        assert found.text.startswith("worker idle-")
        assert found.text.endswith(REMEDY)
        server.restart_with_space()
        await wait_until(lambda: worker.ready)


async def test_a_stream_that_takes_long_to_confirm_is_not_reported_before_time_and_forgotten_later(
    ready_app: JetJobs, truth: Truth
) -> None:
    clock, connection = FakeClock(), ready_app.jetstream.connection
    refused = refused_writes.RefusedWrites(clock.monotonic)
    silence = BrokerUnavailable("no answer")
    for pause_s in (0.0, 2.0, 7.0):
        clock.now += pause_s
        await refused.failed("s", silence, connection)
        assert refused.reasons() == []
    clock.now += 2.0
    await refused.failed("s", silence, connection)
    assert refused.reasons() == [f"stream s has confirmed nothing for 11 s; if its disk is full: {REMEDY}"]
    await refused.failed("t", StorageFull("no room", hint="make some"), connection)
    await refused.failed("u", BrokerUnavailable("no responders", code=503), connection)
    await refused.failed("v", BrokerError("another error"), connection)
    assert [*refused.streams] == ["s", "t"]
    assert refused.reasons()[1] == "no room: make some"
    refused.stored("t")
    clock.now += 31.0
    assert refused.reasons() == []
    await refused.failed("s", silence, connection)
    assert refused.reasons() == []  # it starts again
