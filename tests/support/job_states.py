"""Tasks whose jobs stay in each of the states."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from jetjobs import JetJobs, RetryPolicy

HOUR = timedelta(hours=1)
ONCE = RetryPolicy(max_attempts=1)


class StateTasks:
    """One task per state."""

    def __init__(self, app: JetJobs) -> None:
        self.gate = asyncio.Event()

        @app.task
        async def fine(n: int) -> int:
            return n

        @app.task(queue="other", retry=ONCE)
        async def broken(n: int) -> None:
            raise RuntimeError(f"number {n}")

        @app.task(retry=RetryPolicy(base=HOUR, jitter=False))
        async def fragile(n: int) -> None:
            raise RuntimeError("not yet")

        @app.task
        async def hold(n: int) -> str:
            await self.gate.wait()
            return "held"

        self.fine, self.broken, self.fragile, self.hold = fine, broken, fragile, hold
