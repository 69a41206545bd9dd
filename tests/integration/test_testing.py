"""`jetjobs.testing`: running a worker, and pointing an app at a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from jetjobs import JetJobs
from jetjobs.errors import LifespanFailed
from jetjobs.testing import on_server, working
from tests.conftest import MakeApp
from tests.support.server import Truth
from tests.support.workers import provisioned


async def test_a_worker_that_cannot_start_raises_at_once(app: JetJobs) -> None:
    @app.task
    async def greet() -> None: ...

    @app.lifespan
    async def broken() -> AsyncIterator[None]:
        raise RuntimeError("no database")
        yield

    async with provisioned(app):
        with pytest.raises(LifespanFailed, match="no database"):
            async with working(app.worker()):
                raise AssertionError("entered")


async def test_the_worker_of_a_failing_test_releases_its_job_at_once(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(worker={"stop_timeout": "10m"})
    started = asyncio.Event()

    @app.task
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    async with provisioned(app):
        await hang.enqueue()

        async def fail() -> None:
            async with working(app.worker()):
                await asyncio.wait_for(started.wait(), 30)
                raise AssertionError("the test's own")

        with pytest.raises(AssertionError, match="the test's own"):
            await fail()
        assert len(await truth.jobs()) == 1


def test_on_server_drops_credentials_and_restores_the_settings(make_app: MakeApp) -> None:
    app = make_app(nats={"user": "u", "password": "p", "connect_timeout": "3s"}, queues={"namespace": "mine"})
    before = app.settings
    with on_server(app, "nats://127.0.0.1:1"):
        inside = app.settings
        assert (inside.nats.url, inside.nats.user, inside.nats.password) == ("nats://127.0.0.1:1", None, None)
        assert inside.nats.connect_timeout == timedelta(seconds=3)
        assert (inside.queues.namespace, inside.queues.storage) == ("mine", "memory")
    assert app.settings is before


def test_settings_that_were_not_read_before_are_read_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    app = JetJobs("t")
    with on_server(app, "nats://127.0.0.1:1"):
        pass
    monkeypatch.setenv("JETJOBS_NATS__URL", "nats://127.0.0.1:2")
    assert app.settings.nats.url == "nats://127.0.0.1:2"
