"""What to do next when a list is empty, also on a server where nothing is set up yet."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from jetjobs.model.errors import TopologyMissing

if TYPE_CHECKING:
    from jetjobs.app import JetJobs

T = TypeVar("T")

NOT_SET_UP = "no queues; `jetjobs setup apply` creates those of your tasks, and so does `jetjobs worker`"


async def or_empty(app: JetJobs, reading: Awaitable[T], empty: T) -> T:
    """What was read; `empty` where nothing is set up yet. A single missing stream is an error."""
    try:
        return await reading
    except TopologyMissing:
        if await app.queues.names():
            raise
        return empty


async def next_step(app: JetJobs, text: str) -> str:
    """What to print after an empty list: `text`, or how to set up the server if nothing is there."""
    return text if await app.queues.names() else NOT_SET_UP
