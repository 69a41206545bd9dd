"""Replay ten thousand dead letters with a command that is killed and repeated: each job runs once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.support.letters import bury, letter_of
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth, server_settings
from tests.support.workers import provisioned

ROOT = Path(__file__).parent.parent.parent
APP = "tests.e2e.journal_tasks:app"
MANY = 10_000
IN_FLIGHT = 16
COMMAND = ["dead", "replay", "--all", "--yes", "--json", "--app", APP, "--reason"]


def ran(journal: Path) -> Counter[str]:
    """The number of runs per job id."""
    return Counter(line.split()[2] for line in journal.read_text().splitlines() if line.startswith("effect "))


async def left(truth: Truth) -> int:
    return int((await truth.api("STREAM.INFO.jobs-dead"))["state"]["messages"])


def check_past(past: dict[str, Any], reasons: set[str]) -> None:
    """The replays of a job: by whom, when, why, how often, and the cause of its death."""
    assert past["number"] == 1
    (entry,) = past["replays"]
    assert entry["by"]
    assert entry["at"] > 1_700_000_000
    assert entry["why"] in reasons
    assert entry["died_of"] == "exhausted: LookupError: no such thing"


@pytest.mark.alone
@pytest.mark.timeout(180)
async def test_ten_thousand_letters_replayed_through_a_kill_9_run_once_each(
    server: EmbeddedServer, truth: Truth, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    journal.touch()
    env = {"NATS_URL": server.url, "JOURNAL": str(journal)}

    async def all_ran() -> bool:
        return len(ran(journal)) == MANY and await truth.jobs() == []

    journal_tasks.app.configure(server_settings(server.url))
    async with provisioned(journal_tasks.app) as app:
        kept = await bury(app, "effect", [b'{"n":%d}' % n for n in range(MANY // 2)])
        quiet = await bury(app, "quiet_effect", [b'{"n":%d}' % n for n in range(MANY // 2)])
        with Process(["worker", APP, "--log-level", "warning"], ROOT, env) as worker:
            with Process([*COMMAND, "first"], ROOT, env) as first:
                await eventually(lambda: left(truth), 90, where=lambda found: found < MANY // 2)
                assert first.end(signal.SIGKILL) == -signal.SIGKILL
            before = await left(truth)
            assert 0 < before < MANY // 2

            second = await asyncio.to_thread(run, [*COMMAND, "second"], ROOT, 90, env)
            assert second.returncode == 0, second.stderr
            counts = json.loads(second.stdout)["counts"]
            assert sum(counts.values()) == before
            assert counts.get("already replayed", 0) <= IN_FLIGHT
            await eventually(all_ran, 60)

            # Jobs that died again have a new letter that says so; no other letter is left.
            (again,) = await bury(app, "fail", [b'{"n":1}'])
            third = await asyncio.to_thread(run, [*COMMAND, "third"], ROOT, 60, env)
            assert json.loads(third.stdout)["counts"] == {"replayed": 1}

            async def dead_again() -> bool:
                letter = await app.dead.get(again)
                return letter is not None and letter.replay_count == 1

            await eventually(dead_again, 30)
            assert await asyncio.to_thread(worker.end, signal.SIGTERM) == 0

        runs = ran(journal)
        assert set(runs) == {*kept, *quiet}
        assert sum(runs.values()) - MANY <= IN_FLIGHT, "more ran twice than were in flight"
        for job_id in kept[:: len(kept) // 50]:
            record = await truth.js.get_last_msg("KV_jobs-done-default", f"$KV.jobs-done-default.effect.{job_id}")
            check_past(json.loads(record.data or b"{}")["replay"], {"first", "second"})
        letter = await letter_of(app, again)
        check_past({"number": letter.replay_count, "replays": letter.replays}, {"third"})
