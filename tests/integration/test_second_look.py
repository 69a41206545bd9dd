"""A job that a first look misses, because the answer was old, is found by a second one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from jetjobs import JetJobs, JobState
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.errors import JobNotFound, ResultExpired
from tests.conftest import MakeApp
from tests.support.job_states import HOUR, StateTasks
from tests.support.letters import bury
from tests.support.probe import wait_until
from tests.support.proxy import Proxy
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=10)


@pytest.fixture
async def proxy(server: EmbeddedServer) -> AsyncIterator[Proxy]:
    made = Proxy(server.url)
    async with made.running():
        yield made


class OldAnswers:
    """Holds the answers to the first look of a client, as from a server that has not heard of the job yet."""

    def __init__(self, proxy: Proxy, asked: bytes) -> None:
        """`asked` is part of the last request of a look."""
        self._proxy = proxy
        self.seen = False
        asking = False

        def to_server(data: bytes) -> bytes:
            nonlocal asking
            asking = asking or asked in data
            return data

        def to_client(data: bytes) -> bytes:
            if asking and not self.seen:
                self.seen = True
                proxy.hold()  # what follows is held; the job is stored before the client gets it
            return data

        proxy.to_server, proxy.to_client = to_server, to_client

    async def taken(self) -> None:
        await wait_until(lambda: self.seen)


async def test_a_job_that_the_first_look_misses_is_found_by_the_second(
    app: JetJobs, make_app: MakeApp, proxy: Proxy
) -> None:
    zoo = StateTasks(app)
    reader = make_app(nats={"url": proxy.url})
    async with provisioned(app), reader:
        # The last request of `locate` is for the running record.
        old = OldAnswers(proxy, b"$KV.jobs-running.mine")
        looking = asyncio.create_task(reader.jobs.get("mine"))
        await old.taken()
        await zoo.fine.options(job_id="mine", delay=HOUR).enqueue(1)
        proxy.resume()
        assert (await looking).state is JobState.SCHEDULED


async def test_a_status_and_a_dead_letter_that_the_first_look_misses_are_found_by_the_second(
    app: JetJobs, make_app: MakeApp, proxy: Proxy
) -> None:
    zoo = StateTasks(app)
    reader = make_app(nats={"url": proxy.url})
    StateTasks(reader)
    async with provisioned(app), reader:
        old = OldAnswers(proxy, b"$KV.jobs-running.mine")
        looking = asyncio.create_task(reader.jetstream.locator.status("default", "fine", "mine"))
        await old.taken()
        await zoo.fine.options(job_id="mine", delay=HOUR).enqueue(1)
        proxy.resume()
        assert (await looking).state is JobState.SCHEDULED
        old = OldAnswers(proxy, b"jobs.dead.*.*.buried")
        reading = asyncio.create_task(reader.dead.get("buried"))
        await old.taken()
        await bury(app, "fine", [b'{"n": 1}'], ids=["buried"])
        proxy.resume()
        assert (await reading) is not None


async def test_what_does_not_exist_is_answered_after_a_second_and_what_exists_at_once(app: JetJobs) -> None:
    zoo = StateTasks(app)
    async with provisioned(app), running(app.worker()):
        started = time.monotonic()
        with pytest.raises(JobNotFound):
            await app.jobs.get("nosuch")
        assert 1.0 <= time.monotonic() - started < 2.0
        handle = await zoo.fine.enqueue(1)
        assert await handle.result(SOON) == 1
        started = time.monotonic()
        assert (await app.jobs.get(handle.id)).state is JobState.SUCCEEDED
        assert time.monotonic() - started < 1.0
        await app.jetstream.connection.api("$JS.API.STREAM.PURGE.KV_jobs-done-default")
        with pytest.raises(ResultExpired):
            await handle.result(SOON)
