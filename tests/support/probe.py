"""Wait for events and conditions instead of sleeping."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jetjobs.model.events import Event, JobFinished

E = TypeVar("E")


class Probe:
    """An observer that records events; `wait` returns when there are enough of a kind."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._changed.set()

    def of(self, kind: type[E], where: Callable[[E], bool] = lambda event: True) -> list[E]:
        return [event for event in self.events if isinstance(event, kind) and where(event)]

    async def wait(
        self, kind: type[E], count: int = 1, where: Callable[[E], bool] = lambda event: True, timeout: float = 15.0
    ) -> list[E]:
        """At least `count` events of `kind`; AssertionError with the latest events after the timeout."""
        try:
            async with asyncio.timeout(timeout):
                while len(found := self.of(kind, where)) < count:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"waited for {count} {kind.__name__}, saw {self.events[-20:]}") from None
        return found

    async def finished(
        self, count: int = 1, outcome: str | None = None, timeout: float = 15.0
    ) -> list[JobFinished]:
        return await self.wait(JobFinished, count, lambda e: outcome in (None, e.outcome), timeout)


async def eventually(
    check: Callable[[], Awaitable[E | None]], timeout: float = 15.0, where: Callable[[Any], object] = bool
) -> E:
    """Poll `check` until its result is true, or as `where` wants it. For state that only the server has."""
    async with asyncio.timeout(timeout):
        while (found := await check()) is None or not where(found):  # noqa: ASYNC110 - the server does not notify
            await asyncio.sleep(0.01)
    return found


async def wait_until(check: Callable[[], object], timeout: float = 15.0) -> None:
    """Return once `check` is true: for facts of this process."""
    async with asyncio.timeout(timeout):
        while not check():  # noqa: ASYNC110 - no event announces them
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def background(*lives: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run these while the block runs, and cancel them at its end."""
    tasks = [asyncio.create_task(life) for life in lives]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
