"""`jetjobs doctor` as an operator runs it, on a single server and on a cluster."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.admin import Finding
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.errors import BrokerError
from jetjobs.model.settings import build_settings
from tests.support.cluster import Cluster
from tests.support.probe import eventually
from tests.support.processes import run
from tests.support.terminal import Terminal

pytestmark = pytest.mark.timeout(240)  # several processes each, on a machine that may be busy

TASKS = """
from jetjobs import JetJobs
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


def test_text_output_json_output_and_exit_codes(folder: Path, server: EmbeddedServer) -> None:
    there = ("-s", server.url, "--timeout", "30s")

    bare = run(["doctor", *there], folder, timeout=50)
    assert bare.returncode == 1, bare.stderr
    assert "queue default does not exist: greet cannot be enqueued  → jetjobs setup apply" in bare.stdout
    assert "12 are missing: dead-letter stream jobs-dead, " in bare.stdout
    assert run(["setup", "apply", *there], folder, timeout=50).returncode == 0

    fresh = run(["doctor", *there], folder, timeout=50)
    assert (fresh.returncode, fresh.stderr) == (0, "")
    lines = fresh.stdout.splitlines()
    assert lines[-1] == f"0 failed, 1 warning, {len(lines) - 3} ok, 1 skipped"
    assert "warn  workers     no running workers  → start one with `jetjobs worker`" in lines
    assert {line[:6].strip() for line in lines[:-1]} == {"ok", "warn", "skip"}
    assert "\x1b" not in fresh.stdout
    assert run(["doctor", "--strict", *there], folder, timeout=50).returncode == 1
    assert (
        run(["doctor", "--strict", "--only", "nats,topology,queues", *there], folder, timeout=50).returncode == 0
    )

    assert run(["enqueue", "greet", "name=Ada", *there], folder, timeout=50).returncode == 0
    warned = run(["doctor", *there], folder, timeout=50)
    assert warned.returncode == 0
    expected = (
        "warn  queues      queue default: 1 job waiting and no running worker"
        "  → start one with `jetjobs worker -q default`"
    )
    assert expected in warned.stdout.splitlines()

    asked = run(["doctor", "--only", "queues,app", "--json", *there], folder, timeout=50)
    document = json.loads(asked.stdout)
    assert list(document) == ["items", "failed", "warnings", "ok", "left_out"]
    assert (document["failed"], document["warnings"], document["left_out"]) == (0, 1, 0)
    assert document["ok"] == len(document["items"]) - 1
    assert {item["area"] for item in document["items"]} == {"queues", "app"}
    assert [item for item in document["items"] if item["level"] != "ok"] == [
        {
            "level": "warn",
            "area": "queues",
            "check": "unserved",
            "text": "queue default: 1 job waiting and no running worker",
            "hint": "start one with `jetjobs worker -q default`",
        }
    ]


def test_an_app_that_cannot_be_imported_or_does_not_exist(folder: Path, server: EmbeddedServer) -> None:
    there = ("-s", server.url, "--timeout", "30s", "--only", "app")
    (folder / "broken.py").write_text("1 / 0\n")
    broken = run(["doctor", "broken:app", *there], folder, timeout=50)
    assert broken.returncode == 1
    assert "fail  app         the app 'broken:app' cannot be imported: ZeroDivisionError" in broken.stdout
    assert run(["doctor", "nowhere:app", *there], folder, timeout=50).returncode == 1
    (folder / "tasks.py").unlink()
    without = run(["doctor", *there], folder, timeout=50)
    assert without.returncode == 0
    assert "skip  app         tasks: no app found in tasks.py" in without.stdout


def test_no_line_is_wider_than_the_terminal(folder: Path) -> None:
    columns = 40
    arguments = ["doctor", "-s", "nats://127.0.0.1:1", "--timeout", "1s"]
    with Terminal(arguments, folder, {"NO_COLOR": "1"}, columns=columns) as terminal:
        assert terminal.end(60) == 1
        assert max(map(len, terminal.lines)) <= columns, terminal.text
        shown = " ".join(" ".join(terminal.lines).split())
        assert shown.startswith("fail nats no NATS server at nats://127.0.0.1:1 within 1 s:")
        assert "→ start one with `jetjobs dev`, or set another with --server or JETJOBS_NATS__URL" in shown
        assert "1 failed, 0 warnings, 1 ok, 4 skipped" in shown


def bad(findings: list[Finding]) -> list[tuple[str, str]]:
    return sorted((finding.check, finding.level) for finding in findings if finding.level in ("warn", "fail"))


async def set_up(app: JetJobs) -> None:
    """A new cluster on a busy machine may not answer yet."""

    async def done() -> bool:
        with contextlib.suppress(BrokerError):
            await app.provision()
            return True
        return False

    await eventually(done, 90)


async def test_replicas_are_checked_in_a_cluster(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:

        def app_of(**queues: object) -> JetJobs:
            nats = {"url": cluster.url, "connect_timeout": "30s"}
            app = JetJobs("test")
            app.configure(build_settings({"nats": nats, "queues": queues}))

            @app.task
            async def work() -> None: ...

            return app

        async with app_of() as app:
            await set_up(app)

            async def well() -> bool:
                return bad(await app.doctor(only=["nats", "topology"])) == []

            await eventually(well, 60)  # a new cluster may still elect leaders
            async with app_of(namespace="single", replicas=1) as single:
                await set_up(single)
            found = await app_of(namespace="single").doctor(only=["topology"])
            assert bad(found) == [("copies", "warn")], found

            cluster.nodes[2].kill()

            async def noticed() -> list[Finding] | None:
                found = await app.doctor(only=["topology"])
                return found if ("copies", "warn") in bad(found) else None

            found = await eventually(noticed, 90)
            assert any("the replica on n3 is behind" in finding.text for finding in found), found
