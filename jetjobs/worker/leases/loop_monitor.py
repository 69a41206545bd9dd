"""Tick on the worker's event loop, and measure how late the ticks are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from jetjobs.model.clock import SYSTEM_CLOCK, Clock

TICK_S = 0.25
LAG_WINDOW_S = 10.0
STALL_S = 1.0
"""Without a tick for this long the event loop was blocked or the process frozen."""


class LoopMonitor:
    """Any thread may read it: a blocked event loop cannot hide that it is blocked."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._ticking = False
        self._lags: deque[float] = deque(maxlen=round(LAG_WINDOW_S / TICK_S))
        self.ticked_at = clock.monotonic()
        """The time of the last tick."""

    async def run(
        self,
        interval_s: Callable[[], float],
        on_tick: Callable[[float], None],
        on_stall: Callable[[float], None],
    ) -> None:
        """Call `on_tick` with the time after every interval, until cancelled. After a stall, call
        `on_stall` first with the time of the tick before it."""
        self.ticked_at = self._clock.monotonic()  # a slow start is not a stall: no job was pulled yet
        self._ticking = True
        try:
            while True:
                pause = interval_s()
                await asyncio.sleep(pause)
                self.tick(pause, on_tick, on_stall)
        finally:
            self._ticking = False

    def tick(self, pause: float, on_tick: Callable[[float], None], on_stall: Callable[[float], None]) -> None:
        """One tick, `pause` seconds after the last one if the event loop is not late."""
        now = self._clock.monotonic()
        since, self.ticked_at = self.ticked_at, now
        self._lags.append(max(0.0, now - since - pause))
        if now - since > STALL_S:
            on_stall(since)
        on_tick(now)

    @property
    def silent_s(self) -> float:
        """Seconds since the last tick. 0 while the monitor does not run."""
        return self._clock.monotonic() - self.ticked_at if self._ticking else 0.0

    @property
    def lag_s(self) -> float:
        """The longest delay of a tick within the last ten seconds, the current one included."""
        return max(self.silent_s - TICK_S, 0.0, *tuple(self._lags))
