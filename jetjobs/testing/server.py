"""Point an app at the server of a test, and run a worker during a test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from jetjobs.app import JetJobs
from jetjobs.config import load_settings
from jetjobs.model.settings import NatsSettings, Settings
from jetjobs.worker.options import Phase
from jetjobs.worker.worker import Worker


@contextlib.contextmanager
def on_server(app: JetJobs, url: str) -> Iterator[JetJobs]:
    """Point the app's settings at `url`, with memory storage; restore them afterwards. The app is not opened."""
    before = app.configure(None)
    app.configure(settings_for(before or load_settings(given=app.given_settings).settings, url))
    try:
        yield app
    finally:
        app.configure(before)


def settings_for(settings: Settings, url: str) -> Settings:
    """The same settings for the server of a test, without credentials and TLS."""
    kept = settings.nats
    nats = NatsSettings(url=url, inbox_prefix=kept.inbox_prefix, connect_timeout=kept.connect_timeout)
    queues = settings.queues.model_copy(update={"storage": "memory", "replicas": 1})
    return settings.model_copy(update={"nats": nats, "queues": queues})


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    """Run the worker while the block runs. Jobs that still run at the end are cancelled and released.

    An error that keeps the worker from starting is raised at the start, one that ends it early at the end.
    """
    run = asyncio.create_task(worker.run())
    try:
        while worker.phase is Phase.STARTING and not run.done():  # noqa: ASYNC110 - a phase cannot be awaited
            await asyncio.sleep(0.005)
        if not run.done():
            yield worker
    except BaseException:
        worker.stop(now=True)
        await asyncio.wait({run})
        raise
    worker.stop(now=True)
    await run
