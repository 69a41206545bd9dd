"""Leases on a clock that the test sets: held, renewed, lost, extended by heartbeats, limited in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.events import Event, LeaseLostEvent
from jetjobs.model.job import Job
from jetjobs.model.wire.subjects import Names
from jetjobs.worker.attempt import Attempt, Interrupt, Progress
from jetjobs.worker.leases.lease_table import Heartbeats, LeaseTable
from jetjobs.worker.leases.loop_monitor import STALL_S, TICK_S, LoopMonitor
from jetjobs.worker.leases.running_records import LATE_S, MIN_RUN_S, RunningRecords
from jetjobs.worker.leases.time_limits import TimeLimits
from tests.support.clock import FakeClock

LEASE_S = 30.0


class FakeConnection:
    """Records what is sent. `reachable` says whether the server answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.posted: list[tuple[str, bytes]] = []
        self.reachable = True
        self.code = 0

    async def ask(self, subject: str, data: bytes, headers: Mapping[str, str] | None, timeout_s: float) -> None:
        self.asked.append(subject)
        if not self.reachable:
            raise BrokerUnavailable("no answer", code=self.code)

    def post(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> bool:
        self.posted.append((subject, data))
        return True


class Held:
    """A lease table, its clock, a connection, and the events."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.events: list[Event] = []
        self.leases = LeaseTable(LEASE_S, self.events.append, self.clock)
        self.sent = FakeConnection()
        self.connection = cast(Connection, self.sent)
        self.heartbeats = Heartbeats(self.leases)

    def attempt(self, sequence: int = 7, *, stored_s_ago: float = 0.0, subject: str = "jobs.work.a") -> Attempt:
        stored_ns = int((self.clock.time() - stored_s_ago) * 1e9)
        ack = f"$JS.ACK.jobs-work-default.normal.1.{sequence}.{sequence}.{stored_ns}.0"
        delivery = Delivery(self.connection, subject, ack, b"{}", None)
        attempt = Attempt(delivery, "default", "normal", self.clock.now, self.leases.lease_s, self.clock)
        self.leases.add(attempt)
        return attempt

    def started(self, sequence: int = 7, limit_s: float = 600.0) -> tuple[Attempt, asyncio.Task[None]]:
        attempt = self.attempt(sequence)
        attempt.job = Job("j1", "work", "default", "normal", b"", run="r1")
        attempt.running, attempt.started_at = True, self.clock.now
        attempt.expires_at = self.clock.now + limit_s
        attempt.asyncio_task = task = asyncio.get_running_loop().create_task(asyncio.sleep(3600))
        return attempt, task

    async def beat(self, share: float = 1 / 3) -> int:
        """How many heartbeats are sent now."""
        before = len(self.sent.asked)
        self.heartbeats.send(self.clock.now, self.connection, share)
        await asyncio.gather(*self.heartbeats._sending)
        return len(self.sent.asked) - before


@pytest.fixture
async def held() -> Held:
    return Held()


# The table


async def test_a_lease_that_runs_out_is_lost_and_its_task_cancelled(held: Held) -> None:
    attempt, task = held.started()
    held.clock.now += LEASE_S - 0.1
    held.leases.lose_expired(held.clock.now)
    assert (held.leases.held, held.events) == ([attempt], [])
    held.clock.now += 0.1
    held.leases.lose_expired(held.clock.now)
    assert held.leases.held == []
    assert held.events == [LeaseLostEvent("default", "work", "j1")]
    assert attempt.interrupt is Interrupt.LEASE_LOST
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_redelivery_of_a_held_message_renews_its_lease(held: Held) -> None:
    attempt = held.attempt()
    held.clock.now += 20.0
    again = Attempt(attempt.delivery, "default", "normal", held.clock.now, LEASE_S, held.clock)
    assert not held.leases.add(again)
    assert (held.leases.held, attempt.leased_until) == ([attempt], held.clock.now + LEASE_S)


@pytest.mark.parametrize("change", ["subject", "time"])
async def test_another_message_with_the_sequence_of_a_held_one_ends_that_lease(held: Held, change: str) -> None:
    """As in a stream that was recreated or restored from an older copy."""
    attempt, task = held.started()
    other = held.attempt(subject="jobs.work.b") if change == "subject" else held.attempt(stored_s_ago=0.001)
    assert held.leases.held == [other]
    assert held.events == [LeaseLostEvent("default", "work", "j1")]
    assert not attempt.owned()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_attempt_that_was_replaced_does_not_remove_its_successor(held: Held) -> None:
    first = held.attempt()
    second = held.attempt(subject="jobs.work.b")
    held.leases.remove(first)
    assert held.leases.held == [second]


async def test_an_attempt_in_doubt_waits_until_it_has_been_compared(held: Held) -> None:
    attempt = held.attempt()
    attempt.doubt = 1
    waiting = asyncio.create_task(held.leases.until_compared(attempt))
    await asyncio.sleep(0)
    held.leases.wake_compared()  # another attempt has been compared
    await asyncio.sleep(0)
    assert not waiting.done()
    attempt.doubt = 0
    held.leases.wake_compared()
    assert await waiting


async def test_an_attempt_in_doubt_waits_no_longer_than_its_lease(held: Held) -> None:
    attempt = held.attempt()
    attempt.doubt = 1
    held.clock.now += LEASE_S
    assert not await held.leases.until_compared(attempt)


# Heartbeats


async def test_a_heartbeat_is_sent_after_a_third_of_the_lease_and_extends_it_from_then(held: Held) -> None:
    attempt = held.attempt()
    held.clock.now += LEASE_S / 3 - 0.1
    assert await held.beat() == 0
    held.clock.now += 0.1
    assert await held.beat() == 1
    assert attempt.leased_until == held.clock.now + LEASE_S
    assert await held.beat() == 0


async def test_a_heartbeat_without_an_answer_extends_nothing_and_is_sent_again(held: Held) -> None:
    attempt = held.attempt()
    leased_until = attempt.leased_until
    held.clock.now += LEASE_S / 2
    held.sent.reachable = False
    assert await held.beat() == 1
    assert attempt.leased_until == leased_until
    held.sent.reachable = True
    assert await held.beat() == 1
    assert attempt.leased_until == held.clock.now + LEASE_S


async def test_an_attempt_in_doubt_gets_no_heartbeat(held: Held) -> None:
    attempt = held.attempt()
    attempt.doubt = 1
    held.clock.now += LEASE_S / 2
    assert await held.beat() == 0
    attempt.doubt = 0
    assert await held.beat() == 1


async def test_a_heartbeat_that_nobody_receives_is_reported(held: Held) -> None:
    """The lane is gone, and so may be its stream."""
    attempt = held.attempt()
    refused: list[Attempt] = []
    held.leases.on_refused = refused.append
    held.clock.now += LEASE_S / 2
    held.sent.reachable = False
    await held.beat()
    assert refused == []  # no answer says nothing about the lane
    held.sent.code = 503
    await held.beat()
    assert refused == [attempt]


async def test_an_expired_lease_gets_no_heartbeat(held: Held) -> None:
    held.attempt()
    held.clock.now += LEASE_S
    assert await held.beat() == 0


async def test_a_task_far_beyond_its_time_limit_gets_no_heartbeat(held: Held) -> None:
    attempt, task = held.started(limit_s=5.0)
    held.clock.now += 5.0 + LEASE_S + 0.1
    attempt.leased_until = held.clock.now + LEASE_S
    assert await held.beat() == 0
    task.cancel()


async def test_a_job_that_was_queued_for_long_gets_its_first_heartbeat_early(held: Held) -> None:
    held.attempt(1, stored_s_ago=LEASE_S)
    held.attempt(2, stored_s_ago=1.0)
    held.clock.now += 0.4
    assert await held.beat() == 0
    held.clock.now += 0.2
    assert await held.beat() == 1
    assert await held.beat() == 0


async def test_a_shorter_lease_is_counted_from_a_confirmed_heartbeat_for_every_held_job(held: Held) -> None:
    first, second = held.attempt(1), held.attempt(2)
    held.clock.now += 9.0
    assert await held.heartbeats.shorten(3.0, held.connection) == 0
    assert len(held.sent.asked) == 2
    assert {first.leased_until, second.leased_until} == {held.clock.now + 3.0}
    held.clock.now += 1.1
    assert await held.beat() == 2
    assert first.leased_until == held.clock.now + 3.0


async def test_a_heartbeat_that_is_not_confirmed_leaves_its_lease_as_it_was_when_leases_are_shortened(
    held: Held,
) -> None:
    attempt = held.attempt()
    leased_until = attempt.leased_until
    held.clock.now += 9.0
    held.sent.reachable = False
    assert await held.heartbeats.shorten(3.0, held.connection) == 1
    assert attempt.leased_until == leased_until
    held.sent.reachable = True
    assert await held.beat() == 1  # due at once


# Time limits


async def test_only_what_has_exceeded_its_limit_is_interrupted(held: Held) -> None:
    limits = TimeLimits(held.leases)
    (short, first), (long, second) = held.started(1), held.started(2)
    limits.limit(short, held.clock.now + 5.0)
    limits.limit(long, held.clock.now + 50.0)
    held.clock.now += 5.0
    limits.expire()
    assert (short.interrupt, long.interrupt) == (Interrupt.TIMEOUT, None)
    short.running = False
    held.clock.now += 45.0
    limits.expire()
    assert long.interrupt is Interrupt.TIMEOUT
    limits.close()
    await asyncio.gather(first, second, return_exceptions=True)


# The monitor


async def test_a_late_tick_is_lag_and_a_very_late_one_a_stall() -> None:
    clock = FakeClock()
    monitor = LoopMonitor(clock)
    ticks: list[float] = []
    stalls: list[float] = []

    def tick(after_s: float) -> None:
        clock.now += after_s
        monitor.tick(TICK_S, ticks.append, stalls.append)

    tick(TICK_S)
    assert (monitor.lag_s, ticks, stalls) == (0.0, [clock.now], [])
    tick(TICK_S + 0.5)
    assert (monitor.lag_s, stalls) == (0.5, [])
    before = clock.now
    tick(STALL_S + 1.0)
    assert stalls == [before]
    for _ in range(40):
        tick(TICK_S)
    assert monitor.lag_s == 0.0


# Running records


def records_of(held: Held, monitor: LoopMonitor) -> RunningRecords:
    jetstream = SimpleNamespace(connection=held.connection, names=Names("jobs"))
    return RunningRecords(cast(JetStreamClient, jetstream), "w", held.leases, monitor)


def records_in(held: Held) -> list[dict[str, Any]]:
    return [json.loads(data) for subject, data in held.sent.posted if subject == "$KV.jobs-running.j1" and data]


async def test_a_record_is_written_of_a_job_that_lasts_and_again_when_it_gets_old(held: Held) -> None:
    records = records_of(held, LoopMonitor(held.clock))
    _, task = held.started()
    held.clock.now += MIN_RUN_S - 0.05
    records.write_due(held.clock.now)
    assert records_in(held) == []
    held.clock.now += 0.05
    for _ in range(3):
        records.write_due(held.clock.now)
    (record,) = records_in(held)
    assert (record["id"], record["task"], record["worker"]) == ("j1", "work", "w")
    assert record["started_at"] == held.clock.time() - MIN_RUN_S
    held.clock.now += LEASE_S / 3
    records.write_due(held.clock.now)
    assert len(records_in(held)) == 2
    task.cancel()


async def test_new_progress_is_published_once_at_the_next_tick(held: Held) -> None:
    records = records_of(held, LoopMonitor(held.clock))
    attempt, task = held.started()
    held.clock.now += 1.0
    attempt.progress = Progress(0.5, "half")
    for _ in range(3):
        records.write_due(held.clock.now)
    records.publish_last_progress(attempt)
    published = [data for subject, data in held.sent.posted if subject.startswith("jobs.events.job.progress.")]
    assert [json.loads(data)["progress"] for data in published] == [0.5]
    task.cancel()


async def test_the_thread_writes_records_only_while_the_event_loop_is_late(held: Held) -> None:
    records = records_of(held, LoopMonitor(held.clock))
    attempt, task = held.started()
    held.clock.now += LATE_S - 0.01
    records.write_late(held.clock.now, held.connection)
    assert not records._writing
    held.clock.now += 0.01
    records.write_late(held.clock.now, held.connection)
    await asyncio.gather(*records._writing)
    assert held.sent.asked == ["$KV.jobs-running.j1"]
    assert attempt.recorded_at == held.clock.now
    task.cancel()
