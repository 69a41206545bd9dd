"""Run async code in a thread with its own event loop, so that helpers work in plain and in async tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.wire.subjects import Names

T = TypeVar("T")


def run_with_client(app: JetJobs, work: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    """Run `work` with a separate connection to the app's server. The app need not be open."""
    client = JetStreamClient(app.settings, Names(app.namespace), f"jetjobs-{app.name}-testing", lambda event: None)
    return run_in_thread(_with_client(client, work))


def run_in_thread(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on an event loop in a new thread and wait for its result."""
    # This thread may run an event loop already, and a thread can run only one.
    with ThreadPoolExecutor(1, "jetjobs-testing") as pool:
        return pool.submit(asyncio.run, work).result()


async def _with_client(client: JetStreamClient, work: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    await client.open()
    try:
        return await work(client)
    finally:
        await client.close()
