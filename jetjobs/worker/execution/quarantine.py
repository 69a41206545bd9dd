"""Quarantine: a job that may crash its worker runs with nothing new beside it. ADR 29."""

from __future__ import annotations

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.model.clock import SYSTEM_CLOCK, Clock
from jetjobs.model.wire import headers as h
from jetjobs.worker.attempt import Attempt

IDLE_WAIT_S = 10.0
"""How long a suspect waits for the jobs beside it to end. Then it starts beside those that still run."""
EXCLUSIVE_S = 60.0
"""How long nothing starts beside a suspect: a long one must not stop the worker from taking other jobs."""


class Quarantine:
    """The suspect of a worker, at most one at a time.

    A suspect is a job from lane `returned` that is one crash short of `max_crashes`.
    """

    def __init__(self, max_crashes: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self._max_crashes = max_crashes
        self._clock = clock
        self._started_at = 0.0
        """When the suspect was started. 0 while it waits."""
        self.suspect: Attempt | None = None

    def is_suspect(self, delivery: Delivery) -> bool:
        """Whether a delivery from lane `returned` is a suspect."""
        crashes = delivery.headers.get(h.CRASHES, "")
        readable = crashes.isascii() and crashes.isdigit() and len(crashes) <= 8
        return readable and int(crashes) >= self._max_crashes - 1 > 0

    @property
    def exclusive(self) -> bool:
        """Whether nothing but the suspect may start."""
        if self.suspect is None:
            return False
        return not self._started_at or self._clock.monotonic() - self._started_at < EXCLUSIVE_S

    @property
    def waiting(self) -> Attempt | None:
        """The suspect, if it has not started."""
        return self.suspect if not self._started_at else None

    def enter(self, attempt: Attempt) -> None:
        self.suspect, self._started_at = attempt, 0.0

    def leave(self, attempt: Attempt) -> None:
        if attempt is self.suspect:
            self.suspect = None

    def ready(self, busy: int) -> Attempt | None:
        """The suspect, if it may start now beside `busy` running jobs. A suspect without its lease leaves."""
        suspect = self.waiting
        if suspect is None:
            return None
        if not suspect.owned():
            self.suspect = None
            return None
        waited_s = self._clock.monotonic() - suspect.received_at
        return suspect if not busy or waited_s >= IDLE_WAIT_S else None

    def start(self) -> None:
        """The suspect starts."""
        self._started_at = self._clock.monotonic()
