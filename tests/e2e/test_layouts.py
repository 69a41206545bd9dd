"""Commands against a server whose streams another version of jetjobs has created."""

from __future__ import annotations

import pytest

from tests.support.layouts import change_layout
from tests.support.server import Truth
from tests.support.shell import Shell

TASKS = """
from jetjobs import JetJobs

app = JetJobs("shop")


@app.task
async def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.mark.timeout(120)
async def test_commands_refuse_streams_of_another_layout(shell: Shell, truth: Truth) -> None:
    shell("setup", "apply")
    await change_layout(truth, "1")
    for command in (("setup", "plan"), ("setup", "apply"), ("worker",), ("enqueue", "greet", "name=Ada")):
        lines = shell(*command, code=6).stderr.splitlines()
        assert lines[-2].startswith("error: streams of another version of jetjobs: jobs-dead, jobs-work-default")
        assert "`jetjobs dev --fresh`" in lines[-1]
    assert await truth.jobs() == []
    for line in ("jobs list", "queues pause default", "queues purge default --yes", "top"):
        assert "jobs-work-default" in shell(*line.split(), code=6).stderr
    assert "layout" in shell("doctor", code=1).stdout
