"""A lease is lowered while worker processes run jobs: no job runs twice, and silent workers prevent it."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.e2e.journal import APP, ROOT, entries, until, until_journal, worker
from tests.support.processes import run
from tests.support.server import Truth

LONG_S = 5.0
"""Longer than two of the lowered leases."""


async def apply(server: EmbeddedServer, lease: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {"NATS_URL": server.url, "JETJOBS_QUEUES__LEASE": lease, "JETJOBS_QUEUES__MAX_CRASHES": "1"}
    return await asyncio.to_thread(run, ["setup", "apply", APP, *options], ROOT, 30, env)


async def lease_s(truth: Truth) -> set[float]:
    """The leases of the lanes on the server."""
    lanes = [await truth.consumer(lane) for lane in ("high", "normal", "low", "returned")]
    return {lane["config"]["ack_wait"] / 1e9 for lane in lanes}


async def start_long_jobs(journal: Path, count: int) -> None:
    for n in range(count):
        await journal_tasks.wait.enqueue(n, LONG_S)
    await until_journal(journal, "begin", count)


async def assert_each_ran_once(journal: Path, truth: Truth, count: int) -> None:
    await until_journal(journal, "end", count)
    await truth.until_empty()
    assert sorted(entry.n for entry in entries(journal, "begin")) == list(range(count))
    assert {entry.delivery for entry in entries(journal, "begin", "end")} == {1}
    assert await truth.dead() == {}


async def test_a_lease_lowered_by_setup_apply_interrupts_no_running_job(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--slots", "6", max_crashes=1) as busy:
        await until(busy, "worker.ready")
        await start_long_jobs(journal, 6)
        # It gets every job that is delivered again, and dead-letters it at once: one crash is the limit.
        with worker(server, journal, "--slots", "6", max_crashes=1) as idle:
            await until(idle, "worker.ready")
            done = await apply(server, "2s")
            assert done.returncode == 0, done.stderr
            assert await lease_s(truth) == {2.0}
            await assert_each_ran_once(journal, truth, 6)


async def test_a_worker_that_starts_with_a_shorter_lease_interrupts_no_job_of_the_others(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--slots", "8") as old:
        await until(old, "worker.ready")
        await start_long_jobs(journal, 8)
        with worker(server, journal, "--slots", "8", lease="2s") as new:
            await until(new, "worker.ready")
            assert await lease_s(truth) == {2.0}
            await assert_each_ran_once(journal, truth, 8)


async def test_a_lease_is_not_lowered_while_a_registered_worker_does_not_answer_unless_forced(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    with worker(server, journal, "--name", "frozen") as process:
        await until(process, "worker.ready")
        (record,) = await app.workers.list()
        process.send(signal.SIGSTOP)
        with worker(server, journal, lease="2s") as starting:
            refused = await apply(server, "2s")
            assert refused.returncode == 7, refused.stdout
            assert await asyncio.to_thread(starting.end, signal.SIGCONT) == 7
            assert any(f"worker {record.key} has not answered" in line for line in starting.lines)
        assert await lease_s(truth) == {30.0}
        assert f"worker {record.key} has not answered" in refused.stderr
        assert "--force" in refused.stderr
        forced = await apply(server, "2s", "--force")
        assert forced.returncode == 0, forced.stderr
        assert await lease_s(truth) == {2.0}
        process.send(signal.SIGCONT)
        assert await asyncio.to_thread(process.end) == 0
