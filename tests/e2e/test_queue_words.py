"""`queues list`, `queues show` and `top` have the same word for a queue."""

from __future__ import annotations

import pytest

from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(120)

TASKS = """
import asyncio
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def hold() -> None:
    await asyncio.sleep(600)
"""


def words(shell: Shell) -> set[str]:
    """The word for the queue on each screen and in each document."""
    listed = shell("queues", "list").stdout.splitlines()[1].split("  ")[1].strip()
    shown = next(
        line for line in shell("queues", "show", "default").stdout.splitlines() if line.startswith("state")
    )
    top = next(line for line in shell("top").stdout.splitlines() if line.startswith("default"))
    documents = [shell.json("queues", "show", "default"), *shell.json("queues", "list")["items"]]
    documents += shell.json("top")["queues"]
    return {listed, shown[11:], top.split("  ")[1].strip(), *(found["activity"] for found in documents)}


def test_every_screen_has_the_same_word_for_a_queue(shell: Shell) -> None:
    shell("setup", "apply")
    assert words(shell) == {"idle"}
    shell("enqueue", "hold", "--id", "held")
    assert words(shell) == {"no worker"}
    shell("queues", "pause", "default")
    assert words(shell) == {"paused"}
    shell("queues", "resume", "default")
    with shell.process("worker") as worker:
        worker.wait_for("worker ready", timeout=60)
        shell.until("jobs", "show", "held", where=lambda found: found["state"] == "running")
        assert words(shell) == {"running"}
        shell("workers", "quiet", "--all", "--yes")
        shell.until("workers", "list", where=lambda found: found["items"][0]["phase"] == "quiet")
        assert words(shell) == {"running"}  # the quiet worker finishes its job
