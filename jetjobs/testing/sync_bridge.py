"""Run async code on the background loop, so that helpers work in plain and in async tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from jetjobs.app import JetJobs
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.wire.subjects import Names
from jetjobs.sync import run_in_background

T = TypeVar("T")


def run_with_client(app: JetJobs, work: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    """Run `work` with a separate connection to the app's server. The app need not be open."""
    client = JetStreamClient(app.settings, Names(app.namespace), f"jetjobs-{app.name}-testing", lambda event: None)
    return run_in_background(_with_client(client, work))


async def _with_client(client: JetStreamClient, work: Callable[[JetStreamClient], Awaitable[T]]) -> T:
    await client.open()
    try:
        return await work(client)
    finally:
        await client.close()
