"""A worker whose server goes away: one warning, one line when it is back, and jobs run again."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, Worker
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import BrokerError
from jetjobs.model.events import ConnectionLost, ConnectionRestored, LaneTrouble
from jetjobs.observe.logs import log_event
from tests.support.probe import Probe, wait_until
from tests.support.processes import run
from tests.support.server import Truth
from tests.support.workers import provisioned_worker

SOON = timedelta(seconds=20)
STATUS = b"NATS/1.0 409 Server Shutdown\r\n\r\n"


def declared(app: JetJobs) -> Any:
    @app.task
    async def work() -> str:
        return "done"

    @app.task(queue="mail")
    async def send() -> None: ...

    @app.task(queue="reports")
    async def report() -> None: ...

    return work


async def test_a_lost_server_is_one_warning_for_all_lanes_and_its_return_one_line(
    app: JetJobs, server: EmbeddedServer, probe: Probe, caplog: pytest.LogCaptureFixture
) -> None:
    declared(app)
    app.observe(log_event)
    async with provisioned_worker(app) as worker:
        await wait_until(lambda: worker.ready)
        caplog.clear()
        server.stop()
        await probe.wait(ConnectionLost)
        await wait_until(lambda: worker.problem == "not connected to NATS")
        server.start()
        (restored,) = await probe.wait(ConnectionRestored)
        for task in app.tasks.values():
            await (await task.enqueue()).result(SOON)
        await wait_until(lambda: worker.ready)
    logged = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert [vars(record)["event"] for record in logged] == ["nats.lost", "nats.restored"]
    assert 0 < vars(logged[1])["outage_s"] == restored.outage_s == round(restored.outage_s, 3)


def lane_of(worker: Worker, queue: str, lane: str) -> Any:
    return next(p for p in worker._jobs.lanes._pullers if (p.queue, p.lane) == (queue, lane))


async def shut_down(truth: Truth, puller: Any) -> None:
    """What the server that leads a lane sends when it stops."""
    reply = f"HPUB {puller._inbox} {len(STATUS)} {len(STATUS)}\r\n".encode() + STATUS + b"\r\n"
    await truth.nc._send_command(reply)
    await truth.nc.flush()


async def test_a_lane_that_another_server_takes_over_is_pulled_from_again_without_a_warning(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    work = declared(app)
    async with provisioned_worker(app) as worker:
        await wait_until(lambda: worker.ready)
        puller = lane_of(worker, "default", "normal")
        await shut_down(truth, puller)
        await wait_until(lambda: puller.blocked)
        assert worker.ready
        assert await (await work.enqueue()).result(SOON) == "done"
    assert not probe.of(LaneTrouble)


async def test_a_lane_that_does_not_come_back_is_reported(
    app: JetJobs, truth: Truth, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = declared(app)
    async with provisioned_worker(app) as worker:
        await wait_until(lambda: worker.ready)

        async def offline(*args: Any) -> None:
            raise BrokerError("stream is offline")

        with monkeypatch.context() as patched:
            patched.setattr(app.jetstream.connection, "api", offline)
            await shut_down(truth, lane_of(worker, "default", "normal"))
            (trouble,) = await probe.wait(LaneTrouble)
            assert trouble == LaneTrouble("default", "normal", "its server has stopped: stream is offline")
            assert "lane normal of queue default: its server has stopped" in worker.problem
        assert await (await work.enqueue()).result(SOON) == "done"
        await wait_until(lambda: worker.ready)
    assert len(probe.of(LaneTrouble)) == 1


def test_a_worker_does_not_start_without_a_server(tmp_path: Any) -> None:
    (tmp_path / "tasks.py").write_text(
        'from jetjobs import JetJobs\napp = JetJobs("t")\napp.task(name="work")(lambda: None)\n'
    )
    done = run(["worker", "-s", "nats://127.0.0.1:9", "--timeout", "300ms"], tmp_path)
    assert done.returncode == 3
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: no NATS server at nats://127.0.0.1:9 within 0.3 s: ")
    assert hint == "hint: start one with `jetjobs dev`, or set another with --server or JETJOBS_NATS__URL"
