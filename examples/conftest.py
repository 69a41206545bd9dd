"""Tells the pytest plugin which app the fixture `jetjobs_app` gives."""

from __future__ import annotations

import pytest

from examples.shop import app
from jetjobs import JetJobs


@pytest.fixture
def jetjobs_app_factory() -> JetJobs:
    return app
