"""The examples, the demo and the README's quick start run unchanged."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process, clean_environment, run

ROOT = Path(__file__).parent.parent.parent


def test_the_demo_shows_every_outcome_and_leaves_no_process_behind() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo"],
        cwd=ROOT,
        env=clean_environment(JETJOBS_QUEUES__NAMESPACE=""),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for fact in (
        "scheduled, due in",
        "running",
        "retrying, due in",
        "succeeded",
        "dead",
        "duplicate=True",
        "every 2s",
    ):
        assert fact in done.stdout
    server, worker = re.search(r"nats://127.0.0.1:(\d+)", done.stdout), re.search(r"pid (\d+)", done.stdout)
    assert server is not None
    assert worker is not None
    assert not Path(f"/proc/{worker[1]}").exists()
    still = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert f"-p {server[1]}" not in still
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_the_quick_start_of_the_readme_works_as_pasted(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    tasks = re.search(r"cat > tasks.py <<'END'\n(.*?)\nEND\n", readme, re.DOTALL)
    assert tasks is not None, "the README makes tasks.py with a heredoc"
    assert len([line for line in tasks[1].splitlines() if line.strip()]) <= 6
    (tmp_path / "tasks.py").write_text(tasks[1] + "\n")
    command = re.search(r"^\$? ?jetjobs (enqueue greet name=Ada --wait)$", readme, re.MULTILINE)
    assert command is not None
    with Process(["dev"], tmp_path) as dev:
        dev.wait_for("worker ready")
        done = run(command[1].split(), tmp_path)
        assert done.returncode == 0, done.stderr
        assert '"Hello, Ada!"' in done.stdout
        assert dev.end(signal.SIGINT) == 0


def test_the_code_of_the_page_on_schedules_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "schedules.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "page.py").write_text("\n\n".join([*blocks, "import asyncio", "asyncio.run(main())"]))
    with EmbeddedServer() as server:
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env=clean_environment(NATS_URL=server.url),
            capture_output=True,
            text=True,
            timeout=45,
        )
    assert done.returncode == 0, done.stderr
    listed, paused, resumed, ran = done.stdout.splitlines()
    assert (listed, paused, resumed) == ("['yearly']", "paused", "on")
    assert re.fullmatch(r"report \d{4}-01-01 06:00:00\+00:00", ran)


DEAD_TASKS = """
from jetjobs import JetJobs, RetryPolicy

app = JetJobs("docs")


@app.task(retry=RetryPolicy(max_attempts=1))
async def greet(name: str) -> str:
    raise ValueError(f"no {name}")
"""


def test_the_code_of_the_page_on_dead_letters_works(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "dead-letters.md").read_text()
    (tmp_path / "tasks.py").write_text(DEAD_TASKS)
    (tmp_path / "page.py").write_text("\n\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL)))
    with EmbeddedServer() as server:
        env = {"NATS_URL": server.url}
        with Process(["worker"], tmp_path, env) as worker:
            worker.wait_for("worker.ready")
            for arguments in (["name=Ada"], ["name=Eve", "--id", "hello-1"]):
                assert run(["enqueue", "greet", *arguments, "--wait"], tmp_path, env=env).returncode == 1
            assert worker.end() == 0
        done = subprocess.run(
            [sys.executable, "page.py"],
            cwd=tmp_path,
            env=clean_environment(**env),
            capture_output=True,
            text=True,
            timeout=45,
        )
    assert done.returncode == 0, done.stderr
    for fact in ("hello-1 exhausted no Eve", "2 greet exhausted ValueError", '{"name":"Eve"}', "replayed"):
        assert fact in done.stdout, done.stdout
    assert done.stdout.endswith("\n0 0\n"), done.stdout  # all were replayed before the export
