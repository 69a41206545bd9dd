"""Apps that are provisioned and workers that run for the length of a block. The fixture `probe` records events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jetjobs import JetJobs, Worker
from jetjobs.worker.worker import running as running


@asynccontextmanager
async def provisioned(app: JetJobs) -> AsyncIterator[JetJobs]:
    """Open `app` and provision its queues. Declare the tasks first."""
    async with app:
        await app.provision()
        yield app


@asynccontextmanager
async def provisioned_worker(app: JetJobs, **options: Any) -> AsyncIterator[Worker]:
    """Provision `app` and run one worker with these options, which stops at the end of the block."""
    async with provisioned(app), running(app.worker(**options)) as worker:
        yield worker
