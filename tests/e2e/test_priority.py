"""Change the priority of queued jobs while operators and workers are killed and while a worker takes jobs."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.admin import MoveOutcome
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.e2e.journal import ROOT, entries, until, until_journal, worker
from tests.e2e.stopping_operator import STEPS
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth

OPERATOR = ("-m", "tests.e2e.stopping_operator")


@pytest.mark.timeout(120)
async def test_no_job_is_lost_when_operators_and_the_workers_that_hold_the_jobs_are_killed_after_any_step(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    """Two jobs per step: the operator of one is killed after the step, that of the other continues much later."""
    # The copies are held back: only originals are delivered until their operators have ended.
    await truth.api("CONSUMER.PAUSE.jobs-work-default.high", {"pause_until": "2100-01-01T00:00:00Z"})
    cases = [(step, kind) for step in range(1, len(STEPS) + 1) for kind in ("killed", "goes on")]
    handles = [await journal_tasks.wait.enqueue(n, 0.5) for n in range(len(cases))]
    still_there = {n for n, (step, _) in enumerate(cases) if STEPS[step - 1] in STEPS[:3]}

    with contextlib.ExitStack() as stack:
        operators = [
            stack.enter_context(Process([handle.id, "high", str(step)], ROOT, {"NATS_URL": server.url}, OPERATOR))
            for handle, (step, _) in zip(handles, cases, strict=True)
        ]
        for operator in operators:
            await until(operator, "stopped")
        with worker(server, journal, "--slots", "20", lease="2s") as victim:
            await until_journal(journal, "begin", len(still_there))
            assert victim.end(signal.SIGKILL) == -signal.SIGKILL
        assert {entry.n for entry in entries(journal, "begin")} == still_there
        with worker(server, journal, "--slots", "20", lease="2s"):
            # Their second deliveries run: a worker must not ack because of a copy that may still be deleted.
            await eventually(lambda: truth.jobs(lane="normal"), 30, where=lambda found: found == [])
            answers = {}
            for operator, (step, kind) in zip(operators, cases, strict=True):
                operator.send(signal.SIGKILL if kind == "killed" else signal.SIGCONT)
                if kind == "goes on":
                    answers[STEPS[step - 1]] = (await until(operator, "answer: ")).removeprefix("answer: ")
            await app.queues.resume("default")
            await truth.until_empty(timeout=30)
    assert answers == {
        "looked": "too late",
        "copied": "too late",
        "looked again": "may run twice",
        "deleted": "moved",
        "looked at last": "moved",
    }
    both = {("copied", "killed"), ("looked again", "killed"), ("looked again", "goes on")}
    expected = {n: 2 if (STEPS[step - 1], kind) in both else 1 for n, (step, kind) in enumerate(cases)}
    assert Counter(entry.n for entry in entries(journal, "end")) == expected


@pytest.mark.timeout(120)
async def test_no_job_of_an_active_backlog_is_lost_and_jobs_that_run_twice_were_announced(
    server: EmbeddedServer, app: JetJobs, journal: Path, truth: Truth
) -> None:
    handles = [await journal_tasks.interruptible.enqueue(n, 0.04) for n in range(1000)]

    with worker(server, journal, "--slots", "4"):
        await until_journal(journal, "begin", 20)
        # From the front, where the worker takes jobs.
        answers = [await app.jobs.set_priority(handle.id, "high") for handle in handles[:800]]
        assert len(await truth.jobs(lane="normal")) > 0
        await truth.until_empty(timeout=60)
    ran = Counter(entry.job_id for entry in entries(journal, "begin"))
    assert ran.keys() == {handle.id for handle in handles}
    twice = {job_id for job_id, runs in ran.items() if runs > 1}
    announced = {answer.job_id for answer in answers if answer.outcome is MoveOutcome.MAY_RUN_TWICE}
    assert twice <= announced
    assert len(twice) <= 40
    assert sum(answer.outcome is MoveOutcome.MOVED for answer in answers) > 200
