"""Webhooks of real workers: whatever fails on the way, each end of a job reaches its receiver, verified."""

from __future__ import annotations

import asyncio
import json
import textwrap
import time
from collections import Counter
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from tests.support.probe import eventually, wait_until
from tests.support.processes import Process, run
from tests.support.receiver import Delivery, Receiver, Reply, new_key
from tests.support.server import Truth, server_settings

JOBS = 200
KILLS = 3
TASKS = """
    import os, signal
    from jetjobs import JetJobs, RetryPolicy
    from jetjobs.jetstream.webhooks import Webhooks
    from jetjobs.worker.webhooks import delivery_task

    app = JetJobs("shop")
    delivery_task.RETRY = RetryPolicy(max_attempts=1000, base="50ms", cap="200ms")

    @app.task(retry=1)
    async def work(n: int) -> int:
        if n % 3 == 0:
            raise ValueError(f"not {n}")
        return n

    calls = 0
    after = os.environ.get("DIE_AFTER", "")
    add = Webhooks.add

    async def add_or_die(self, job, *rest):
        '''Dies once the record of a job is stored: before its webhook is, or before the ack.'''
        global calls
        calls += 1
        if after and calls == 30:
            if after == "webhook":
                await add(self, job, *rest)
            os.kill(os.getpid(), signal.SIGKILL)
        await add(self, job, *rest)

    Webhooks.add = add_or_die
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(textwrap.dedent(TASKS))
    return tmp_path


def _environment(server: EmbeddedServer, key: str) -> dict[str, str]:
    return {
        "JETJOBS_NATS__URL": server.url,
        "JETJOBS_QUEUES__LEASE": "1s",
        "JETJOBS_QUEUES__MAX_CRASHES": "100",
        "JETJOBS_WEBHOOKS__DEFAULT_SECRET": key,
        "JETJOBS_WEBHOOKS__ALLOW_HOSTS": "127.0.0.1",
        "JETJOBS_WEBHOOKS__TIMEOUT": "500ms",
    }


class Unreliable:
    """Answers every delivery of an id badly at first: with 500, too late, or not at all."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def __call__(self, delivery: Delivery) -> Reply:
        self._seen[delivery.id] += 1
        number = delivery.data["id"].rsplit("-", 1)[1]
        if self._seen[delivery.id] == 1 and int(number) % 2:
            return Reply(500)
        if self._seen[delivery.id] == 1 and int(number) % 10 == 4:
            time.sleep(0.7)
            return Reply(503)
        return Reply(200)


@pytest.mark.timeout(120)
async def test_no_end_is_lost_through_500s_timeouts_restarts_and_kills(
    server: EmbeddedServer, truth: Truth, folder: Path
) -> None:
    key = new_key()
    environment = _environment(server, key)
    worker = ["worker", "-q", "default,webhooks", "-c", "20"]
    app = JetJobs("shop", settings=server_settings(server.url, queues={"lease": "1s", "max_crashes": 100}))
    with Receiver(key, Unreliable()) as receiver:
        async with app:
            await app.provision(["default", "webhooks"])
            for n in range(JOBS):
                delay = 3600 if n % 20 == 1 else 0
                await app.enqueue("work", {"n": n}, callback=receiver.url(f"/{n}"), job_id=f"job-{n}", delay=delay)
            for n in range(1, JOBS, 20):
                await app.jobs.cancel(f"job-{n}", by="ada")
            for kill in range(KILLS):
                dies = {"DIE_AFTER": "record" if kill % 2 == 0 else "webhook"}
                with Process(worker, folder, {**environment, **dies}) as process:
                    assert await asyncio.to_thread(process.popen.wait, 30) == -9
            with Process(worker, folder, environment) as process:
                await wait_until(lambda: len(receiver.accepted()) > JOBS // 3, 30)
                receiver.stop()
                await asyncio.to_thread(process.wait_for, "Connection refused")
                receiver.start()
                await wait_until(lambda: len(receiver.accepted()) >= JOBS, 60)
                await truth.until_empty()
                await truth.until_empty("webhooks")
                assert process.end() == 0
    expected = {f"job-{n}": _state(n) for n in range(JOBS)}
    assert {one.data["id"]: one.data["state"] for one in receiver.accepted().values()} == expected
    assert receiver.unverified == []
    # Every delivery of one end has the same id.
    ids = {one.data["id"]: set[str]() for one in receiver.deliveries}
    for one in receiver.deliveries:
        ids[one.data["id"]].add(one.id)
    assert all(len(found) == 1 for found in ids.values())
    dead = await truth.dead()
    assert {letter["subject"].split(".")[2] for letter in dead.values()} == {"default"}


def _state(n: int) -> str:
    return "cancelled" if n % 20 == 1 else "dead" if n % 3 == 0 else "succeeded"


async def test_the_command_line_enqueues_and_shows_a_callback(
    server: EmbeddedServer, truth: Truth, folder: Path
) -> None:
    environment = _environment(server, new_key())
    url = "https://example.com/hooks"
    await asyncio.to_thread(run, ["setup", "apply"], folder, 30, environment)
    asked = ["enqueue", "work", "n=1", "--id", "mine", "--callback", url]
    stored = await asyncio.to_thread(run, asked, folder, 30, environment)
    assert stored.returncode == 0, stored.stderr
    (subject,) = await truth.jobs()
    message = await truth.js.get_last_msg("jobs-work-default", subject)
    assert (message.headers or {})["Jetjobs-Callback"] == url
    shown = await asyncio.to_thread(run, ["jobs", "show", "mine"], folder, 30, environment)
    assert f"callback     {url}" in shown.stdout
    as_json = await asyncio.to_thread(run, ["--json", "jobs", "show", "mine"], folder, 30, environment)
    assert json.loads(as_json.stdout)["callback"] == url
    bad = ["enqueue", "work", "n=1", "--callback", "https://ada:pass@example.com"]
    refused = await asyncio.to_thread(run, bad, folder, 30, environment)
    assert refused.returncode == 2
    assert "pass" not in refused.stderr.replace("password", "")


async def test_a_worker_without_the_extra_exits_with_2_and_names_it(server: EmbeddedServer, folder: Path) -> None:
    tasks = folder / "tasks.py"
    tasks.write_text("import sys\nsys.modules['h11'] = None\nfrom jetjobs import JetJobs\napp = JetJobs('shop')\n")
    ended = await asyncio.to_thread(
        run, ["worker", "-q", "webhooks"], folder, 30, _environment(server, new_key()), fresh=True
    )
    assert ended.returncode == 2
    assert "pip install 'jetjobs[http]'" in ended.stderr


async def test_settings_show_endpoints_and_no_keys(folder: Path) -> None:
    key = new_key()
    (folder / "jetjobs.toml").write_text(
        f'[webhooks]\nallow_hosts = ["*.internal:8443", "10.0.0.7"]\ndefault_secret = "{key} {new_key("b")}"\n'
        f'[webhooks.secrets]\n"https://a.example/hooks" = "{key}"\n"b.example" = ["{key}", "{new_key("b")}"]\n'
    )
    shown = await asyncio.to_thread(run, ["config", "show"], folder)
    assert shown.returncode == 0, shown.stderr
    assert "https://a.example/hooks = ********, b.example = ********, ********" in shown.stdout
    assert "*.internal:8443, 10.0.0.7" in shown.stdout
    assert "whsec_" not in shown.stdout


async def test_a_callback_before_the_queue_exists_creates_it(
    server: EmbeddedServer, truth: Truth, folder: Path
) -> None:
    key = new_key()
    environment = _environment(server, key)
    with Receiver(key) as receiver, Process(["worker"], folder, environment) as process:
        await asyncio.to_thread(process.wait_for, "worker.ready")
        asked = ["enqueue", "work", "n=1", "--callback", receiver.url()]
        await asyncio.to_thread(run, asked, folder, 30, environment)
        await eventually(lambda: truth.has_stream("jobs-work-webhooks"))
        await eventually(lambda: truth.jobs("webhooks"))
        with Process(["worker", "-q", "webhooks"], folder, environment):
            await wait_until(lambda: receiver.accepted())
