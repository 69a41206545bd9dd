"""A task that blocks the event loop of its worker is still shown as running."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import nats
from nats.aio.msg import Msg

from jetjobs import JetJobs, JobState, current_job
from jetjobs.dev_server import EmbeddedServer
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, running

SOON = timedelta(seconds=40)


class Listener:
    """Subscribes in a thread of its own, because the test blocks its own event loop."""

    def __init__(self, url: str, *subjects: str) -> None:
        self._url, self._subjects = url, subjects
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.received = threading.Event()
        self.ready = threading.Event()
        self._stop = threading.Event()

    async def _listen(self) -> None:
        async def on_message(message: Msg) -> None:
            if message.data:
                self.heard.append((message.subject, json.loads(message.data)))
                self.received.set()

        nc = await nats.connect(self._url)
        for subject in self._subjects:
            await nc.subscribe(subject, cb=on_message)
        await nc.flush()
        self.ready.set()
        await asyncio.to_thread(self._stop.wait)
        await nc.close()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._listen()))
        thread.start()
        try:
            assert self.ready.wait(20)
            yield
        finally:
            self._stop.set()
            thread.join()


async def test_a_job_that_blocks_the_loop_is_shown_as_running(
    app: JetJobs, server: EmbeddedServer, truth: Truth
) -> None:
    listener = Listener(server.url, "$KV.jobs-running.*")

    @app.task
    async def blocking() -> bool:
        return listener.received.wait(20)  # blocks the event loop

    async with provisioned(app):
        with listener.listening():
            async with running(app.worker()):
                handle = await blocking.enqueue()
                assert await handle.result(SOON), "no record was written while the loop was blocked"
        subject, record = listener.heard[0]
        assert subject == f"$KV.jobs-running.{handle.id}"
        assert (record["id"], record["task"], record["queue"]) == (handle.id, "blocking", "default")
        assert (await app.jobs.get(handle.id)).state is JobState.SUCCEEDED
        await eventually(app.jobs.running, 30, where=lambda found: not found)


async def test_progress_of_a_job_that_blocks_the_loop_is_published(app: JetJobs, server: EmbeddedServer) -> None:
    listener = Listener(server.url, "jobs.events.job.progress.>")

    @app.task
    async def blocking() -> bool:
        current_job().progress(0.5, "half")
        return listener.received.wait(20)

    async with provisioned(app):
        with listener.listening():
            async with running(app.worker()):
                assert await (await blocking.enqueue()).result(SOON)
    assert [record["progress"] for _, record in listener.heard] == [0.5]
