"""The slots of a worker: the only place where room for a running job is taken and given back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping


class Slots:
    """`total` slots for all queues together. A queue may have a lower limit of its own."""

    def __init__(self, total: int, caps: Mapping[str, int | None]) -> None:
        self.total = total
        self.caps = {queue: cap for queue, cap in caps.items() if cap is not None}
        self.busy = 0
        self._busy_of: dict[str, int] = dict.fromkeys(self.caps, 0)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def free(self) -> int:
        return self.total - self.busy

    def free_for(self, queue: str) -> int:
        """How many more jobs of `queue` may start."""
        cap = self.caps.get(queue)
        return self.free if cap is None else min(self.free, cap - self._busy_of[queue])

    def take(self, queue: str) -> bool:
        """Take a slot if one is free."""
        if self.free_for(queue) <= 0:
            return False
        self.busy += 1
        if queue in self._busy_of:
            self._busy_of[queue] += 1
        self._idle.clear()
        return True

    def give_back(self, queue: str) -> None:
        self.busy -= 1
        if queue in self._busy_of:
            self._busy_of[queue] -= 1
        if not self.busy:
            self._idle.set()

    async def idle(self) -> None:
        """Wait until no slot is taken."""
        await self._idle.wait()
