"""Fixtures: a real nats-server for each test, an app on it, and the truth beside it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from jetjobs import JetJobs, Settings
from jetjobs.dev_server import EmbeddedServer
from tests.support.probe import Probe
from tests.support.server import Truth, server_settings

MakeApp = Callable[..., JetJobs]

# Apps of any name have their streams in namespace `jobs`, also those that a test makes with settings of its own.
os.environ["JETJOBS_QUEUES__NAMESPACE"] = "jobs"

# Started in the background of a script we have Ctrl-C ignored, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    """A fresh nats-server with an empty store; it is ready in milliseconds."""
    with EmbeddedServer() as running:
        yield running


@pytest.fixture
def settings_for(server: EmbeddedServer) -> Callable[..., Settings]:
    """Settings for the test's server and namespace `jobs`; groups may be overridden: settings_for(queues={"lease":
    "2s"})."""

    def make(**groups: Any) -> Settings:
        return server_settings(server.url, **groups)

    return make


@pytest.fixture
def make_app(settings_for: Callable[..., Settings]) -> MakeApp:
    def make(name: str = "test", **groups: Any) -> JetJobs:
        app = JetJobs(name)
        app.configure(settings_for(**groups))
        return app

    return make


@pytest.fixture
def app(make_app: MakeApp, request: pytest.FixtureRequest) -> JetJobs:
    """With the settings that a mark names: `@pytest.mark.settings(queues={"lease": "1s"})`."""
    mark = request.node.get_closest_marker("settings")
    return make_app(**(mark.kwargs if mark is not None else {}))


@pytest.fixture
async def truth(server: EmbeddedServer) -> AsyncIterator[Truth]:
    connected = await Truth.connect(server.url)
    yield connected
    await connected.close()


@pytest.fixture
def probe(app: JetJobs) -> Probe:
    """Records every event of `app`."""
    watching = Probe()
    app.observe(watching)
    return watching


@pytest.fixture(autouse=True)
async def no_stray_errors() -> AsyncIterator[None]:
    """A test fails when the loop saw an exception that was not handled."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: seen.append(context))
    yield
    assert not seen, seen
