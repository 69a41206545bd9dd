"""The pytest plugin: fixtures for a real server per test, the app on it, and a running worker.

pytest loads the plugin wherever jetjobs is installed, so it imports jetjobs only when a fixture is used.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Literal, get_args

import pytest

if TYPE_CHECKING:
    from jetjobs.app import JetJobs
    from jetjobs.dev_server import EmbeddedServer
    from jetjobs.testing import Clock
    from jetjobs.worker.worker import Worker

LoopScope = Literal["session", "package", "module", "class", "function"]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("jetjobs")
    group.addoption(
        "--jetjobs-require-server",
        action="store_true",
        help="fail tests that need a nats-server, instead of skipping them, when it is not installed",
    )
    parser.addini("jetjobs_app", "MODULE:NAME of the app for the fixture jetjobs_app", default="")


def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.has_plugin("asyncio"):
        config.pluginmanager.register(_asyncio_fixtures(), "jetjobs-asyncio")


@pytest.fixture
def nats_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A new nats-server with its own storage on loopback, for this test only: `nats_server.url`."""
    from jetjobs.dev_server import EmbeddedServer, find_binary
    from jetjobs.model.errors import ConfigError

    try:
        find_binary()
    except ConfigError as error:
        reason = f"{error}: {error.hint}"
        if request.config.getoption("--jetjobs-require-server"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    with EmbeddedServer() as server:
        yield server


@pytest.fixture
def jetjobs_app_factory(request: pytest.FixtureRequest) -> Callable[[], JetJobs]:
    """Override this fixture to choose the app of `jetjobs_app`: return the app, or a function that creates it.

    By default, the app is the setting `jetjobs_app` of pytest's configuration, or the one the command line finds.
    """
    from jetjobs.cli.app_discovery import find_app
    from jetjobs.config import load_settings
    from jetjobs.model.errors import ConfigError

    def find() -> JetJobs:
        target = request.config.getini("jetjobs_app") or load_settings().settings.app
        try:
            return find_app(target)
        except ConfigError as error:
            hint = "set `jetjobs_app = MODULE:NAME` in pytest's configuration, or override jetjobs_app_factory"
            pytest.fail(f"jetjobs_app: {error}; {hint}", pytrace=False)

    return find


@pytest.fixture
def _jetjobs_configured(
    nats_server: EmbeddedServer, jetjobs_app_factory: Callable[[], JetJobs] | JetJobs
) -> Iterator[JetJobs]:
    """The app with settings for the test's server, not opened."""
    from jetjobs.app import JetJobs
    from jetjobs.testing import on_server

    app = jetjobs_app_factory if isinstance(jetjobs_app_factory, JetJobs) else jetjobs_app_factory()
    with on_server(app, nats_server.url):
        yield app


@pytest.fixture
def jetjobs_app(request: pytest.FixtureRequest, _jetjobs_configured: JetJobs) -> JetJobs:
    """The app on a new server, with its queues. Open in async tests; a plain test has no event loop for it."""
    if _is_async(request):
        opened: JetJobs = request.getfixturevalue(f"_jetjobs_open_{_runner(request)}")
        return opened
    from jetjobs.sync import run_in_background

    async def provision() -> None:
        async with _jetjobs_configured as app:
            await _prepare(app)

    run_in_background(provision())
    return _jetjobs_configured


@pytest.fixture
def jetjobs_worker(request: pytest.FixtureRequest, jetjobs_app: JetJobs) -> Worker:
    """A worker for all queues of the app, running in the test's event loop. For async tests only.

    It plans no schedules, so that every job comes from the test.
    """
    if not _is_async(request):
        pytest.fail(
            "jetjobs_worker needs an async test; in a plain test use asyncio.run(drain(app))", pytrace=False
        )
    working: Worker = request.getfixturevalue(f"_jetjobs_working_{_runner(request)}")
    return working


@pytest.fixture
def jetjobs_clock(jetjobs_app: JetJobs) -> Clock:
    """Let time pass for waiting jobs: `jetjobs_clock.advance("2h")`."""
    from jetjobs.testing import Clock

    return Clock(jetjobs_app)


# The same two fixtures exist once for anyio and once for each loop scope of pytest-asyncio, because an app can be
# used only in the event loop that opened it.


async def _prepare(app: JetJobs) -> None:
    """Create the queues, and store the declared schedules as a worker does, for `app.schedules.run_now`."""
    from jetjobs.worker.scheduling.declared import sync_declared

    await app.provision()
    await sync_declared(app.jetstream, app.name, app.declared_schedules)


def _opener() -> Callable[..., AsyncIterator[JetJobs]]:
    async def opened(_jetjobs_configured: JetJobs) -> AsyncIterator[JetJobs]:
        async with _jetjobs_configured as app:
            await _prepare(app)
            yield app

    return opened


def _starter() -> Callable[..., AsyncIterator[Worker]]:
    async def started(jetjobs_app: JetJobs) -> AsyncIterator[Worker]:
        from jetjobs.testing import working

        async with working(jetjobs_app.worker(schedules=False)) as worker:
            yield worker

    return started


_jetjobs_open_anyio = pytest.fixture(_opener(), name="_jetjobs_open_anyio")
_jetjobs_working_anyio = pytest.fixture(_starter(), name="_jetjobs_working_anyio")


def _asyncio_fixtures() -> ModuleType:
    import pytest_asyncio

    fixtures = ModuleType("jetjobs_asyncio")
    for scope in get_args(LoopScope):
        # Each fixture needs its own function: pytest-asyncio stores the loop scope on the function.
        for name, function in ((f"_jetjobs_open_{scope}", _opener()), (f"_jetjobs_working_{scope}", _starter())):
            setattr(fixtures, name, pytest_asyncio.fixture(function, loop_scope=scope, name=name))
    return fixtures


def _is_async(request: pytest.FixtureRequest) -> bool:
    """Whether a pytest plugin runs the test in an event loop. unittest brings its own loop for its tests."""
    unittest = sys.modules.get("unittest")
    if unittest is not None and isinstance(request.instance, unittest.TestCase):
        return False
    return inspect.iscoroutinefunction(inspect.unwrap(request.function))


def _runner(request: pytest.FixtureRequest) -> str:
    """Which fixtures open the app for this test: `anyio`, or the loop scope of pytest-asyncio."""
    if "anyio_backend" in request.fixturenames:
        if request.getfixturevalue("anyio_backend_name") != "asyncio":
            pytest.skip("jetjobs needs asyncio")
        return "anyio"
    if not request.config.pluginmanager.has_plugin("asyncio"):
        pytest.fail("an async test needs pytest-asyncio, or anyio's plugin and @pytest.mark.anyio", pytrace=False)
    marker = request.node.get_closest_marker("asyncio")
    scope = marker.kwargs.get("loop_scope") if marker is not None else None
    return str(scope or request.config.getini("asyncio_default_test_loop_scope") or "function")
