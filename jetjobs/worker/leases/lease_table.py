"""The attempts that a worker holds. Detects leases that are lost."""

from __future__ import annotations

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.model.clock import SYSTEM_CLOCK, Clock
from jetjobs.model.events import LeaseLostEvent, Observer
from jetjobs.worker.attempt import Attempt, Interrupt


class LeaseTable:
    """All attempts of one worker. Deliveries that wait for a slot are held too: they have a lease as well."""

    def __init__(self, lease_s: float, observe: Observer, clock: Clock = SYSTEM_CLOCK) -> None:
        self.lease_s = lease_s
        """How long a lease lasts after a delivery or a heartbeat."""
        self.clock = clock
        self._observe = observe
        self._held: dict[tuple[str, int], Attempt] = {}

    def add(self, attempt: Attempt) -> None:
        self._held[attempt.key] = attempt

    def remove(self, attempt: Attempt) -> None:
        if self._held.get(attempt.key) is attempt:
            del self._held[attempt.key]

    @property
    def held(self) -> list[Attempt]:
        """A copy, so that any thread can walk it."""
        return list(self._held.values())

    def renew(self, queue: str, delivery: Delivery, received_at: float) -> bool:
        """Whether the redelivered message is held already. Then the lease starts again with this delivery."""
        attempt = self._held.get((queue, delivery.sequence))
        # Sequences start again in a stream that was deleted and recreated, so the subject must match too.
        if attempt is None or attempt.delivery.subject != delivery.subject:
            return False
        attempt.leased_until = max(attempt.leased_until, received_at + self.lease_s)
        return True

    def lose_expired(self, now: float) -> None:
        """Give up every attempt whose lease has run out."""
        for attempt in self.held:
            if now >= attempt.leased_until:
                self.lose(attempt)

    def lose(self, attempt: Attempt) -> None:
        """Stop an attempt whose lease is lost. Another worker may run the job, so nothing is settled."""
        self.remove(attempt)
        attempt.stop_running(Interrupt.LEASE_LOST)
        attempt.interrupt = Interrupt.LEASE_LOST
        job = attempt.job
        self._observe(LeaseLostEvent(attempt.queue, job.task if job else "", job.id if job else ""))
