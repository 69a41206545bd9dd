"""Whether a delivery is still ours: by our own clock, before anybody has noticed."""

from __future__ import annotations

import time

from jetjobs.jetstream.delivery import Delivery
from jetjobs.worker.attempt import Attempt, Interrupt

ACK = "$JS.ACK.jobs-work-default.normal.1.7.7.1700000000000000000.0"


def held(lease_s: float) -> Attempt:
    delivery = Delivery(None, "jobs.work.default.normal.t.-.u", ACK, b"{}", None)  # type: ignore[arg-type]
    return Attempt(delivery, "default", "normal", time.monotonic(), lease_s)


def test_a_lease_is_ours_until_its_time_is_up() -> None:
    assert held(30.0).owned()


def test_a_lease_whose_time_is_up_is_not_ours_though_nobody_has_said_so() -> None:
    late = held(-1.0)
    assert late.interrupt is None
    assert not late.owned()


def test_a_lease_that_was_called_lost_is_not_ours_though_there_is_time_left() -> None:
    lost = held(30.0)
    lost.interrupt = Interrupt.LEASE_LOST
    assert not lost.owned()
