"""Fixtures that several integration tests share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from jetjobs import JetJobs, Settings
from tests.conftest import MakeApp
from tests.integration import kept_tasks
from tests.support.schedule_edits import QUEUES, app_of
from tests.support.shop import Shop
from tests.support.workers import provisioned


@pytest.fixture
async def opened(app: JetJobs) -> AsyncIterator[JetJobs]:
    async with app:
        yield app


@pytest.fixture
def work(app: JetJobs) -> Any:
    """A task that returns its number."""

    @app.task
    async def work(n: int = 0) -> int:
        return n

    return work


@pytest.fixture
async def kept_app(settings_for: Callable[..., Settings]) -> AsyncIterator[JetJobs]:
    """The app of kept_tasks.py on the test's server, provisioned."""
    kept_tasks.app.configure(settings_for())
    kept_tasks.app._observers.clear()
    async with provisioned(kept_tasks.app) as opened:
        yield opened


@pytest.fixture
async def shop(app: JetJobs) -> AsyncIterator[Shop]:
    """The app with the tasks of a shop, provisioned."""
    shop = Shop(app)
    async with provisioned(app):
        yield shop


@pytest.fixture
async def queues_app(make_app: MakeApp) -> AsyncIterator[JetJobs]:
    """An app with three queues and a task to schedule, open and provisioned."""
    async with app_of(make_app) as app:
        await app.provision(QUEUES)
        yield app
