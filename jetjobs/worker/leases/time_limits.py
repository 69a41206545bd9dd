"""Interrupt tasks that exceed their time limit."""

from __future__ import annotations

import asyncio
import math

from jetjobs.worker.attempt import Attempt, Interrupt
from jetjobs.worker.leases.lease_table import LeaseTable


class TimeLimits:
    """One timer for all attempts, set to the earliest time limit."""

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases
        self._clock = leases.clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def limit(self, attempt: Attempt, expires_at: float) -> None:
        """Interrupt the attempt at `expires_at` if it still runs."""
        attempt.expires_at = expires_at
        if expires_at < self._timer_at:
            self._start_timer(expires_at)

    def expire(self) -> None:
        """Interrupt what has exceeded its limit, and set the timer for what has not."""
        now = self._clock.monotonic()
        self._timer, self._timer_at = None, math.inf
        following = math.inf
        for attempt in self._leases.held:
            if not attempt.running:
                continue
            if attempt.expires_at <= now:
                attempt.stop_running(Interrupt.TIMEOUT)
            else:
                following = min(following, attempt.expires_at)
        if following < math.inf:
            self._start_timer(following)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self, when: float) -> None:
        self.close()
        self._timer_at = when
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(0.0, when - self._clock.monotonic()), self.expire)
