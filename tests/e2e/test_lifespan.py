"""A lifespan that raises ends the worker with the user's frames, one line and exit code 1."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process, run
from tests.support.server import Truth

TASKS = """
from jetjobs import JetJobs

app = JetJobs("t")


def connect():
    raise OSError("no database")


@app.lifespan
async def outer(app):
    print("outer opened", flush=True)
    try:
        yield
    finally:
        print("outer closed", flush=True)


@app.lifespan
async def pool(app):
    if {at_start}:
        connect()
    yield
    connect()


@app.task
async def work() -> None: ...
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
async def test_a_lifespan_that_raises_at_the_start(
    log_format: str, tmp_path: Path, server: EmbeddedServer, truth: Truth
) -> None:
    (tmp_path / "tasks.py").write_text(TASKS.replace("{at_start}", "True"))
    done = run(["worker", "-s", server.url, "--log-format", log_format], tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["outer opened", "outer closed"]
    trace = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert [line for line in trace if line.startswith("  ") and not line.startswith("    ")] == [
        "  tasks.py:23 in pool",
        "  tasks.py:8 in connect",
    ]
    assert trace[-2:] == [
        "OSError: no database",
        "error: lifespan 'pool' failed while the worker was starting: OSError: no database",
    ]
    (bucket,) = [name for name in (await truth.api("STREAM.NAMES"))["streams"] if name.endswith("-workers")]
    assert await truth.subjects(bucket) == {}


async def test_a_lifespan_that_raises_at_the_end(tmp_path: Path, server: EmbeddedServer, truth: Truth) -> None:
    (tmp_path / "tasks.py").write_text(TASKS.replace("{at_start}", "False"))
    with Process(["worker", "-s", server.url, "--log-format", "console"], tmp_path) as worker:
        worker.wait_for("worker ready")
        assert worker.end(signal.SIGTERM) == 1
    text = "\n".join(worker.lines)
    assert "outer closed" in worker.lines
    assert text.count("Traceback") == 1
    assert worker.lines[-1] == "error: lifespan 'pool' failed while the worker was stopping: OSError: no database"
    (bucket,) = [name for name in (await truth.api("STREAM.NAMES"))["streams"] if name.endswith("-workers")]
    # Definitions of tasks stay until they expire.
    workers = [subject for subject in await truth.subjects(bucket) if ".task." not in subject]
    records = [await truth.js.get_last_msg(bucket, subject) for subject in workers]
    assert all(record.headers and record.headers["KV-Operation"] == "DEL" for record in records)


def test_a_wrong_lifespan_is_refused_when_the_app_is_imported(tmp_path: Path) -> None:
    wrong = TASKS.replace("async def outer(app):", "def outer(app):")
    (tmp_path / "tasks.py").write_text(wrong)
    done = run(["worker"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: lifespan 'outer' is a plain generator: it must be an `async def`",
        "hint: write `@app.lifespan` above `async def life(app):` with one `yield`:"
        " what precedes it runs at the start",
    ]
