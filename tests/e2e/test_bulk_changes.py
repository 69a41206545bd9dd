"""`jobs cancel --all` and `jobs reschedule --all`: what they choose, ask, change and print."""

from __future__ import annotations

import json
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.conftest import MakeApp
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def jobs(tmp_path: Path, server: EmbeddedServer) -> Shell:
    return Shell(tmp_path, server.url, ["jobs"])


@pytest.fixture
async def filled(make_app: MakeApp) -> JetJobs:
    """An app with 30 scheduled mails, 10 queued mails and 5 scheduled reports."""
    app = make_app()

    @app.task(queue="mail")
    async def send(user: int) -> None: ...

    @app.task
    async def report(user: int) -> None: ...

    async with app:
        await app.provision()
        await app.enqueue_many([send.options(delay="1h").bind(user=n) for n in range(30)])
        await app.enqueue_many([send.bind(user=n) for n in range(10)])
        await app.enqueue_many([report.options(delay="1h").bind(user=n) for n in range(5)])
    return app


async def left(truth: Truth) -> tuple[int, int, int]:
    """The scheduled mails, queued mails and scheduled reports on the server."""
    mail, queued = await truth.jobs("mail", "later"), await truth.jobs("mail", "normal")
    return len(mail), len(queued), len(await truth.jobs("default", "later"))


async def test_a_dry_run_counts_and_changes_nothing(filled: JetJobs, jobs: Shell, truth: Truth) -> None:
    found = jobs.json("cancel", "--all", "--dry-run")
    assert (found["matching"], found["states"]) == (45, {"queued": 10, "scheduled": 35})
    shown = jobs("cancel", "--all", "--dry-run", "--queue", "mail", "--state", "queued").stdout.splitlines()
    assert shown[0] == "Would cancel 10 jobs. Nothing changed."
    assert len(shown) == 7
    found = jobs.json("reschedule", "--all", "--dry-run", "--now")
    assert (found["matching"], found["states"]) == (35, {"scheduled": 35})  # queued jobs cannot be rescheduled
    assert await left(truth) == (30, 10, 5)


async def test_only_what_matches_is_cancelled_with_its_reason(filled: JetJobs, jobs: Shell, truth: Truth) -> None:
    refused = jobs("cancel", "--all", "--task", "send", code=6)
    assert refused.stderr.splitlines() == [
        "error: this would cancel 40 jobs (10 queued, 30 scheduled); nothing was changed",
        "hint: confirm with --yes",
    ]
    assert await left(truth) == (30, 10, 5)
    done = jobs("cancel", "--all", "--where", "args.user=3", "--reason", "wrong user", "--yes")
    assert (done.stdout, done.stderr) == ("3 cancelled\n", "")
    assert await left(truth) == (29, 9, 4)
    records = [*(await truth.done("mail")).values(), *(await truth.done()).values()]
    assert [(one["state"], one["reason"]) for one in records] == [("cancelled", "wrong user")] * 3
    found = jobs.json("cancel", "--all", "--queue", "mail", "--state", "scheduled", "--yes")
    assert found == {"matching": 29, "counts": {"cancelled": 29}, "failed": [], "complete": True}
    assert await left(truth) == (0, 9, 4)
    ids = jobs("cancel", "--all", "--queue", "mail", "--yes", "--quiet").stdout.split()
    assert len(ids) == len(set(ids)) == 9
    assert await left(truth) == (0, 0, 4)
    assert jobs("cancel", "--all", "--queue", "mail", "--yes").stdout == "No jobs match. Nothing changed.\n"


async def test_waiting_jobs_are_rescheduled(filled: JetJobs, jobs: Shell, truth: Truth) -> None:
    at = datetime.now(UTC) + timedelta(days=2)
    done = jobs("reschedule", "--all", "--task", "report", "--at", at.isoformat(), "--yes")
    assert done.stdout == "5 moved\n"
    async with filled:
        due = [job.status.due_at async for job in filled.jobs.list() if job.status.task == "report"]
        assert [abs(moment - at) < timedelta(seconds=1) for moment in due if moment is not None] == [True] * 5
    assert jobs("reschedule", "--all", "--queue", "mail", "--now", "--yes").stdout == "30 moved\n"
    assert await left(truth) == (0, 40, 5)


MISTAKES: list[tuple[list[str], str]] = [
    (["cancel"], "give ids, or --all with filters"),
    (["cancel", "--state", "queued"], "give ids, or --all with filters"),
    (["cancel", "a-job", "--all"], "ids can be combined only with --queue and --task"),
    (["cancel", "a-job", "--since", "1h"], "ids can be combined only with --queue and --task"),
    (["cancel", "a-job", "--dry-run"], "ids can be combined only with --queue and --task"),
    (["cancel", "--all", "--state", "dead", "--yes"], "cannot cancel dead jobs"),
    (["cancel", "--all", "--state", "odd", "--yes"], "--state: unknown state 'odd'"),
    (["cancel", "--all", "--where", "user", "--yes"], "--where: invalid filter 'user'"),
    (["cancel", "--all", "--task", "a b", "--yes"], "invalid task name 'a b'"),
    (["reschedule", "--all", "--yes"], "give exactly one of --at, --delay and --now"),
    (["reschedule", "--all", "--now", "--state", "queued", "--yes"], "cannot reschedule queued jobs"),
]


async def test_mistakes_change_nothing(filled: JetJobs, jobs: Shell, truth: Truth) -> None:
    for arguments, text in MISTAKES:
        assert text in jobs.error(*arguments, code=2)
    assert "queue 'nowhere' does not exist" in jobs.error("cancel", "--all", "-q", "nowhere", "--yes", code=5)
    unknown = jobs("cancel", "--all", "--where", "args.nothing=1", "--yes")
    assert unknown.stderr == "none of the jobs scanned has args.nothing\n"
    assert unknown.stdout == "No jobs match. Nothing changed.\n"
    assert await left(truth) == (30, 10, 5)


async def test_on_a_terminal_it_asks_and_shows_its_progress(filled: JetJobs, jobs: Shell, truth: Truth) -> None:
    with jobs.terminal("jobs", "cancel", "--all") as no:
        no.wait_for("cancel 45 jobs (10 queued, 35 scheduled)? [y/N] ")
        no.press("n\n")
        assert no.end() == 6
        assert "Nothing changed." in no.text
    assert await left(truth) == (30, 10, 5)
    with jobs.terminal("jobs", "cancel", "--all") as yes:
        yes.wait_for("[y/N] ")
        yes.press("y\n")
        assert yes.end() == 0
        assert "45/45 cancelled" in yes.text
        assert yes.lines[-2].endswith("45 cancelled")
    assert await left(truth) == (0, 0, 0)


async def test_ctrl_c_says_what_was_done(make_app: MakeApp, jobs: Shell, truth: Truth) -> None:
    app = make_app()

    @app.task
    async def send(user: int) -> None: ...

    async with app:
        await app.provision()
        await app.enqueue_many([send.options(delay="1h").bind(user=n) for n in range(10_000)])
    assert jobs.json("cancel", "--all", "--dry-run")["matching"] == 10_000
    cancelling = Process(["jobs", "cancel", "--all", "--yes", "--json"], jobs.folder, jobs.env)
    with cancelling:
        # 16 are cancelled at a time, so with the 17th record one is counted.
        while len(await truth.subjects("KV_jobs-done-default", "$KV.jobs-done-default.>")) <= 16:
            assert cancelling.popen.poll() is None, cancelling.lines
        assert cancelling.end(signal.SIGINT, 60) == 130
    printed: dict[str, Any] = json.loads(cancelling.lines[-1])
    assert (printed["matching"], printed["complete"]) == (10_000, False)
    cancelled, remaining = printed["counts"]["cancelled"], len(await truth.jobs(lane="later"))
    assert 0 < cancelled < 10_000
    # Up to 16 were in progress: each is cancelled or still there, and a repetition finds it.
    assert cancelled <= 10_000 - remaining <= cancelled + 16
