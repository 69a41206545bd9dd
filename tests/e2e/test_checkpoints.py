"""A long job whose worker is killed repeatedly resumes from its checkpoint."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.e2e import stepping_tasks
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth, server_settings
from tests.support.workers import provisioned

ROOT = Path(__file__).parent.parent.parent
APP = "tests.e2e.stepping_tasks:app"
STEPS = 1000


@pytest.mark.timeout(300)
async def test_a_job_of_a_thousand_steps_killed_three_times_repeats_at_most_one_step_each_time(
    server: EmbeddedServer, truth: Truth, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    queues = {"lease": "5s", "max_crashes": 10}
    stepping_tasks.app.configure(server_settings(server.url, queues=queues))
    env = {
        "NATS_URL": server.url,
        "JOURNAL": str(journal),
        "JETJOBS_QUEUES__LEASE": "5s",
        "JETJOBS_QUEUES__MAX_CRASHES": "10",
    }
    # Once in each third, at any time within a step: before, during or after its checkpoint.
    kill_at = [random.randrange(begin, begin + 250) for begin in (50, 350, 650)]
    after_s = [random.uniform(0, 0.01) for _ in kill_at]
    async with provisioned(stepping_tasks.app):
        handle = await stepping_tasks.add_up.enqueue(STEPS, kill_at, after_s)
        for _ in kill_at:
            with Process(["worker", APP, "--log-format", "json"], ROOT, env) as worker:
                assert await asyncio.to_thread(worker.popen.wait, 80) == -signal.SIGKILL
        with Process(["worker", APP, "--log-format", "json"], ROOT, env) as worker:
            assert await handle.result(timedelta(seconds=60)) == sum(range(STEPS))
            await eventually(lambda: truth.subjects("KV_jobs-checkpoints"), 30, where=lambda found: not found)
            assert await asyncio.to_thread(worker.end, signal.SIGTERM, 40) == 0
    assert await truth.jobs() == []
    assert await truth.dead() == {}
    check(journal.read_text().splitlines(), kill_at)


def check(lines: list[str], kill_at: list[int]) -> None:
    """Assert that each step ran, and that the job resumed with the last step or the next one after a crash."""
    resumes, following = 0, 0
    times: Counter[int] = Counter()
    for line in lines:
        word, _, number = line.partition(" ")
        if word == "resume":
            assert int(number) in (following - 1, following)
            resumes, following = resumes + 1, int(number)
        elif word == "step":
            assert int(number) == following
            times[following] += 1
            following += 1
    assert sorted(times) == list(range(STEPS))
    assert resumes > len(kill_at)
    assert sum(times.values()) - STEPS <= resumes - 1
