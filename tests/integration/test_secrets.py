"""Secret arguments on a real server: the task gets them, and they are masked everywhere else."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, SecretStr

from jetjobs import JetJobs, JobState, RetryPolicy, Secret
from jetjobs.admin import JobQuery
from jetjobs.cli.command_tree import run as run_command
from jetjobs.dev_server import EmbeddedServer
from jetjobs.observe.logs import log_event
from tests.support.probe import Probe
from tests.support.processes import run
from tests.support.server import Truth
from tests.support.workers import provisioned, running

HUSH = "hunter2-hush"
SOON = timedelta(seconds=30)
got: list[str] = []


class Login(BaseModel):
    user: str
    token: SecretStr


def with_task(app: JetJobs) -> None:
    got.clear()

    @app.task(retry=RetryPolicy(max_attempts=1))
    async def log_in(login: Login, password: Annotated[str, Secret()], n: int) -> None:
        got.append(login.token.get_secret_value() + password)
        if n > 1:
            raise ValueError("no")

    @app.task
    async def plain(n: int) -> None: ...


def arguments(n: int) -> dict[str, object]:
    return {"login": Login(user="ada", token=SecretStr(HUSH)), "password": HUSH, "n": n}


async def test_the_task_gets_the_values_and_the_message_names_the_fields(
    app: JetJobs, probe: Probe, truth: Truth
) -> None:
    with_task(app)
    async with provisioned(app):
        await app.tasks["log_in"].enqueue(**arguments(1))
        await app.enqueue_many([app.tasks["log_in"].bind(**arguments(1))])
        await app.tasks["log_in"].options(key="k").enqueue(**arguments(1))
        await app.tasks["plain"].enqueue(1)
        for subject in await truth.jobs():
            headers = (await truth.js.get_last_msg("jobs-work-default", subject)).headers or {}
            wanted = "login.token,password" if ".log_in." in subject else None
            assert headers.get("Jetjobs-Secret") == wanted
        async with running(app.worker()):
            await probe.finished(4, "succeeded")
    assert got == [HUSH + HUSH] * 3


@pytest.mark.timeout(240)
async def test_dead_letters_are_shown_masked_to_every_reader_and_replayed_completely(
    app: JetJobs,
    probe: Probe,
    truth: Truth,
    server: EmbeddedServer,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with_task(app)
    app.observe(log_event)
    by_hand = json.dumps({"login": {"user": "ada", "token": HUSH}, "password": HUSH, "n": 2}).encode()
    odd = json.dumps({"login": HUSH, "password": [HUSH], "n": 2}).encode()
    with caplog.at_level(logging.DEBUG):
        async with provisioned(app):
            handle = await app.tasks["log_in"].enqueue(**arguments(2))
            await truth.js.publish("jobs.work.default.normal.log_in", by_hand, headers={"Nats-Msg-Id": "hand"})
            await truth.js.publish("jobs.work.default.normal.log_in", odd, headers={"Nats-Msg-Id": "odd"})
            async with running(app.worker()):
                await probe.finished(3, "dead_lettered")
            for job_id, more in (
                (handle.id, []),
                (handle.id, ["--json"]),
                ("hand", ["--json"]),
                ("odd", ["--json"]),
            ):
                # A program that does not know the task.
                show = ["dead", "show", job_id, *more]
                shown = await asyncio.to_thread(run, show, tmp_path, 120, {"NATS_URL": server.url})
                assert shown.returncode == 0, shown.stderr
                assert HUSH not in shown.stdout + shown.stderr
                assert "***" in shown.stdout
            letter = await app.dead.get(handle.id)
            assert letter is not None
            assert letter.arguments == {"login": {"user": "ada", "token": "***"}, "password": "***", "n": 2}
            assert json.loads(letter.body)["password"] == HUSH
            listed = await asyncio.to_thread(
                run, ["dead", "list", "--json"], tmp_path, 120, {"NATS_URL": server.url}
            )
            assert HUSH not in listed.stdout
            await app.dead.replay(letter)
            async with running(app.worker()):
                await probe.finished(4, "dead_lettered")
    assert got == [HUSH + HUSH] * 3
    again = (await truth.dead())[handle.id]
    assert again["headers"]["Jetjobs-Secret"] == "login.token,password"
    assert HUSH not in caplog.text


@pytest.mark.timeout(240)
async def test_lists_of_jobs_show_secrets_masked_and_cannot_filter_by_them(
    app: JetJobs, server: EmbeddedServer, tmp_path: Path
) -> None:
    with_task(app)
    async with provisioned(app):
        await app.tasks["log_in"].options(delay=timedelta(hours=1)).enqueue(**arguments(1))
        listing = ["jobs", "list", "--state", "scheduled", "--json"]
        shown = await asyncio.to_thread(run, listing, tmp_path, 120, {"NATS_URL": server.url})
        assert HUSH not in shown.stdout + shown.stderr
        assert "***" in shown.stdout
        asked = [*listing, "--where", f"args.password={HUSH}"]
        found = await asyncio.to_thread(run, asked, tmp_path, 120, {"NATS_URL": server.url})
        assert json.loads(found.stdout)["items"] == []
        said = "is secret: it cannot be searched, and jobs that have it are not listed"
        assert f"args.password {said}" in found.stderr
        for path in ("args.password", "args.login.token", "args.login"):
            page = await app.jobs.page(JobQuery(JobState.SCHEDULED, where=((path, "***"),)))
            assert (page.items, page.secret, page.unknown) == ([], (path,), ())
        beside = await app.jobs.page(JobQuery(JobState.SCHEDULED, where=(("args.login.user", "ada"),)))
        assert (len(beside.items), beside.secret) == (1, ())


class Grant(BaseModel):
    user: str
    token: Annotated[str, Secret()]


async def test_secrets_of_a_result_are_returned_to_the_caller_and_masked_elsewhere(
    app: JetJobs, server: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    @app.task
    async def grant() -> Grant:
        return Grant(user="ada", token=HUSH)

    @app.task
    async def password() -> Annotated[str, Secret()]:
        return HUSH

    @app.task
    async def large() -> list[Grant]:
        return [Grant(user="a" * 1_100_000, token=HUSH)]

    async with provisioned(app):
        async with running(app.worker()):
            handle = await grant.enqueue()
            assert await handle.result(SOON) == Grant(user="ada", token=HUSH)
            assert (await handle.status()).result == {"user": "ada", "token": "***"}
            assert await handle.shown_result(SOON) == {"user": "ada", "token": "***"}
            whole = await password.enqueue()
            assert await whole.result(SOON) == HUSH
            assert (await whole.status()).result == "***"
            big = await large.enqueue()
            assert (await big.result(SOON))[0].token == HUSH
            assert (await big.shown_result(SOON))[0]["token"] == "***"
        for words in (
            ["jobs", "show", handle.id],
            ["jobs", "wait", handle.id],
            ["jobs", "wait", big.id, "--json"],
            ["jobs", "watch", whole.id],
            ["jobs", "list", "--state", "succeeded", "--json"],
        ):
            assert await asyncio.to_thread(run_command, ["-s", server.url, *words]) == 0
            printed = capsys.readouterr()
            assert "***" in printed.out
            assert HUSH not in printed.out + printed.err, words
