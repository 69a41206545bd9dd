"""An app on the server of a test: its settings for that time, and a worker beside it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from jetjobs.app import JetJobs
from jetjobs.model.settings import Settings
from jetjobs.worker.options import Phase
from jetjobs.worker.worker import Worker


@contextlib.contextmanager
def on_server(app: JetJobs, url: str) -> Iterator[JetJobs]:
    """The app with its settings pointed at `url`, everything in memory; put back afterwards. It is not opened."""
    before = app.configure(None)
    app.configure(settings_for(before or app.settings, url))
    try:
        yield app
    finally:
        app.configure(before)


def settings_for(settings: Settings, url: str) -> Settings:
    """The same settings for a server of a test. No credentials are taken along."""
    login = dict.fromkeys(("creds", "user", "password", "token", "tls_ca"))
    nats = settings.nats.model_copy(update={**login, "url": url})
    queues = settings.queues.model_copy(update={"storage": "memory", "replicas": 1})
    return settings.model_copy(update={"nats": nats, "queues": queues})


@contextlib.asynccontextmanager
async def working(worker: Worker) -> AsyncIterator[Worker]:
    """The worker at work while the block runs. What still runs at the end is cancelled and given back.

    What keeps the worker from starting is raised here, and what ends it early is raised at the end.
    """
    run = asyncio.create_task(worker.run())
    try:
        while worker.phase is Phase.STARTING and not run.done():  # noqa: ASYNC110 - observers are told only
            await asyncio.sleep(0.005)
        if not run.done():
            yield worker
    except BaseException:
        worker.stop()
        await asyncio.wait({run})
        raise
    worker.stop()
    await run
