"""Run async code on the background loop, so that helpers work in plain and in async tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.settings import Settings
from jetjobs.sync import run_in_background

T = TypeVar("T")


def run_with_client(app: JetJobs, work: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    """Run `work` with a separate connection to the app's server. The app need not be open."""
    return run_in_background(_with_client(app.settings, f"jetjobs-{app.name}-testing", work))


async def _with_client(settings: Settings, name: str, work: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    client = JetStreamClient(settings, name, lambda event: None)
    await client.open()
    try:
        return await work(client)
    finally:
        await client.close()
