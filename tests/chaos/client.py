"""The producer's process, `python -m tests.chaos.client FILE`: its wall clock can leap without the harness's.

FILE has its orders as JSON. What it did is written to `FILE.done`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from jetjobs import JetJobs
from jetjobs.dev_server import die_with_parent
from tests.chaos import clock, tasks
from tests.chaos.asker import Asker
from tests.chaos.history import History
from tests.chaos.plan import PlannedJob
from tests.chaos.producer import Producer
from tests.chaos.world import plain_client, settings
from tests.support.processes import clean_environment

ROOT = Path(__file__).parent.parent.parent
_START_S = 30.0
_READY = "ready"


class Client:
    """The process as the harness sees it."""

    def __init__(self, process: asyncio.subprocess.Process, orders: Path) -> None:
        self._process = process
        self._orders = orders
        self.pid = process.pid

    def start(self, started: float) -> None:
        """Begin with the jobs, as of `started`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{started!r}\n".encode())

    async def finished(self, history: History) -> None:
        """Wait until every job has its answer, and add what the process recorded to `history`."""
        if await self._process.wait():
            raise AssertionError(f"the producer failed: {_log(self._orders).read_text()[-3000:]}")
        history.load(_done(self._orders))


@contextlib.asynccontextmanager
async def open_client(
    folder: Path, jobs: list[PlannedJob], url: str, direct_url: str, replicas: int
) -> AsyncIterator[Client]:
    """Start the process and wait until it is connected."""
    orders = folder / "producer"
    orders.write_text(json.dumps({"jobs": jobs, "url": url, "direct_url": direct_url, "replicas": replicas}))
    with _log(orders).open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.chaos.client",
            str(orders),
            cwd=ROOT,
            env=clean_environment(**clock.environment()),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=die_with_parent(),
        )
    try:
        assert process.stdout is not None
        line = await asyncio.wait_for(process.stdout.readline(), _START_S)
        assert line.strip() == _READY.encode(), _log(orders).read_text()[-3000:]
        yield Client(process, orders)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


def _log(orders: Path) -> Path:
    return orders.with_suffix(".log")


def _done(orders: Path) -> Path:
    return orders.with_suffix(".done")


async def _main(path: Path, orders: dict[str, Any]) -> None:
    jobs = [PlannedJob(*one) for one in orders["jobs"]]
    history = History()
    tasks.app.configure(settings(orders["url"], orders["replicas"]))
    operator = JetJobs("operator", settings=settings(orders["direct_url"], orders["replicas"]))
    plain = await plain_client(orders["url"])
    async with tasks.app, operator:
        producer = Producer(tasks.app, plain, history, Asker(tasks.app, operator, history))
        print(_READY, flush=True)
        started = float(await asyncio.to_thread(sys.stdin.readline))
        await producer.run(jobs, started)
        await producer.settled()
        history.dump(_done(path))
    await plain.close()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    asyncio.run(_main(file, json.loads(file.read_text())))
