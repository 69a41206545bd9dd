"""Watches an event loop from a thread: when it last turned, and how long it took to in the last ten seconds."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque

EVERY_S = 0.25
WINDOW_S = 10.0


class LoopWatch:
    """Asks the loop for a sign of life every quarter of a second. A loop that is blocked cannot hide it: the time
    since the question counts as lag before there is an answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._turned_at = self._asked_at = time.monotonic()
        self._answered = True
        self._lags: deque[tuple[float, float]] = deque()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="jetjobs-loop-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2.0)

    @property
    def silent_s(self) -> float:
        """How long the loop has not turned."""
        return time.monotonic() - self._turned_at

    @property
    def lag_s(self) -> float:
        """The longest wait for an answer in the last ten seconds, the present one included."""
        now = time.monotonic()
        with self._lock:
            while self._lags and self._lags[0][0] < now - WINDOW_S:
                self._lags.popleft()
            longest = max((lag for _, lag in self._lags), default=0.0)
            return longest if self._answered else max(longest, now - self._asked_at)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            if not self._answered:
                continue  # one question at a time: a blocked loop must not find a heap of them
            self._answered, self._asked_at = False, time.monotonic()
            try:
                self._loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop is closed

    def _answer(self) -> None:
        """On the loop."""
        now = time.monotonic()
        with self._lock:
            self._turned_at = now
            self._lags.append((now, now - self._asked_at))
            while self._lags and self._lags[0][0] < now - WINDOW_S:
                self._lags.popleft()
            self._answered = True
