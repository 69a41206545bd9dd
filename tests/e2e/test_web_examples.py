"""The web examples over HTTP: Flask and Django under gunicorn, FastAPI under uvicorn, and a script."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process, clean_environment, run
from tests.support.server import Truth

ROOT = Path(__file__).parent.parent.parent
GUNICORN = ("-m", "gunicorn", "--bind", "127.0.0.1:0", "--no-control-socket")
UVICORN = ("-m", "uvicorn", "--port", "0")


@pytest.fixture
def env(server: EmbeddedServer, tmp_path: Path) -> dict[str, str]:
    return {
        "JETJOBS_NATS__URL": server.url,
        "JETJOBS_QUEUES__NAMESPACE": "jobs",
        "SHOP_DB": str(tmp_path / "shop.db"),
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.contextmanager
def serving(
    program: tuple[str, ...], *arguments: str, env: dict[str, str]
) -> Iterator[tuple[Process, httpx.Client]]:
    """Run a web server, and stop it gracefully at the end."""
    with Process(arguments, ROOT, env, program) as web:
        line = web.wait_for("http://127.0.0.1:")
        found = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert found is not None
        with httpx.Client(base_url=found[0], timeout=20) as client:
            yield web, client
        assert web.end() in (0, -signal.SIGTERM), web.lines  # uvicorn ends by the signal, after it has cleaned up
        assert not [line for line in web.lines if "Traceback" in line or "was destroyed" in line], web.lines


def command(env: dict[str, str], *arguments: str) -> str:
    done = run(arguments, ROOT, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def script(env: dict[str, str], module: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module]
    return subprocess.run(
        command, cwd=ROOT, env=clean_environment(**env), capture_output=True, text=True, timeout=40
    )


def test_flask_enqueues_and_shows_jobs(env: dict[str, str]) -> None:
    command(env, "setup", "apply", "examples.flask_app:app")
    with serving(GUNICORN, "--threads", "2", "examples.flask_app:web", env=env) as (_, client):
        answer = client.post("/receipts", data={"order": "7"})
        assert (answer.status_code, answer.json()) == (202, {"job": "receipt-7"})
        assert client.get("/jobs/receipt-7").json()["state"] == "queued"
        command(env, "worker", "examples.flask_app:app", "--burst")
        assert client.get("/jobs/receipt-7").json()["result"] == "receipt for order 7"
        missing = client.get("/jobs/none")
        assert (missing.status_code, missing.json()) == (404, {"error": "no job with id none"})


async def test_django_enqueues_after_the_commit_and_not_after_a_rollback(
    env: dict[str, str], truth: Truth
) -> None:
    command(env, "setup", "apply", "examples.django_app:app")
    assert script(env, "examples.django_app").returncode == 0
    with serving(GUNICORN, "--threads", "2", "examples.django_app:web", env=env) as (_, client):
        assert client.post("/orders", data={"item": "unicorn"}).status_code == 500
        order = client.post("/orders", data={"item": "pear"}).json()["order"]
        assert len(await truth.jobs()) == 1
        assert client.get(f"/orders/{order}").json() == {"confirmed": False}
        command(env, "worker", "examples.django_app:app", "--burst")
        assert client.get(f"/orders/{order}").json() == {"confirmed": True}


def test_fastapi_enqueues_on_its_loop_and_in_threads_and_shows_jobs(env: dict[str, str]) -> None:
    command(env, "setup", "apply", "examples.fastapi_app:app")
    with serving(UVICORN, "examples.fastapi_app:web", env=env) as (_, client):
        answers = [client.post(path, params={"path": "cat.png"}) for path in ("/thumbnails", "/previews")]
        assert [answer.status_code for answer in answers] == [202, 202]
        command(env, "worker", "examples.fastapi_app:app", "--burst")
        for answer, result in zip(answers, ("cat.png@200", "cat.png@32"), strict=True):
            shown = client.get(f"/jobs/{answer.json()['job']}").json()
            assert (shown["state"], shown["result"], shown["attempt"]) == ("succeeded", result, 1)
        missing = client.get("/jobs/none")
        assert (missing.status_code, missing.json()) == (404, {"detail": "no job with id none"})


def test_a_worker_inside_the_web_process_runs_jobs_and_stops_with_it(env: dict[str, str]) -> None:
    with serving(UVICORN, "examples.fastapi_worker:web", env=env) as (web, client):
        answer = client.post("/greetings", params={"name": "Ada"})
        assert answer.json() == {"greeting": "Hello, Ada!"}
    assert "Application shutdown complete" in "\n".join(web.lines)


def test_a_plain_script_enqueues_and_waits(env: dict[str, str]) -> None:
    with Process(["worker", "examples.shop:app"], ROOT, env) as worker:
        worker.wait_for("worker.ready")
        done = script(env, "examples.plain_script")
    assert (done.returncode, done.stdout, done.stderr) == (0, "100 jobs stored\nHello, Ada!\n", "")


# Load

ORDERS, CLIENTS, WORKERS = 2000, 8, 4
# The master enqueues, too, so each worker is forked from a process with a connection and a running thread.
CONFIG = """
def when_ready(server):
    from examples.flask_app import send_receipt

    send_receipt.options(job_id="receipt-0").enqueue_sync(0)
"""


class Shoppers:
    """Clients that place orders, each until it is answered: they repeat a request that failed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._orders = iter(range(1, ORDERS + 1))
        self._lock = threading.Lock()
        self.placed = 0
        self.repeated = 0
        self.failures: list[BaseException] = []

    def shop(self) -> None:
        try:
            with httpx.Client(base_url=self._url, timeout=20) as client:
                while (order := self._next()) is not None:
                    self._place(client, order)
        except BaseException as error:
            self.failures.append(error)

    def _next(self) -> int | None:
        with self._lock:
            return next(self._orders, None)

    def _place(self, client: httpx.Client, order: int) -> None:
        while True:
            try:
                answer = client.post("/receipts", data={"order": str(order)})
            except httpx.TransportError:
                with self._lock:
                    self.repeated += 1
                continue
            assert answer.status_code == 202, answer.text
            with self._lock:
                self.placed += 1
            return


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.alone
async def test_four_forked_workers_store_each_order_once_although_one_is_killed(
    env: dict[str, str], tmp_path: Path, truth: Truth
) -> None:
    command(env, "setup", "apply", "examples.flask_app:app")
    config = tmp_path / "gunicorn.conf.py"
    config.write_text(CONFIG)
    options = ("--config", str(config), "--preload", "--workers", str(WORKERS), "--threads", "4")
    with serving(GUNICORN, *options, "examples.flask_app:web", env=env) as (web, client):
        web.wait_for("Booting worker", WORKERS)
        shoppers = Shoppers(str(client.base_url))
        threads = [threading.Thread(target=shoppers.shop) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while shoppers.placed < ORDERS // 3:
            assert not shoppers.failures, shoppers.failures
            await asyncio.sleep(0.01)
        os.kill(children_of(web.popen.pid)[0], signal.SIGKILL)
        for thread in threads:
            thread.join()
        assert not shoppers.failures, shoppers.failures
        web.wait_for("Booting worker", WORKERS + 1)
        assert client.get("/jobs/receipt-1").json()["state"] == "queued"
    stored = [subject.rsplit(".", 1)[1] for subject in await truth.jobs()]
    assert sorted(stored) == sorted(f"receipt-{n}" for n in range(ORDERS + 1))
