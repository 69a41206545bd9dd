"""A suspect runs with nothing new beside it, one at a time, and never blocks the worker indefinitely."""

from __future__ import annotations

from typing import Any, cast

import pytest

from jetjobs.jetstream.pull.puller import LanePuller
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.execution.quarantine import EXCLUSIVE_S, IDLE_WAIT_S, Quarantine
from jetjobs.worker.intake.dispatcher import Dispatcher
from jetjobs.worker.intake.slots import Slots
from jetjobs.worker.leases.lease_table import LeaseTable
from jetjobs.worker.leases.loop_monitor import LoopMonitor
from tests.support.clock import FakeClock


class FakeAttempt:
    """What the dispatcher knows of an attempt."""

    def __init__(self, received_at: float, alone: bool) -> None:
        self.queue = "default"
        self.received_at = received_at
        self.suspect = alone
        self.ours = True

    def owned(self) -> bool:
        return self.ours


class FakePuller:
    queue = "default"
    blocked = False
    pending = owed = 0
    mean_bytes = 0.0

    def __init__(self, lane: str) -> None:
        self.lane = lane


class Bench:
    """A dispatcher of four slots, a clock, and what was done."""

    def __init__(self, caps: dict[str, int] | None = None) -> None:
        self.clock = FakeClock()
        self.slots = Slots(4, caps or {})
        self.started: list[Any] = []
        self.released: list[Any] = []
        self.asked: list[str] = []
        self.dropped = 0
        self.dispatcher = Dispatcher(
            self.slots,
            LeaseTable(30.0, lambda event: None, self.clock),
            LoopMonitor(self.clock),
            Quarantine(3, self.clock),
            self.started.append,
            self.released.append,
            lambda event: None,
        )
        pullers = [FakePuller(lane) for lane in ("normal", "returned")]
        for puller in pullers:
            puller.ask = lambda count, *, backlog, lane=puller.lane: self.asked.append(lane)  # type: ignore[attr-defined]
        self.dispatcher.use(cast(list[LanePuller], pullers), lambda puller: None, self.drop, lambda queue: None)

    def drop(self) -> None:
        self.dropped += 1

    def arrives(self, *, alone: bool = True) -> Attempt:
        attempt = cast(Attempt, FakeAttempt(self.clock.now, alone))
        self.dispatcher._place(attempt)
        return attempt

    def ends(self, attempt: Attempt) -> None:
        self.dispatcher.on_end(attempt)

    def lanes_asked(self) -> list[str]:
        self.asked.clear()
        self.dispatcher._pull()
        return self.asked


@pytest.fixture
async def bench() -> Bench:
    return Bench()


async def test_a_suspect_starts_at_once_on_an_idle_worker_and_alone(bench: Bench) -> None:
    assert bench.lanes_asked() == ["normal", "returned"]
    first, second, other = bench.arrives(), bench.arrives(), bench.arrives(alone=False)
    assert (bench.started, bench.released) == ([first], [second, other])
    assert bench.dropped == 1  # no request is left open, on whatever lane
    assert bench.lanes_asked() == []
    bench.ends(first)
    assert bench.lanes_asked() == ["normal", "returned"]
    second = bench.arrives()
    assert bench.started == [first, second]


async def test_it_waits_for_what_runs_and_then_starts_beside_it(bench: Bench) -> None:
    quick, slow = bench.arrives(alone=False), bench.arrives(alone=False)
    suspect = bench.arrives()
    assert bench.lanes_asked() == []
    bench.clock.now += IDLE_WAIT_S - 0.1
    bench.ends(quick)
    bench.dispatcher.tick()
    assert bench.started == [quick, slow]
    bench.clock.now += 0.1
    bench.dispatcher.tick()
    assert bench.started == [quick, slow, suspect]


async def test_what_waits_for_a_slot_is_given_back_when_a_suspect_comes(bench: Bench) -> None:
    running = [bench.arrives(alone=False) for _ in range(4)]
    surplus = bench.arrives(alone=False)
    assert bench.released == []
    suspect = bench.arrives()
    assert bench.released == [surplus]
    for one in running:
        bench.ends(one)
    assert bench.started == [*running, suspect]


async def test_one_that_finds_no_slot_is_given_back(bench: Bench) -> None:
    for _ in range(4):
        bench.arrives(alone=False)
    suspect = bench.arrives()
    bench.clock.now += IDLE_WAIT_S
    bench.dispatcher.tick()
    assert bench.released == [suspect]
    assert bench.lanes_asked() == []  # for it would come again at once
    assert suspect not in bench.started


async def test_a_long_run_alone_ends_the_exclusion_but_lets_no_other_suspect_in(bench: Bench) -> None:
    suspect = bench.arrives()
    bench.clock.now += EXCLUSIVE_S
    bench.dispatcher.tick()
    assert bench.lanes_asked() == ["normal"]
    other, second = bench.arrives(alone=False), bench.arrives()
    assert (bench.started, bench.released) == ([suspect, other], [second])
    bench.ends(suspect)
    assert bench.lanes_asked() == ["normal", "returned"]


async def test_one_whose_lease_is_gone_is_not_started(bench: Bench) -> None:
    other = bench.arrives(alone=False)
    suspect = cast(FakeAttempt, bench.arrives())
    suspect.ours = False
    bench.ends(other)
    assert (bench.started, bench.released) == ([other], [])
    assert bench.lanes_asked() == ["normal", "returned"]


async def test_one_that_waits_is_given_back_on_stop_and_one_that_runs_is_not(bench: Bench) -> None:
    other = bench.arrives(alone=False)
    suspect = bench.arrives()
    bench.dispatcher.close()
    assert bench.released == [suspect]
    bench.ends(other)
    assert bench.started == [other]


async def test_a_start_that_ends_the_intake_leaves_the_suspect_started_once(bench: Bench) -> None:
    def start(attempt: Attempt) -> None:
        bench.started.append(attempt)
        bench.dispatcher.close()  # as the last job of --max-jobs does

    bench.dispatcher._start = start
    suspect = bench.arrives()
    assert (bench.started, bench.released) == ([suspect], [])
