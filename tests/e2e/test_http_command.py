"""`jetjobs http` as a process: the session of docs/http.md, with and without an app, and its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jetjobs.dev_server import EmbeddedServer
from jetjobs.http.models.admin_answers import QueueDetails
from jetjobs.http.models.answers import Change, EnqueuedJob, Job, JobList, ProblemDetails
from tests.support.processes import Process, clean_environment, run
from tests.support.receiver import Receiver, new_key

PAGE = Path(__file__).parents[2] / "docs" / "http.md"
TASKS = """
import asyncio
from jetjobs import JetJobs
app = JetJobs("shop")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
async def hold() -> None:
    await asyncio.sleep(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def worker(folder: Path, server: EmbeddedServer) -> Iterator[Process]:
    with Process(["worker", "-s", server.url], folder) as process:
        process.wait_for("worker ready", timeout=60)
        yield process


def served(process: Process) -> str:
    """The URL of the API, once it is served."""
    line = process.wait_for("http.ready", timeout=60)
    return str(json.loads(line)["url"])


def session() -> list[str]:
    """The curl commands of the page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith("curl")]


def test_the_session_of_the_page_works_as_it_is_written(
    folder: Path, server: EmbeddedServer, worker: Process
) -> None:
    commands = session()
    assert len(commands) == 8
    with Process(["http", "-s", server.url, "--port", "0", "--log-format", "json"], folder) as process:
        env = clean_environment(API=f"{served(process)}/api/v1")
        answers: list[Any] = []
        for command in commands:
            ran = subprocess.run(["bash", "-c", command], env=env, capture_output=True, timeout=30, check=True)
            answers.append(json.loads(ran.stdout))
        assert process.end() == 0
    stored, ended, shown, later, moved, listed, cancelled, queue = answers
    models: list[Any] = [EnqueuedJob, Job, Job, EnqueuedJob, Change, JobList, Change, QueueDetails]
    for model, answer in zip(models, answers, strict=True):
        model.model_validate_json(json.dumps(answer), strict=True)
    assert (stored["duplicate"], ended["id"]) == (False, stored["id"])
    assert (ended["result"], shown["state"]) == ("Hello, Ada!", "succeeded")
    assert (later["state"], moved["outcome"]) == ("scheduled", "moved")
    assert [(one["id"], one["priority"]) for one in listed["items"]] == [(later["id"], "high")]
    assert (cancelled["outcome"], queue["queue"], queue["workers"]) == ("cancelled", "default", 1)
    example = json.loads(re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[0])
    assert list(example) == list(stored)
    assert example["id"] == stored["id"]


def test_it_works_without_an_app(folder: Path, server: EmbeddedServer, worker: Process, tmp_path: Path) -> None:
    empty = tmp_path / "elsewhere"
    empty.mkdir()
    with Process(["http", "-s", server.url, "--port", "0", "--log-format", "json"], empty) as process:
        api = f"{served(process)}/api/v1"
        give_up = time.monotonic() + 30
        wrong = httpx.post(f"{api}/jobs", json={"task": "greet", "args": {}})
        while wrong.json()["code"] == "unknown_task":  # until the worker has published its tasks
            assert time.monotonic() < give_up
            wrong = httpx.post(f"{api}/jobs", json={"task": "greet", "args": {}})
        assert wrong.json()["errors"] == [{"field": "args.name", "message": "is missing"}]
        job = httpx.post(f"{api}/jobs?wait=10s", json={"task": "greet", "args": {"name": "Ada"}}, timeout=20)
        assert (job.status_code, job.json()["result"]) == (200, "Hello, Ada!")
        metrics = httpx.get(api.removesuffix("/api/v1") + "/metrics")
        assert (metrics.status_code, "jetjobs_" in metrics.text) == (200, True)


def test_a_callback_is_delivered_by_the_process_that_serves_the_api(
    folder: Path, server: EmbeddedServer, worker: Process
) -> None:
    key = new_key()
    env = {"JETJOBS_WEBHOOKS__DEFAULT_SECRET": key, "JETJOBS_WEBHOOKS__ALLOW_HOSTS": "127.0.0.1"}
    arguments = ["http", "-s", server.url, "--port", "0", "--log-format", "json"]
    with Receiver(key) as receiver, Process(arguments, folder, env) as process:
        api = f"{served(process)}/api/v1"
        body = {"task": "greet", "args": {"name": "Ada"}, "callback": receiver.url("/hook")}
        job = httpx.post(f"{api}/jobs", json=body)
        assert job.status_code == 201
        give_up = time.monotonic() + 40
        while not receiver.deliveries:
            assert time.monotonic() < give_up, process.lines
            time.sleep(0.05)
        [delivery] = receiver.deliveries
        assert (delivery.data["id"], delivery.data["result"]) == (job.json()["id"], "Hello, Ada!")
        refused = httpx.post(f"{api}/jobs", json={**body, "callback": "ftp://example.com"})
        assert (refused.status_code, refused.json()["code"]) == (422, "definition_error")
        for forged in (
            {"task": "jetjobs_webhook", "args": {"url": "x", "message": {}}},
            {**body, "queue": "webhooks"},
        ):
            assert httpx.post(f"{api}/jobs", json=forged).status_code == 422
        assert process.end() == 0


def test_a_signal_answers_the_requests_that_wait_and_ends_with_code_0(
    folder: Path, server: EmbeddedServer, worker: Process
) -> None:
    answers: list[httpx.Response] = []
    with Process(["http", "-s", server.url, "--port", "0", "--log-format", "json"], folder) as process:
        api = f"{served(process)}/api/v1"

        def wait() -> None:
            answers.append(httpx.post(f"{api}/jobs?wait=50s", json={"task": "hold"}, timeout=60))

        waiting = threading.Thread(target=wait)
        waiting.start()
        give_up = time.monotonic() + 30
        while not httpx.get(f"{api}/jobs").json()["items"]:
            assert time.monotonic() < give_up
        assert process.end(signal.SIGTERM, 20) == 0
        waiting.join(20)
    [answer] = answers
    assert answer.status_code == 202
    EnqueuedJob.model_validate_json(answer.content, strict=True)


def test_another_address_is_refused_without_a_token(folder: Path, server: EmbeddedServer) -> None:
    assert run(["setup", "apply", "-s", server.url], folder).returncode == 0
    arguments = ["http", "-s", server.url, "--host", "0.0.0.0", "--port", "0"]
    ended = run([*arguments, "--json"], folder)
    assert ended.returncode == 2
    problem = json.loads(ended.stderr.splitlines()[-1])["error"]
    assert "need a token" in problem["message"]
    assert "jetjobs http token new" in problem["hint"]
    made = run(["http", "token", "new", "--name", "ada", "--may", "read", "-s", server.url], folder)
    with Process([*arguments, "--log-format", "json"], folder) as process:
        api = served(process).replace("0.0.0.0", "127.0.0.1") + "/api/v1"
        refused = httpx.get(f"{api}/queues")
        ProblemDetails.model_validate_json(refused.content)
        assert refused.status_code == 401
        headers = {"Authorization": f"Bearer {made.stdout.strip()}"}
        assert httpx.get(f"{api}/queues", headers=headers).status_code == 200


def test_a_port_in_use_is_a_usage_error(folder: Path, server: EmbeddedServer) -> None:
    with Process(["http", "-s", server.url, "--port", "0", "--log-format", "json"], folder) as process:
        port = served(process).rpartition(":")[2]
        ended = run(["http", "-s", server.url, "--port", port], folder)
    assert ended.returncode == 2
    assert "cannot serve HTTP" in ended.stderr
