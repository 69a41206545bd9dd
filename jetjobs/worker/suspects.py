"""Jobs that were in hand at one crash after another: each gets a run with nothing new beside it. ADR 11."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from jetjobs.worker.attempt import Attempt
from jetjobs.worker.slots import Slots

IDLE_WAIT_S = 10.0
"""How long a suspect waits for the jobs beside it to end; then it starts beside what is left of them."""
ALONE_S = 60.0
"""How long nothing is started beside a suspect: one that lives so long must not hold up the worker for ever."""


class Suspects:
    """Those that wait and the one that runs. While `exclusive`, the dispatcher starts nothing else."""

    def __init__(self, slots: Slots, start: Callable[[Attempt], None], release: Callable[[Attempt], None]) -> None:
        self._slots = slots
        self._start = start
        self._release = release
        self._waiting: deque[Attempt] = deque()
        self._alone: Attempt | None = None
        self._alone_since = 0.0

    @property
    def occupied(self) -> bool:
        """Whether one runs: no other is wanted meanwhile."""
        return self._alone is not None

    @property
    def exclusive(self) -> bool:
        if self._alone is not None:
            return time.monotonic() - self._alone_since < ALONE_S
        return bool(self._waiting)

    def add(self, attempt: Attempt) -> None:
        self._waiting.append(attempt)
        self.advance()

    def advance(self) -> None:
        """Start the next one if it may start. Called when a slot came free, and now and then."""
        if self._alone is not None and not self.exclusive:
            for attempt in self.give_up():  # one that runs for so long is not to hold up the others
                self._release(attempt)
        while self._waiting and self._alone is None:
            attempt = self._waiting[0]
            if attempt.owned():
                waited = time.monotonic() - attempt.received_at
                if (self._slots.busy and waited < IDLE_WAIT_S) or not self._slots.take(attempt.queue):
                    return
                # Out of the queue before it starts: the start may be the worker's last, and what waits then goes.
                self._waiting.popleft()
                self._alone, self._alone_since = attempt, time.monotonic()
                self._start(attempt)
            else:
                self._waiting.popleft()

    def ended(self, attempt: Attempt) -> None:
        if attempt is self._alone:
            self._alone = None

    def give_up(self) -> list[Attempt]:
        """Those that have not started, to be given back."""
        waiting, self._waiting = list(self._waiting), deque()
        return waiting
