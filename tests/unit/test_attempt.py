"""Whether a delivery is still ours: by our own clock, before anybody has noticed."""

from __future__ import annotations

import time

from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.worker.attempt import Attempt, Interrupt

ACK = "$JS.ACK.jobs-work-default.normal.1.7.7.1700000000000000000.0"


def held(lease_s: float) -> Attempt:
    delivery = Delivery(None, "jobs.work.default.normal.t.-.u", ACK, b"{}", None)  # type: ignore[arg-type]
    return Attempt(delivery, "default", "normal", time.monotonic(), lease_s)


def test_a_lease_is_ours_until_its_time_is_up_or_it_was_called_lost() -> None:
    assert held(30.0).owned()
    assert not held(-1.0).owned()
    lost = held(30.0)
    lost.interrupt = Interrupt.LEASE_LOST
    assert not lost.owned()
