"""Leases of held attempts: extended by heartbeats, and lost when they expire."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from jetjobs.jetstream.messages.get import StoredMessage
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.clock import SYSTEM_CLOCK, Clock
from jetjobs.model.errors import BrokerError
from jetjobs.model.events import LeaseLostEvent, Observer
from jetjobs.worker.attempt import Attempt, Interrupt

FIRST_HEARTBEAT_S = 0.5
SEEN_S = 10.0
"""A job that was held for longer is compared with its stream before it is acked. Within this time, an open pull
request of a full worker reports a stream that was recreated. ADR 41."""
MAX_ANSWER_S = 2.0
NO_RESPONDERS = 503


class LeaseTable:
    """All attempts of one worker. Deliveries that wait for a slot are held too: they have a lease as well."""

    def __init__(self, lease_s: float, observe: Observer, clock: Clock = SYSTEM_CLOCK) -> None:
        self.lease_s = lease_s
        """How long a lease lasts after a delivery or a heartbeat."""
        self.clock = clock
        self._observe = observe
        self._held: dict[tuple[str, int], Attempt] = {}
        self._compared = asyncio.Event()
        self.doubt: Callable[[Attempt], None] = lambda attempt: None
        """Puts an attempt in doubt: it is compared before it is acked or extended."""
        self.on_refused: Callable[[Attempt], None] = lambda attempt: None
        """Called in any thread when the lane of an attempt does not exist for a heartbeat."""

    def add(self, attempt: Attempt) -> bool:
        """Hold the attempt. False if this is a redelivery of a message that is held already: then the lease of
        that attempt starts again with this delivery."""
        other = self._held.setdefault(attempt.key, attempt)
        if other is attempt:
            return True
        if is_same_message(other, attempt.delivery):
            other.leased_until = max(other.leased_until, attempt.leased_until)
            return False
        self.lose(other)
        self._held[attempt.key] = attempt
        return True

    def remove(self, attempt: Attempt) -> None:
        if self._held.get(attempt.key) is attempt:
            del self._held[attempt.key]

    @property
    def held(self) -> list[Attempt]:
        """A copy, so that any thread can walk it."""
        return list(self._held.values())

    def holds(self, attempt: Attempt) -> bool:
        return self._held.get(attempt.key) is attempt

    def doubt_old(self, attempt: Attempt) -> None:
        """Put an attempt in doubt if its message was last seen long ago."""
        if not attempt.doubt and self.clock.monotonic() - attempt.seen_at > SEEN_S:
            self.doubt(attempt)

    async def until_compared(self, attempt: Attempt) -> bool:
        """Wait while the attempt is in doubt and its lease lasts. Returns whether its lease is still ours."""
        while attempt.doubt and attempt.owned():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(attempt.leased_until - self.clock.monotonic()):
                    await self._compared.wait()
        return attempt.owned()

    def wake_compared(self) -> None:
        """Let waiting attempts see whether they are still in doubt."""
        self._compared.set()
        self._compared.clear()

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


def is_same_message(attempt: Attempt, other: Delivery | StoredMessage) -> bool:
    """Whether both are one message. The sequence alone does not show it: a stream that was restored or recreated
    uses it again. The stored time differs then, even for the same subject."""
    delivery = attempt.delivery
    return delivery.subject == other.subject and delivery.stored_at == other.stored_at


class Heartbeats:
    """The heartbeats that one thread sends. Each thread has its own object, because a set of tasks belongs to
    the event loop that runs them."""

    def __init__(self, leases: LeaseTable) -> None:
        self._leases = leases
        self._sending: set[asyncio.Task[None]] = set()

    def send(self, now: float, connection: Connection, share: float) -> None:
        """Extend every lease of which more than `share` has passed."""
        lease_s = self._leases.lease_s
        for attempt in self._leases.held:
            due = now - attempt.heartbeat_at >= lease_s * share or self._first_is_due(attempt, now)
            if due and self._may_extend(attempt, now):
                task = asyncio.get_running_loop().create_task(self._extend(attempt, now, connection))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)

    async def shorten(self, lease_s: float, connection: Connection) -> int:
        """Use a shorter lease from now on, and extend all held leases at once: the server will count the shorter
        one from their last heartbeats. Returns how many heartbeats the server has not confirmed. ADR 43."""
        self._leases.lease_s = lease_s
        now = self._leases.clock.monotonic()
        doubtful = sum(attempt.doubt > 0 for attempt in self._leases.held)
        held = [attempt for attempt in self._leases.held if self._may_extend(attempt, now)]
        await asyncio.gather(*(self._extend(attempt, now, connection) for attempt in held))
        confirmed = [attempt for attempt in held if attempt.heartbeat_at >= now]
        for attempt in confirmed:
            attempt.leased_until = min(attempt.leased_until, attempt.heartbeat_at + lease_s)
        return len(held) - len(confirmed) + doubtful

    def _may_extend(self, attempt: Attempt, now: float) -> bool:
        # Past its time limit a task gets no more heartbeats: code that never ends must not keep its job.
        overdue = attempt.running and now > attempt.expires_at + self._leases.lease_s
        return not overdue and not attempt.doubt and now < attempt.leased_until

    async def _extend(self, attempt: Attempt, now: float, connection: Connection) -> None:
        """Send one heartbeat. The lease counts from the time it was sent, and only if the server answered: on a
        broken connection a heartbeat extends nothing. ADR 10."""
        before, attempt.heartbeat_at = attempt.heartbeat_at, now
        try:
            await attempt.delivery.extend(connection, min(MAX_ANSWER_S, self._leases.lease_s / 3))
        except BrokerError as error:
            attempt.heartbeat_at = before  # due again at the next turn
            if error.code == NO_RESPONDERS:
                self._leases.on_refused(attempt)
        else:
            attempt.leased_until = max(attempt.leased_until, now + self._leases.lease_s)

    def _first_is_due(self, attempt: Attempt, now: float) -> bool:
        """Whether a job that had been queued for long needs its first heartbeat early. Until then the server
        counts the lease from the time the job was stored, and would redeliver it after a restart."""
        age = now - attempt.received_at
        if attempt.heartbeat_at != attempt.received_at or age < min(FIRST_HEARTBEAT_S, self._leases.lease_s / 6):
            return False
        return self._leases.clock.time() - age - attempt.delivery.stored_at > self._leases.lease_s / 2
