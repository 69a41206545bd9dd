"""Whether a worker still holds a lease, by its own clock."""

from __future__ import annotations

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.worker.attempt import Attempt, Interrupt
from tests.support.clock import FakeClock

ACK = "$JS.ACK.jobs-work-default.normal.1.7.7.1700000000000000000.0"


def held(clock: FakeClock) -> Attempt:
    delivery = Delivery(None, "jobs.work.default.normal.t.-.u", ACK, b"{}", None)  # type: ignore[arg-type]
    return Attempt(delivery, "default", "normal", clock.now, 30.0, clock)


def test_a_lease_is_ours_until_its_time_is_up_or_it_was_called_lost() -> None:
    clock = FakeClock()
    attempt = held(clock)
    clock.now += 29.9
    assert attempt.owned()
    clock.now += 0.1
    assert not attempt.owned()
    lost = held(clock)
    assert lost.owned()
    lost.interrupt = Interrupt.LEASE_LOST
    assert not lost.owned()
