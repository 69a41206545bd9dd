"""Fixtures of the end-to-end tests: a journal, the app that writes to it, a folder, and a shell in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.e2e import journal_tasks
from tests.support.server import server_settings
from tests.support.shell import Shell
from tests.support.workers import provisioned


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.touch()
    return path


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    journal_tasks.app.configure(server_settings(server.url))
    async with provisioned(journal_tasks.app) as opened:
        yield opened


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the tasks in TASKS of the test's module."""
    (tmp_path / "tasks.py").write_text(request.module.TASKS)
    return tmp_path


@pytest.fixture
def shell(folder: Path, server: EmbeddedServer) -> Shell:
    return Shell(folder, server.url)
