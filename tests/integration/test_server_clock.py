"""The server's clock is wrong for a while: jobs for later still run, and nothing is deleted because of it."""

from __future__ import annotations

import contextlib
import math
import time
import types
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, Worker
from jetjobs.admin import MoveOutcome
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.errors import BrokerError
from jetjobs.model.events import JobStarted
from jetjobs.worker.leader import maintenance
from jetjobs.worker.leader.maintenance import duties, sweep_orphans
from jetjobs.worker.leader.stranded_jobs import StrandedJobs
from tests.support.leaping_clock import leap
from tests.support.probe import Probe, eventually, wait_until
from tests.support.roles import GuardedServer
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SECOND = timedelta(seconds=1)
HOUR_S = 3600
SOON = timedelta(seconds=20)
LABELS = {"queue": "default", "task": "work", "id": "uploading", "run": "r1"}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader looks at the server's clock more often than every five seconds."""
    monkeypatch.setattr(maintenance, "CLOCK_EVERY_S", 0.3, raising=False)


@pytest.fixture
def pid(server: EmbeddedServer) -> int:
    assert server.process is not None
    return server.process.pid


async def leads(worker: Worker) -> None:
    """Wait until the worker leads and has read the server's clock."""
    leadership: Any = worker._leadership
    await wait_until(lambda: leadership._lock.held)
    if (duty := leadership._runner._duties.get("clock")) is not None:
        seen = {math.inf}

        def ran() -> bool:  # a run sets the time of the next one when it begins
            seen.add(duty.due_at)
            return len(seen) > 3

        await wait_until(ran)


@contextlib.asynccontextmanager
async def slow(pid: int) -> AsyncIterator[None]:
    """Set the server's clock an hour back, and right again after the block. Jobs that are due within a second when
    it begins were due when the block runs."""
    leap(pid, -HOUR_S)
    due = time.monotonic() + 1.3
    await wait_until(lambda: time.monotonic() > due)
    yield
    leap(pid, 0)


async def test_jobs_that_fell_due_while_the_clock_was_slow_run_and_so_do_later_ones(
    app: JetJobs, work: Any, truth: Truth, probe: Probe, pid: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with provisioned(app), running(app.worker()) as worker:
        await leads(worker)
        passed_over = [await work.options(delay=SECOND).enqueue(n) for n in range(5)]
        async with slow(pid):
            assert len(await truth.jobs(lane="later")) == 5
        began = time.monotonic()
        assert [await handle.result(SOON) for handle in passed_over] == list(range(5))
        assert time.monotonic() - began < 5.0
        began = time.monotonic()
        assert await (await work.options(delay=SECOND).enqueue(5)).result(SOON) == 5
        assert 0.9 < time.monotonic() - began < 3.0  # the server fires by itself again
        await truth.until_empty()
    assert len(probe.of(JobStarted)) == 6
    repaired = [record for record in caplog.records if getattr(record, "event", "") == "leader.repaired"]
    assert sum(getattr(record, "count", 0) for record in repaired) <= 5


async def test_ticks_that_fell_due_while_the_clock_was_slow_run_once_each_and_the_schedule_continues(
    app: JetJobs, truth: Truth, pid: int
) -> None:
    ran: list[datetime] = []

    @app.task
    async def tick(scheduled_time: datetime) -> None:
        ran.append(scheduled_time)

    async with provisioned(app), running(app.worker()) as worker:
        await leads(worker)
        await app.schedules.put("s", tick, every=SECOND)
        await wait_until(lambda: len(ran) >= 1)
        async with slow(pid):
            before = len(ran)
        await wait_until(lambda: len(ran) >= before + 4, 10)
    assert len(ran) == len(set(ran))
    times = sorted(ran)
    assert times[-1] - times[0] == (len(times) - 1) * SECOND, times  # none was left out


async def test_jobs_run_when_the_clock_leaps_ahead_past_their_due_time(
    app: JetJobs, work: Any, truth: Truth, probe: Probe, pid: int
) -> None:
    async with provisioned(app), running(app.worker()) as worker:
        await leads(worker)
        handle = await work.options(delay=timedelta(minutes=30)).enqueue(1)
        leap(pid, HOUR_S)
        assert await handle.result(SOON) == 1
        await truth.until_empty()
    assert len(probe.of(JobStarted)) == 1


async def test_run_now_moves_a_job_that_the_server_has_passed_over(
    app: JetJobs, work: Any, truth: Truth, pid: int
) -> None:
    async with provisioned(app):
        handle = await work.options(delay=SECOND).enqueue(1)
        async with slow(pid):
            assert len(await truth.jobs(lane="later")) == 1

        async def moved() -> bool:  # within two seconds of its due time the server may be firing it
            return (await app.jobs.run_now(handle.id)).outcome is MoveOutcome.MOVED

        await eventually(moved, 10)
        assert await truth.jobs() == [f"jobs.work.default.normal.work.-.{handle.id}"]


async def test_without_the_right_to_change_streams_the_leader_sweeps_until_the_timer_has_run_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.worker.leader.overdue_jobs.REQUEST_EVERY_S", 0.5)
    with GuardedServer(tmp_path) as server:
        assert server.process is not None
        setup, app = (JetJobs("test", settings=server.settings_of(role)) for role in ("setup", "worker"))
        probe = Probe()
        app.observe(probe)

        async def work(n: int) -> int:
            return n

        setup.task(work)
        delayed = app.task(work).options(delay=SECOND)
        async with provisioned(setup):
            pass
        async with app, running(app.worker()) as worker:
            await leads(worker)
            for n in range(3):
                await delayed.enqueue(n)
            async with slow(server.process.pid):
                pass
            await probe.finished(3, "succeeded", timeout=10)
            await delayed.enqueue(3)
            await probe.finished(4, "succeeded", timeout=10)
        assert len(probe.of(JobStarted)) == 4


async def test_a_user_who_may_not_read_the_clock_gets_this_machines_once_and_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with GuardedServer(tmp_path) as server:
        async with JetJobs("test", settings=server.settings_of("producer")) as app:
            clock = app.jetstream.server_clock
            with pytest.raises(BrokerError, match="not known"):
                clock.time()
            before = await clock.seconds("KV_jobs-done-default")
            assert abs(before - time.time()) < 5.0
            leapt = types.SimpleNamespace(time=lambda: time.time() + HOUR_S, monotonic=time.monotonic)
            monkeypatch.setattr("jetjobs.jetstream.transport.server_clock.time", leapt)
            assert clock.stale
            assert abs(await clock.seconds("KV_jobs-done-default") - before) < 20.0
    assert [getattr(record, "event", "") for record in caplog.records].count("nats.clock_denied") == 1


# Bodies that are being uploaded


async def test_the_sweep_does_not_trust_a_time_that_was_read_while_the_clock_was_wrong(
    app: JetJobs, work: Any, truth: Truth, pid: int
) -> None:
    async with provisioned(app):
        leap(pid, 2 * HOUR_S)
        await app.jetstream.server_clock.seconds()
        leap(pid, 0)
        await app.jetstream.payloads.put("uploading.r1", b"x" * 200_000, LABELS)  # its job is not stored yet
        assert await sweep_orphans(app.jetstream) == 0
        assert set(await truth.objects()) == {"uploading.r1"}


async def test_no_body_is_removed_within_an_hour_after_the_clock_has_leapt_ahead(
    app: JetJobs, work: Any, truth: Truth, pid: int
) -> None:
    async with provisioned(app):
        stranded = StrandedJobs(app.jetstream, "w", 30.0, lambda event: None)
        by_name = {duty.name: duty for duty in duties(app.jetstream, stranded)}
        for name in ("clock", "orphans"):
            if name in by_name:
                await by_name[name].run()
        await app.jetstream.payloads.put("uploading.r1", b"x" * 200_000, LABELS)
        leap(pid, 2 * HOUR_S)
        app.jetstream.server_clock._refresh_at = 0.0  # as a minute later
        for name in ("clock", "orphans"):
            if name in by_name:
                await by_name[name].run()
        assert set(await truth.objects()) == {"uploading.r1"}
