"""Fault injection with real workers, on one server and on three: no job is lost, and every invariant holds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.plan import CLUSTER_FAULTS, FAULTS
from tests.chaos.run import plan_for
from tests.support.processes import clean_environment

ROOT = Path(__file__).parent.parent.parent
SEED = 1
SECONDS = 60

pytestmark = pytest.mark.patient


def run(folder: Path, seconds: int, *options: str) -> None:
    """Run it in its own process, so that the effects of the faults do not reach other tests."""
    command = [sys.executable, "-m", "tests.chaos", "--seed", str(SEED), "--seconds", str(seconds), *options]
    command += ["--keep", str(folder), "--report", str(folder / "report.md")]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, timeout=230)
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    assert "| **lost** | **0** |" in (folder / "report.md").read_text()


@pytest.mark.timeout(240)
def test_no_job_is_lost_in_a_minute_of_faults(tmp_path: Path) -> None:
    run(tmp_path, SECONDS)


@pytest.mark.timeout(240)
def test_no_job_is_lost_while_a_cluster_loses_a_leader_and_links(tmp_path: Path) -> None:
    run(tmp_path, 15, "--cluster", "3", "--only", "kill_leader,hold_node,leap_clock")


def test_the_same_seed_gives_the_same_plan() -> None:
    assert str(plan_for(7, 30)) == str(plan_for(7, 30))
    assert plan_for(7, 30).faults != plan_for(8, 30).faults


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_minute_has_every_kind_of_fault(seed: int) -> None:
    plan = plan_for(seed, SECONDS)
    assert {fault.kind for fault in plan.faults} >= set(FAULTS)
    assert {leap.offset_s > 0 for leap in plan.leaps} == {True, False}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_three_minutes_of_a_cluster_have_every_kind_of_its_faults(seed: int) -> None:
    assert {fault.kind for fault in plan_for(seed, 180, 3).faults} >= set(CLUSTER_FAULTS)
