"""A thousand clients of `jetjobs http` enqueue and wait while the worker and the NATS server are killed."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.probe import wait_until
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.shell import Shell

TASKS = """
import asyncio
from jetjobs import JetJobs, current_job
app = JetJobs("demo")

@app.task
async def deliver(order: int) -> int:
    with open("journal", "a") as journal:
        journal.write(f"{order} {current_job().id}\\n")
    await asyncio.sleep(0.15)
    return order
"""
CLIENTS, SLOTS = 1_000, 20
LIVE = {"queued", "running", "retrying", "scheduled"}
pytestmark = [pytest.mark.alone, pytest.mark.timeout(240)]


class Clients:
    """The callers, and what they were answered."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http
        self.answers: Counter[int] = Counter()
        self.accepted: dict[int, str] = {}
        self.ended = 0
        self.progress = asyncio.Condition()

    async def order(self, number: int) -> None:
        """Enqueue until accepted, and wait until the job has ended. Any error is answered by asking again."""
        body = {"task": "deliver", "args": {"order": number}}
        headers = {"Idempotency-Key": f"order-{number}"}
        found = await self._until(200, 201, 202, method="POST", url="/api/v1/jobs", json=body, headers=headers)
        self.accepted[number] = found["id"]
        await self._report()
        while found["state"] in LIVE:
            found = await self._until(
                200, 202, method="GET", url=f"/api/v1/jobs/{found['id']}", params={"wait": "10s"}
            )
        assert (found["state"], found["result"]) == ("succeeded", number)
        self.ended += 1
        await self._report()

    async def _until(self, *codes: int, **request: Any) -> dict[str, Any]:
        while True:
            try:
                answer = await self._http.request(**request)
            except httpx.TransportError:
                self.answers[0] += 1
            else:
                self.answers[answer.status_code] += 1
                content: dict[str, Any] = answer.json()
                if answer.status_code in codes:
                    return content
                assert answer.status_code in (429, 503, 504), (request, answer.status_code, content)
                assert answer.headers["Content-Type"].startswith("application/problem+json")
                if answer.status_code == 504:
                    assert content["job_id"], content  # what to ask for
                await self._report()
            await asyncio.sleep(0.2)

    async def until(self, reached: Callable[[], bool]) -> None:
        async with self.progress:
            await self.progress.wait_for(reached)

    async def _report(self) -> None:
        async with self.progress:
            self.progress.notify_all()


async def test_every_accepted_job_has_its_effect_once_through_kills(
    shell: Shell, folder: Path, server: EmbeddedServer, truth: Truth
) -> None:
    (folder / "tasks.py").write_text(TASKS)
    shell.env["JETJOBS_QUEUES__LEASE"] = "5s"
    journal = folder / "journal"
    journal.touch()
    worker = ("worker", "--slots", str(SLOTS), "--log-level", "error")
    with (
        shell.process(*worker, "--name", "first") as first,
        shell.process("http", "--port", "0") as api,
    ):
        address = address_of(api)
        limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
        async with httpx.AsyncClient(base_url=address, limits=limits, timeout=60) as http:
            clients = Clients(http)
            everyone = asyncio.gather(*(clients.order(number) for number in range(CLIENTS)))
            await clients.until(lambda: len(clients.accepted) >= CLIENTS // 4)
            await asyncio.to_thread(server.kill)
            await clients.until(lambda: clients.answers[503] + clients.answers[504] > 0)
            await asyncio.to_thread(server.start)
            await wait_until(lambda: len(journal.read_text().splitlines()) >= CLIENTS // 2, 60)
            first.popen.kill()
            with shell.process(*worker, "--name", "second"):
                await everyone
    ids = defaultdict(set)
    runs: Counter[int] = Counter()
    for line in journal.read_text().splitlines():
        number, job_id = line.split()
        ids[int(number)].add(job_id)
        runs[int(number)] += 1
    assert {number: {job_id} for number, job_id in clients.accepted.items()} == ids, "one job for each order"
    assert sorted(ids) == list(range(CLIENTS))
    again = [number for number, count in runs.items() if count > 1]
    assert 0 < len(again) <= 2 * SLOTS, "only what ran when a process died runs again"
    print(json.dumps({"answers": clients.answers, "run again": len(again)}))


def address_of(api: Process) -> str:
    found = re.search(r"http://[\w.:]+", api.wait_for("http://", timeout=60))
    assert found is not None
    return found[0]
