"""Suspects: one at a time, with nothing new beside them, but never holding up the worker for ever."""

from __future__ import annotations

from typing import Any, cast

import pytest

from jetjobs.worker import suspects
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.slots import Slots
from jetjobs.worker.suspects import ALONE_S, IDLE_WAIT_S, Suspects


class FakeAttempt:
    """What Suspects know of an attempt."""

    def __init__(self, received_at: float, ours: bool = True) -> None:
        self.queue = "default"
        self.received_at = received_at
        self.ours = ours

    def owned(self) -> bool:
        return self.ours


def attempt(received_at: float = 0.0, ours: bool = True) -> Attempt:
    return cast(Attempt, FakeAttempt(received_at, ours))


@pytest.fixture
async def slots() -> Slots:
    return Slots(4, {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now[0]

    monkeypatch.setattr(suspects, "time", Time)
    return now


async def test_a_suspect_starts_at_once_on_an_idle_worker_and_alone(slots: Slots, clock: list[float]) -> None:
    started: list[Any] = []
    queue = Suspects(slots, started.append, lambda attempt: None)
    assert not queue.exclusive
    first, second = attempt(), attempt()
    queue.add(first)
    assert started == [first]
    assert queue.exclusive
    queue.add(second)
    assert started == [first]
    slots.give_back("default")
    queue.ended(first)
    queue.advance()
    assert started == [first, second]


async def test_it_waits_for_what_runs_but_not_for_ever(slots: Slots, clock: list[float]) -> None:
    started: list[Any] = []
    queue = Suspects(slots, started.append, lambda attempt: None)
    assert slots.take("default")
    one = attempt()
    queue.add(one)
    assert started == []
    assert queue.exclusive  # nothing new may start meanwhile
    clock[0] = IDLE_WAIT_S - 0.1
    queue.advance()
    assert started == []
    clock[0] = IDLE_WAIT_S
    queue.advance()
    assert started == [one]


async def test_a_long_run_alone_ends_the_exclusion(slots: Slots, clock: list[float]) -> None:
    released: list[Any] = []
    queue = Suspects(slots, lambda attempt: None, released.append)
    queue.add(attempt())
    assert queue.exclusive
    second = attempt()
    queue.add(second)
    clock[0] = ALONE_S
    assert not queue.exclusive
    assert queue.occupied
    queue.advance()
    assert released == [second]  # it is not to wait for the first, nor to run beside it


async def test_the_time_alone_counts_from_the_start(slots: Slots, clock: list[float]) -> None:
    queue = Suspects(slots, lambda attempt: None, lambda attempt: None)
    clock[0] = 1000.0
    queue.add(attempt(received_at=1000.0 - ALONE_S))
    assert queue.exclusive


async def test_a_start_that_ends_the_intake_leaves_the_suspect_started_once(
    slots: Slots, clock: list[float]
) -> None:
    started: list[Any] = []
    given_up: list[Any] = []

    def start(attempt: Attempt) -> None:
        started.append(attempt)
        given_up.extend(queue.give_up())  # as the last job of --max-jobs does

    queue = Suspects(slots, start, lambda attempt: None)
    one = attempt()
    queue.add(one)
    assert (started, given_up) == ([one], [])


async def test_one_whose_lease_is_gone_is_not_started(slots: Slots, clock: list[float]) -> None:
    started: list[Any] = []
    queue = Suspects(slots, started.append, lambda attempt: None)
    queue.add(attempt(ours=False))
    assert started == []
    assert not queue.exclusive


async def test_those_that_wait_are_handed_back_on_stop(slots: Slots, clock: list[float]) -> None:
    queue = Suspects(slots, lambda attempt: None, lambda attempt: None)
    slots.take("default")
    one = attempt()
    queue.add(one)
    assert queue.give_up() == [one]
    assert queue.give_up() == []
