"""Ask the server from a thread of its own, so that a plain call works in plain and in async tests alike."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.settings import Settings

T = TypeVar("T")


def ask(app: JetJobs, question: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    """What `question` finds on the app's server, over a connection of its own. The app need not be open."""
    return run_aside(_asked(app.settings, f"jetjobs-{app.name}-testing", question))


def run_aside(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on an event loop in a thread, and wait for it here."""
    # A loop may run in this thread already, and it would not run a second one.
    with ThreadPoolExecutor(1, "jetjobs-testing") as pool:
        return pool.submit(asyncio.run, work).result()


async def _asked(settings: Settings, name: str, question: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    client = JetStreamClient(settings, name, lambda event: None)
    await client.open()
    try:
        return await question(client)
    finally:
        await client.close()
