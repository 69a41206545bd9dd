"""A job that cannot be stored: `enqueue` names the cause within two seconds, and nothing is stored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from jetjobs import JetJobs, Task
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import AccessDenied, EnqueueUnconfirmed, JetJobsError, QueueNotFound, UnsupportedServer
from jetjobs.jetstream.messages.publisher import Unconfirmed
from jetjobs.model.settings import build_settings
from tests.support.processes import run
from tests.support.roles import GuardedServer, Removed
from tests.support.server import Truth

LIMIT_S = 2.0
TASKS = """
from jetjobs import JetJobs

app = JetJobs("t")


@app.task
async def work() -> None: ...
"""
OFF = "accounts { A { users: [ { user: a, password: secret } ] } }\nno_auth_user: a\n"

Use = Callable[[JetJobs, Task[Any, Any]], Awaitable[Any]]


def app_at(url: str, **nats: Any) -> tuple[JetJobs, Task[Any, Any]]:
    app = JetJobs("t", settings=build_settings({"queues": {"namespace": "jobs"}, "nats": {"url": url, **nats}}))

    @app.task
    async def work() -> None: ...

    return app, work


async def _plain(app: JetJobs, work: Task[Any, Any]) -> None:
    await work.enqueue()


async def _delayed(app: JetJobs, work: Task[Any, Any]) -> None:
    await work.options(delay=timedelta(hours=1)).enqueue()


async def _keyed(app: JetJobs, work: Task[Any, Any]) -> None:
    await work.options(key="one").enqueue()


async def _many(app: JetJobs, work: Task[Any, Any]) -> None:
    (await app.enqueue_many([work.bind()] * 3)).raise_for_refused()


USES = [_plain, _delayed, _keyed, _many]


async def refusal(app: JetJobs, work: Task[Any, Any], use: Use) -> JetJobsError:
    started = time.monotonic()
    async with app:
        with pytest.raises(JetJobsError) as raised:
            await use(app, work)
    assert time.monotonic() - started < LIMIT_S
    return raised.value


async def test_jetstream_is_off() -> None:
    with EmbeddedServer(jetstream=False) as server:
        errors = await asyncio.gather(*(refusal(*app_at(server.url), use) for use in USES))
        app, _ = app_at(server.url)
        async with app:
            # An earlier try that got no answer may have been stored.
            with pytest.raises(Unconfirmed, match="JetStream is not enabled"):
                await app.jetstream.publisher.check_stream("jobs-work-default", "jobs.work.default.x", sent=True)
    for error in errors:
        assert isinstance(error, UnsupportedServer)
        assert str(error) == "JetStream is not enabled on the server or for this account"
        assert error.hint == "start nats-server with -js, or enable JetStream for the account"


async def test_jetstream_is_off_for_the_account(tmp_path: Path) -> None:
    config = tmp_path / "nats.conf"
    config.write_text(OFF)
    with EmbeddedServer(extra=("-c", str(config))) as server:
        error = await refusal(*app_at(server.url), _plain)
    assert isinstance(error, UnsupportedServer)
    assert "JetStream not enabled for account" in str(error)


@pytest.mark.parametrize("use", USES)
async def test_the_queue_does_not_exist(use: Use, server: EmbeddedServer, truth: Truth) -> None:
    error = await refusal(*app_at(server.url), use)
    assert isinstance(error, QueueNotFound)
    assert str(error).startswith("queue 'default' does not exist (")
    assert "jobs-work-default" in str(error)
    assert error.hint == (
        "create it with `jetjobs setup apply --queue default`,"
        " or start a worker for it: `jetjobs worker --queue default`"
    )
    assert (await truth.api("STREAM.NAMES"))["total"] == 0


@pytest.mark.parametrize(
    ("use", "subject"),
    [
        (_plain, "jobs.work.default.normal.>"),
        (_delayed, "jobs.work.default.later.>"),
        (_keyed, "jobs.work.default.normal.>"),
        (_many, "jobs.work.default.normal.>"),
    ],
)
async def test_the_user_may_not_publish(use: Use, subject: str, tmp_path: Path) -> None:
    with GuardedServer(tmp_path, Removed("producer", "publish", subject)) as server:
        admin, _ = app_at(server.url, user="root", password="secret")
        async with admin:
            await admin.provision()
        login = {"user": "producer", "password": "secret", "inbox_prefix": "_INBOX_producer"}
        error = await refusal(*app_at(server.url, **login), use)
        assert isinstance(error, AccessDenied)
        assert f'permissions violation for publish to "{subject.removesuffix(">")}' in str(error)
        assert error.hint == f'the server must allow this user to publish to "{subject}"'
        truth = await Truth.connect(server.url.replace("://", "://root:secret@"))
        assert await truth.jobs() == []
        await truth.close()


async def test_a_missing_queue_that_the_user_may_not_look_for_is_named_as_the_likely_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jetjobs.jetstream.client.PUBLISH_TIMEOUT_S", 0.5)
    with GuardedServer(
        tmp_path, Removed("producer", "publish", "$JS.API.STREAM.INFO.jobs-work-default")
    ) as server:
        login = {"user": "producer", "password": "secret", "inbox_prefix": "_INBOX_producer"}
        error = await refusal(*app_at(server.url, **login), _plain)
    assert isinstance(error, EnqueueUnconfirmed)
    assert "no responders; whether the stream exists is unknown: permissions violation" in str(error)


@pytest.mark.parametrize(
    ("jetstream", "code", "text", "hint"),
    [
        (False, 3, "error: JetStream is not enabled on the server", "hint: start nats-server with -js"),
        (True, 5, "error: queue 'default' does not exist", "hint: create it with `jetjobs setup apply"),
    ],
)
async def test_the_command_line_says_the_same(
    jetstream: bool, code: int, text: str, hint: str, tmp_path: Path
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    with EmbeddedServer(jetstream=jetstream) as server:
        for more in ([], ["-n", "3"]) if jetstream else ([],):
            done = run(["enqueue", "work", "-s", server.url, *more], tmp_path)
            assert done.returncode == code
            assert done.stdout == ""
            lines = done.stderr.splitlines()
            assert lines[0].startswith(text)
            assert lines[1].startswith(hint)
            assert len(lines) == 2
        if jetstream:
            truth = await Truth.connect(server.url)
            assert (await truth.api("STREAM.NAMES"))["total"] == 0
            await truth.close()
