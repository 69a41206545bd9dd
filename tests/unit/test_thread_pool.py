"""Threads that still run after a cancel are counted and reported until they end."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from jetjobs import JetJobs, Settings
from jetjobs.define.context import Context
from jetjobs.model.events import ThreadStuck
from jetjobs.model.job import Job
from jetjobs.worker.execution import thread_pool as module
from jetjobs.worker.execution.thread_pool import ThreadPool
from tests.support.probe import Probe, wait_until


async def test_a_thread_that_was_given_up_is_stuck_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STUCK_S", 0.0)
    app = JetJobs("x", settings=Settings())
    release, begun = threading.Event(), threading.Event()

    @app.task
    def hang() -> None:
        begun.set()
        release.wait(40)

    probe = Probe()
    threads = ThreadPool(1, probe)
    context = Context(Job("j1", "hang", "default", "normal", b""), "w", 1, 1, time.monotonic() + 60)
    try:
        call = asyncio.create_task(threads.run(context, hang, {}))
        assert await asyncio.to_thread(begun.wait, 40)
        threads.report_stuck()
        assert (threads.running, threads.stuck) == (1, 0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        for _ in range(3):
            threads.report_stuck()
        assert probe.events == [ThreadStuck("default", "hang", "j1", 1)]
        assert (threads.running, threads.stuck) == (1, 1)
    finally:
        release.set()
    await wait_until(lambda: threads.stuck == 0 and threads.running == 0, 40)
    threads.close()


async def test_a_thread_that_ends_soon_after_its_time_is_not_stuck() -> None:
    app = JetJobs("x", settings=Settings())
    release, begun = threading.Event(), threading.Event()

    @app.task
    def slow() -> None:
        begun.set()
        release.wait(40)

    probe = Probe()
    threads = ThreadPool(1, probe)
    context = Context(Job("j1", "slow", "default", "normal", b""), "w", 1, 1, time.monotonic() + 60)
    call = asyncio.create_task(threads.run(context, slow, {}))
    assert await asyncio.to_thread(begun.wait, 40)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    release.set()
    await wait_until(lambda: threads.running == 0, 40)
    threads.report_stuck()
    assert probe.events == []
    assert threads.stuck == 0
    threads.close()
