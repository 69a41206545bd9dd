"""Workers that are killed, frozen, blocked or restarted under load: their jobs run elsewhere in time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.e2e.journal import entries, until, until_journal, worker
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth

SOON = timedelta(seconds=30)


async def until_done(truth: Truth, count: int, timeout: float = 30) -> None:
    """Wait until the done bucket has that many records."""

    async def all_there() -> bool:
        return len(await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")) >= count

    await eventually(all_there, timeout)


async def emptied(truth: Truth) -> None:
    await truth.until_empty(timeout=30)


# Killed


@pytest.mark.alone
async def test_fifty_jobs_of_a_killed_worker_finish_once_within_a_lease_and_two_seconds(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    lease_s = 2.0
    with worker(server, journal, "--slots", "50", lease="2s") as first:
        await until(first, "worker.ready")
        report = await app.enqueue_many([journal_tasks.once_stuck.bind(n) for n in range(50)])
        await until_journal(journal, "begin", 50)
        with worker(server, journal, "--slots", "50", lease="2s") as second:
            await until(second, "worker.ready")
            first.send(signal.SIGKILL)
            killed_at = time.monotonic()
            await until_done(truth, 50)
            took_s = time.monotonic() - killed_at
            await emptied(truth)
            assert await asyncio.to_thread(second.end) == 0
    assert took_s <= lease_s + 2
    done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
    assert {subject.rsplit(".", 1)[1] for subject in done} == {handle.id for handle in report.stored}
    assert set(done.values()) == {1}
    begun = entries(journal, "begin")
    again = [entry for entry in begun if entry.pid == second.popen.pid]
    assert Counter(entry.n for entry in again) == Counter(range(50))  # once each
    assert {(entry.attempt, entry.delivery) for entry in again} == {(1, 2)}
    assert len(begun) == 100
    assert await truth.dead() == {}


async def test_a_job_whose_workers_are_killed_repeatedly_is_dead_lettered_once_and_does_not_run_again(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    handle = await journal_tasks.wait.enqueue(1, 600.0)
    for number in (1, 2):
        with worker(server, journal, lease="3s", max_crashes=2) as process:
            await until_journal(journal, "begin", number)
            process.end(signal.SIGKILL)
    with worker(server, journal, lease="3s", max_crashes=2) as process:
        await until(process, "job.dead_lettered")
        await emptied(truth)
        assert await asyncio.to_thread(process.end) == 0
    assert {job_id: letter["reason"] for job_id, letter in (await truth.dead()).items()} == {handle.id: "crashed"}
    assert [entry.attempt for entry in entries(journal, "begin")] == [1, 1]


@pytest.mark.timeout(240)
async def test_when_jobs_kill_a_fleet_repeatedly_only_those_jobs_are_dead_lettered(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--processes", "2", "--slots", "8", lease="2s") as fleet:
        await until(fleet, "worker.ready", 2)
        killers = [await journal_tasks.die.enqueue(n) for n in (1, 2)]
        innocent = [await journal_tasks.wait.enqueue(n, 0.5) for n in range(20)]
        await until(fleet, "restarting in")

        async def over() -> bool:
            return await truth.jobs() == [] and len(await truth.dead()) >= 2

        async def both_are_back() -> bool:
            said = [sum(text in line for line in fleet.lines) for text in ("worker.ready", "restarting in")]
            return said[0] == 2 + said[1]

        await eventually(over, 200)
        await eventually(both_are_back, 40)
        assert await asyncio.to_thread(fleet.end, signal.SIGTERM, 40) == 0
    letters = await truth.dead()
    assert {job_id: letter["reason"] for job_id, letter in letters.items()} == {
        killer.id: "crashed" for killer in killers
    }
    # Three deliveries each. In one of them the other job may have killed the worker before this one ran.
    runs = Counter(entry.n for entry in entries(journal, "die"))
    assert runs.keys() == {1, 2}
    assert max(runs.values()) <= 3
    assert {entry.job_id for entry in entries(journal, "end")} == {handle.id for handle in innocent}
    assert {entry.attempt for entry in entries(journal, "begin")} == {1}  # a crash does not use up an attempt
    assert sum("worker.stopped" in line for line in fleet.lines) == 2


# Blocked and frozen


@pytest.mark.patient
async def test_a_task_that_blocks_its_worker_for_three_leases_runs_once_and_the_log_names_it(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, lease="2s") as first, worker(server, journal, lease="2s") as second:
        await until(first, "worker.ready")
        await until(second, "worker.ready")
        handle = await journal_tasks.blocks.enqueue(1, 6.0)
        await handle.result(SOON)
        await emptied(truth)
        for process in (first, second):
            assert await asyncio.to_thread(process.end) == 0
    assert len(entries(journal, "begin")) == 1
    said = [json.loads(line) for line in first.lines + second.lines if "worker.loop_blocked" in line]
    assert [line["task"] for line in said].count("blocks") == 1


@pytest.mark.alone
async def test_a_worker_frozen_for_three_leases_sends_nothing_for_its_jobs_which_ran_elsewhere(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    lease_s = 1.0
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    with worker(server, journal, "--slots", "3", lease="1s") as frozen:
        await until(frozen, "worker.ready")
        stuck = await journal_tasks.once_stuck.enqueue(1)
        await journal_tasks.wait.enqueue(2, 1.5)  # would have succeeded
        await journal_tasks.fail_late.enqueue(3, 1.5)  # would have failed
        await until_journal(journal, "begin", 3)
        frozen.send(signal.SIGSTOP)
        stopped_at = time.monotonic()
        with worker(server, journal, lease="1s", max_crashes=10) as other:
            await until(other, "job.succeeded", 2)
            await until(other, "job.dead_lettered")
            await emptied(truth)
            await asyncio.sleep(stopped_at + 3 * lease_s - time.monotonic())
            before = await truth.api("STREAM.INFO.jobs-work-default")
            await truth.nc.subscribe("$JS.ACK.>", cb=hear)
            await truth.nc.flush()
            frozen.send(signal.SIGCONT)

            async def lost() -> bool:
                return any("job.lease_lost" in line and stuck.id in line for line in frozen.lines)

            await eventually(lost, timeout=30)
            assert await asyncio.to_thread(frozen.end) == 0
            await truth.nc.flush()
            after = await truth.api("STREAM.INFO.jobs-work-default")
            assert await asyncio.to_thread(other.end) == 0
    assert after["state"]["last_seq"] == before["state"]["last_seq"]  # no retry of a job that it no longer owns
    # $JS.ACK.<stream>.<lane>.<delivery>.<sequence>...: the first deliveries were the frozen worker's.
    # Sequence 0 is the check of the permission when a lane is opened again.
    acks = [subject.split(".")[4:6] for subject in heard]
    assert [ack for ack in acks if ack[0] == "1" and ack[1] != "0"] == []
    elsewhere = {entry.n for entry in entries(journal, "begin") if entry.pid == other.popen.pid}
    assert elsewhere == {1, 2, 3}
    assert not any("job.retried" in line or "job.dead_lettered" in line for line in frozen.lines)
    assert len(await truth.dead()) == 1


@pytest.mark.alone
async def test_a_delivery_to_a_frozen_worker_that_was_done_elsewhere_does_not_run_when_it_resumes(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    """The delivery stays in the socket while the worker is frozen and looks new when it is read."""
    with worker(server, journal, lease="1s") as frozen:
        await until(frozen, "worker.ready")
        await eventually(truth.consumer, timeout=30, where=lambda found: found["num_waiting"] >= 1)
        frozen.send(signal.SIGSTOP)
        handle = await journal_tasks.effect.enqueue(1)  # goes to the only open pull request
        await eventually(truth.consumer, timeout=30, where=lambda found: found["num_ack_pending"] == 1)
        with worker(server, journal, lease="1s") as other:
            assert await handle.result(SOON) == 1
            await emptied(truth)
            frozen.send(signal.SIGCONT)
            second = await journal_tasks.effect.enqueue(2)
            assert await second.result(SOON) == 2
            for process in (frozen, other):
                assert await asyncio.to_thread(process.end) == 0
    assert [entry.n for entry in entries(journal, "effect")].count(1) == 1


# Restarted one after another


class Fleet:
    """Four worker processes, restarted one by one."""

    def __init__(self, server: EmbeddedServer, journal: Path, stack: contextlib.ExitStack, slots: int) -> None:
        self._server = server
        self._journal = journal
        self._stack = stack
        self._slots = str(slots)
        self.members: list[Process] = []

    async def start(self) -> None:
        options = ("--slots", self._slots, "--stop-timeout", "200ms", "--log-level", "info")
        member = self._stack.enter_context(worker(self._server, self._journal, *options))
        self.members.append(member)
        await until(member, "worker.ready")

    async def roll(self) -> None:
        """Stop one by SIGTERM, start its replacement, then continue with the next."""
        for _ in range(len(self.members)):
            await asyncio.to_thread(self.members.pop(0).end)
            await self.start()

    async def end(self) -> None:
        for member in self.members:
            await asyncio.to_thread(member.end)


@contextlib.contextmanager
def fleet_of(server: EmbeddedServer, journal: Path, slots: int) -> Iterator[Fleet]:
    with contextlib.ExitStack() as stack:
        yield Fleet(server, journal, stack, slots)


def waits_after_a_cut(journal: Path) -> list[float]:
    """Seconds from each cancellation of a job to its next start on any worker."""
    cut: dict[str, float] = {}
    waits = []
    for entry in sorted(entries(journal, "begin", "cut"), key=lambda entry: entry.at):
        if entry.kind == "cut":
            cut[entry.job_id] = entry.at
        elif entry.job_id in cut:
            waits.append(entry.at - cut.pop(entry.job_id))
    assert not cut, f"cut and never begun again: {cut}"
    return waits


@pytest.mark.alone
@pytest.mark.timeout(120)
async def test_a_rolling_restart_under_load_loses_no_job_and_delays_none_by_two_seconds(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    chance = random.Random(6)
    stored: dict[str, float] = {}
    over = asyncio.Event()

    async def produce() -> None:
        while not over.is_set():
            seconds = chance.uniform(1, 3) if chance.random() < 0.2 else 0.01
            handle = await journal_tasks.interruptible.enqueue(len(stored), seconds)
            stored[handle.id] = time.time()
            await asyncio.sleep(0.02)

    with fleet_of(server, journal, slots=10) as fleet:
        await asyncio.gather(*(fleet.start() for _ in range(4)))
        producing = asyncio.create_task(produce())
        await until_journal(journal, "begin", 40)
        await fleet.roll()
        over.set()
        await producing
        await until_done(truth, len(stored))
        await emptied(truth)
        await fleet.end()
    done = await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")
    assert {subject.rsplit(".", 1)[1] for subject in done} == set(stored)
    assert await truth.dead() == {}
    waits = waits_after_a_cut(journal)
    assert waits, "nothing was cut short: the test proves nothing"
    assert max(waits) <= 2
    first: dict[str, float] = {}
    for entry in entries(journal, "begin"):
        first.setdefault(entry.job_id, entry.at)
        assert (entry.attempt, entry.delivery) == (1, 1)  # released, not left to its lease
    assert max(first[job_id] - at for job_id, at in stored.items()) <= 2


@pytest.mark.alone
@pytest.mark.timeout(120)
async def test_jobs_released_in_a_rolling_restart_run_before_a_backlog(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    stored = 12
    over = asyncio.Event()

    async def keep_a_backlog() -> None:
        """Keep at least 300 jobs waiting: more than two seconds of work for 16 slots."""
        nonlocal stored
        while not over.is_set():
            if (await truth.consumer())["num_pending"] < 600:
                calls = [journal_tasks.interruptible.bind(n, 0.1) for n in range(stored, stored + 300)]
                stored += len((await app.enqueue_many(calls)).stored)
            await asyncio.sleep(0.1)

    with fleet_of(server, journal, slots=4) as fleet:
        await asyncio.gather(*(fleet.start() for _ in range(4)))
        await app.enqueue_many([journal_tasks.interruptible.bind(n, 2.5) for n in range(stored)])
        await until_journal(journal, "begin", stored)
        feeding = asyncio.create_task(keep_a_backlog())
        await fleet.roll()
        over.set()
        await feeding
        await until_done(truth, stored, timeout=60)
        await emptied(truth)
        await fleet.end()
    assert await truth.dead() == {}
    waits = waits_after_a_cut(journal)
    assert waits, "nothing was cut short: the test proves nothing"
    assert max(waits) <= 2
