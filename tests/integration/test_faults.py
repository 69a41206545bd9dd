"""Faults of the network and the server under a running worker: detected, repaired, no job lost."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs, current_job
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.transport import api
from jetjobs.model.events import (
    ConnectionLost,
    ConnectionRestored,
    JobFinished,
    JobStarted,
    LaneTrouble,
    LeaseLostEvent,
)
from tests.conftest import MakeApp
from tests.support.probe import Probe, wait_until
from tests.support.proxy import Frames, Proxy
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=30)
ACK = r"\$JS\.ACK\.\S+"
NEXT = r"\$JS\.API\.CONSUMER\.MSG\.NEXT\.jobs-work-default\.normal"


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    made = Proxy(server.url)
    async with made.running():
        yield made


def watched(app: JetJobs) -> Probe:
    probe = Probe()
    app.observe(probe)
    return probe


async def emptied(truth: Truth) -> None:
    """Wait until no job is left in the work stream."""
    await truth.until_empty(timeout=30)


# Server restarts


@pytest.mark.alone
async def test_after_a_server_restart_under_load_pulls_resume_within_five_seconds_and_no_job_is_lost(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth
) -> None:
    app = make_app(queues={"lease": "3s"})  # jobs sent to a dying socket are redelivered after a lease
    probe = watched(app)
    ran: Counter[int] = Counter()

    @app.task
    async def work(n: int) -> int:
        ran[n] += 1
        await asyncio.sleep(0.01)
        return n

    async def produce() -> int:
        stored = 0
        while not enough.is_set():
            await work.enqueue(stored)  # repeated until confirmed: the restart is hidden from the producer
            stored += 1
        return stored

    enough = asyncio.Event()
    async with provisioned(app):
        async with running(app.worker(slots=10)):
            producing = asyncio.create_task(produce())
            await probe.finished(50, "succeeded", timeout=30)
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            back_at, before = time.monotonic(), len(probe.of(JobFinished))
            await probe.finished(before + 1, "succeeded")
            resumed_s = time.monotonic() - back_at
            await probe.finished(before + 50, "succeeded", timeout=30)
            enough.set()
            stored = await producing
            await emptied(truth)
        assert resumed_s < 5
        assert set(ran) == set(range(stored))
        done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
        assert (len(done), set(done.values())) == (stored, {1})
        assert await truth.dead() == {}


async def test_a_server_killed_between_a_publish_and_its_confirmation_keeps_one_copy(
    make_app: MakeApp, server: EmbeddedServer, proxy: Proxy, truth: Truth
) -> None:
    app = make_app(nats={"url": proxy.url})

    @app.task
    async def send() -> None: ...

    async with provisioned(app):
        lost: list[bytes] = []

        def kill_before_the_answer(data: bytes) -> bytes:
            if not lost and b'"stream":"jobs-work-default"' in data:
                lost.append(data)
                server.kill()
                server.start()
                return b""
            return data

        proxy.to_client = kill_before_the_answer
        handle = await send.enqueue()
        assert lost, "the confirmation was not lost: the test proves nothing"
        assert await truth.jobs() == [f"jobs.work.default.normal.send.-.{handle.id}"]


async def test_a_publish_repeated_after_the_job_has_ended_and_the_server_was_restarted_runs_twice_with_one_record(
    app: JetJobs, server: EmbeddedServer, truth: Truth, probe: Probe
) -> None:
    """The server forgets the message ids of deleted messages. This duplicate cannot be refused."""
    ran: list[str] = []

    @app.task
    async def work() -> int:
        ran.append(current_job().id)
        return len(ran)

    async with provisioned(app):
        handle = await work.enqueue()
        (subject,) = await truth.jobs()
        copy = await truth.js.get_last_msg("jobs-work-default", subject)
        async with running(app.worker()):
            assert await handle.result(SOON) == 1
            await emptied(truth)
            again = await truth.js.publish(subject, copy.data or b"", headers=copy.headers)
            assert again.duplicate  # the server knows the id until it restarts
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await probe.wait(ConnectionRestored)
            again = await truth.js.publish(subject, copy.data or b"", headers=copy.headers)
            assert not again.duplicate
            await probe.finished(2, "succeeded")
        assert ran == [handle.id] * 2
        assert (await truth.done())[handle.id]["result"] == 1  # the first record of a run is kept
        await truth.until_empty()


@pytest.mark.patient
async def test_a_job_that_had_queued_for_longer_than_its_lease_is_not_redelivered_by_a_server_restart(
    make_app: MakeApp, server: EmbeddedServer, truth: Truth
) -> None:
    """After a restart the server counts the lease from the time of the publish, until a heartbeat arrives."""
    lease_s = 6.0
    app = make_app(queues={"lease": f"{lease_s:.0f}s"})
    probe = watched(app)

    @app.task
    async def work(seconds: float) -> None:
        await asyncio.sleep(seconds)

    beats: asyncio.Queue[bytes] = asyncio.Queue()
    async with provisioned(app):
        queued_at = time.monotonic()
        await work.enqueue(5.0)
        await asyncio.sleep(queued_at + lease_s + 0.5 - time.monotonic())

        async def heard(message: Any) -> None:
            # Not the check of the permission, which names no message.
            if message.data == b"+WPI" and api.parse_ack(message.subject)[1]:
                beats.put_nowait(message.data)

        await truth.nc.subscribe("$JS.ACK.jobs-work-default.>", cb=heard)
        await truth.nc.flush()
        async with running(app.worker()), running(app.worker(name="second")):
            await probe.wait(JobStarted)
            await asyncio.wait_for(beats.get(), 1.9)  # the regular one would come after a third of the lease
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            await probe.finished(1, "succeeded", timeout=20)
            await emptied(truth)
        assert len(probe.of(JobStarted)) == 1
        assert not probe.of(LeaseLostEvent)


# The network


@pytest.mark.patient
@pytest.mark.timeout(120)
async def test_a_network_outage_is_detected_within_thirty_seconds_and_the_worker_recovers(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    app = make_app(nats={"url": proxy.url})
    probe = watched(app)

    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        worker = app.worker()
        async with running(worker):
            assert await (await work.enqueue()).result(SOON) == "done"
            proxy.swallow()
            dark_at = time.monotonic()
            await probe.wait(ConnectionLost, timeout=45)
            assert time.monotonic() - dark_at <= 30
            assert not worker.ready
            proxy.pass_on()
            await probe.wait(ConnectionRestored, timeout=30)
            assert await (await work.enqueue()).result(SOON) == "done"
            assert worker.ready
        assert len(probe.of(ConnectionLost)) == 1
        assert len(probe.of(ConnectionRestored)) == 1


@pytest.mark.patient
async def test_a_slow_network_loses_no_lease(make_app: MakeApp, proxy: Proxy, truth: Truth) -> None:
    app = make_app(nats={"url": proxy.url}, queues={"lease": "3s"})
    probe = watched(app)
    chance = random.Random(23)

    @app.task
    async def work(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async with provisioned(app):
        proxy.delay = lambda: 0.2 + chance.uniform(-0.1, 0.1)
        async with running(app.worker(slots=20)):
            handles = [*(await app.enqueue_many([work.bind(0.0) for _ in range(100)])).stored]
            handles += (await app.enqueue_many([work.bind(7.0) for _ in range(10)])).stored  # more than two leases
            await asyncio.gather(*(handle.result(SOON) for handle in handles))
            await emptied(truth)
        assert len(probe.of(JobStarted)) == 110
        assert not probe.of(LeaseLostEvent)
        assert not probe.of(ConnectionLost)
        assert (await truth.consumer())["num_redelivered"] == 0


@pytest.mark.patient
async def test_a_lost_pull_request_is_detected_and_repeated(make_app: MakeApp, proxy: Proxy, truth: Truth) -> None:
    app = make_app(nats={"url": proxy.url})
    probe = watched(app)

    @app.task
    async def work() -> str:
        return "done"

    async with provisioned(app):
        lose = Frames(NEXT, r"[^\r]*", lambda: True)
        proxy.to_server = lose
        worker = app.worker()
        async with running(worker):
            handle = await work.enqueue()
            trouble = await probe.wait(LaneTrouble, timeout=30)
            assert (trouble[0].lane, len(lose.seen)) == ("normal", 1)
            assert await handle.result(SOON) == "done"  # long before `expires` of 30 s
            await wait_until(lambda: worker.ready)
        assert len(probe.of(LaneTrouble)) == 1


@pytest.mark.alone
@pytest.mark.parametrize(("jobs", "large_jobs", "bytes_per_s"), [(120, 120, 60e6), (220, 110, 30e6)])
async def test_large_jobs_for_many_slots_do_not_overrun_a_slow_link(
    make_app: MakeApp,
    server: EmbeddedServer,
    proxy: Proxy,
    truth: Truth,
    jobs: int,
    large_jobs: int,
    bytes_per_s: float,
) -> None:
    """The server disconnects a client for which more than 64 MB wait to be sent. Large jobs may follow small ones,
    whose mean says nothing about them."""
    app = make_app(nats={"url": proxy.url})
    probe = watched(app)

    @app.task(store_result=False)
    async def work(text: str) -> None:
        await asyncio.sleep(0.1)

    async with provisioned(app):
        small, large = (json.dumps({"text": "x" * size}).encode() for size in (0, 900_000))
        for body in [small] * (jobs - large_jobs) + [large] * large_jobs:
            await truth.js.publish("jobs.work.default.normal.work", body)
        proxy.bytes_per_s = bytes_per_s
        async with running(app.worker(slots=120)):
            await probe.finished(jobs, "succeeded", timeout=40)
            await emptied(truth)
    assert "Slow Consumer" not in server.log()
    assert not probe.of(ConnectionLost)
    assert len(probe.of(JobStarted)) == jobs


@pytest.mark.parametrize("moment", ["ack", "heartbeat", "result"])
async def test_a_connection_cut_during_an_ack_a_heartbeat_or_a_record_costs_at_most_a_second_run(
    make_app: MakeApp, proxy: Proxy, truth: Truth, moment: str
) -> None:
    app = make_app(nats={"url": proxy.url}, queues={"lease": "6s"})
    probe = watched(app)
    ran = 0

    @app.task
    async def work() -> str:
        nonlocal ran
        ran += 1
        await asyncio.sleep(2.5)  # one heartbeat
        return "done"

    def cut() -> bool:
        proxy.cut()
        return True

    subject, body = {
        "ack": (ACK, r"\+ACK"),
        "heartbeat": (ACK, r"\+WPI"),
        "result": (r"\$KV\.jobs-done-default\.\S+", r"NATS/1\.0.*"),
    }[moment]
    async with provisioned(app):
        frames = Frames(subject, body, cut)
        proxy.to_server = frames
        async with running(app.worker()):
            handle = await work.enqueue()
            assert await handle.result(SOON) == "done"
            await emptied(truth)
        assert frames.seen, "the moment never came: the test proves nothing"
        assert ran == 1  # all three are repaired within the lease; the record shows a lost ack
        assert (await truth.done())[handle.id]["attempt"] == 1
        assert await truth.dead() == {}
        assert len(probe.of(JobFinished)) == 1


async def test_a_disconnected_worker_gives_up_a_job_when_its_lease_has_expired_unanswered(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    """A heartbeat without an answer renews nothing."""
    dark_app = make_app(nats={"url": proxy.url}, queues={"lease": "2s"})
    app = make_app(queues={"lease": "2s"})
    in_the_dark, probe = watched(dark_app), watched(app)

    async def hold() -> str:
        if current_job().delivery == 1:
            await asyncio.sleep(60)
        return "elsewhere"

    held = app.task(name="hold")(hold)
    dark_app.task(name="hold")(hold)
    async with provisioned(app), dark_app:
        async with running(dark_app.worker(name="dark")):
            handle = await held.enqueue()
            await in_the_dark.wait(JobStarted)
            proxy.swallow()
            async with running(app.worker(name="other")):
                assert await handle.result(SOON) == "elsewhere"
                # Long before the connection is known to be dead: 10 s for an expected 2 s.
                await in_the_dark.wait(LeaseLostEvent, timeout=10)
            proxy.pass_on()
            proxy.cut()
        assert len(probe.of(JobFinished)) == 1


async def test_a_job_whose_lease_expired_while_it_was_looked_up_is_not_run(
    make_app: MakeApp, proxy: Proxy, truth: Truth
) -> None:
    app = make_app(nats={"url": proxy.url}, queues={"lease": "1s", "max_crashes": 50})
    probe = watched(app)

    @app.task
    async def work() -> int:
        return 1

    def answer_late(data: bytes) -> bytes:
        if b"STREAM.MSG.GET.KV_jobs-done-default" in data:
            proxy.hold()  # the request passes; the answer and every heartbeat wait
            proxy.pass_on()
        return data

    async with provisioned(app):
        await work.enqueue()
        # Delivered once and never acked, so that the worker looks it up when it is redelivered.
        subject = "$JS.API.CONSUMER.MSG.NEXT.jobs-work-default.normal"
        await truth.nc.request(subject, b'{"batch":1}', timeout=10, old_style=True)
        proxy.to_server = answer_late
        async with running(app.worker(slots=1)):
            await probe.wait(LeaseLostEvent, timeout=30)
            proxy.resume()
            await probe.finished(1, "succeeded", timeout=30)
            await emptied(truth)
    assert next(event.delivery for event in probe.of(JobStarted)) > 2
