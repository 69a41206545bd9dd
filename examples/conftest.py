"""Configure the pytest plugin: the fixture `jetjobs_app` gives the shop."""

from __future__ import annotations

import pytest

from examples.shop import app
from jetjobs import JetJobs


@pytest.fixture
def jetjobs_app_factory() -> JetJobs:
    return app
