"""What every measurement uses: one server, both clients connected, queues to clear and observe."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import nats
from nats.aio.client import Client

from benchmarks import raw
from benchmarks.processes import LOG_LEVEL
from benchmarks.tasks import app
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from jetjobs.model.wire.subjects import LATER, kv_stream
from jetjobs.observe.logs import log_event, set_up

QUEUE = "default"
NAMES = raw.NAMES
STREAM = NAMES.work_stream(QUEUE)
LANE = raw.LANE
_POLL_S = 0.005
_RESUME_S = 0.2

Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Bench:
    """The environment of a measurement. `scale` multiplies every count; each side is measured `rounds` times."""

    url: str
    nc: Client
    rounds: int
    scale: float

    def count(self, full: int) -> int:
        return max(1, int(full * self.scale))

    async def api(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """A JetStream API request through plain nats-py."""
        reply = await self.nc.request(f"$JS.API.{subject}", json.dumps(body or {}).encode(), timeout=30)
        answer: dict[str, Any] = json.loads(reply.data)
        if "error" in answer:
            raise RuntimeError(f"{subject}: {answer['error']}")
        return answer

    async def clear(self) -> None:
        """Delete all jobs and results. Purges by subject, because each stream must keep its pin (ADR 1)."""
        for queue in (QUEUE, raw.QUEUE):
            for lane in (LANE, LATER):
                everything = {"filter": NAMES.lane_filter(queue, lane)}
                await self.api(f"STREAM.PURGE.{NAMES.work_stream(queue)}", everything)
        await self.api(f"STREAM.PURGE.{kv_stream(NAMES.done_bucket(QUEUE))}")
        gc.collect()

    async def settled(self, stream: str) -> None:
        """Wait until the lane is empty and the server has every ack. The timing of both sides ends here."""
        await self._until(stream, lambda lane: not lane["num_pending"] and not lane["num_ack_pending"])

    async def until_pulling(self, stream: str, requests: int) -> None:
        """Wait until the lane has that many open pull requests."""
        await self._until(stream, lambda lane: lane["num_waiting"] >= requests)

    async def _until(self, stream: str, reached: Callable[[dict[str, Any]], bool]) -> None:
        while True:
            if reached(await self.api(f"CONSUMER.INFO.{stream}.{LANE}")):
                return
            await asyncio.sleep(_POLL_S)

    async def pause(self, stream: str, for_s: float = 3600.0) -> None:
        until = (datetime.now(UTC) + timedelta(seconds=for_s)).isoformat()
        await self.api(f"CONSUMER.PAUSE.{stream}.{LANE}", {"pause_until": until})

    async def resume(self, stream: str) -> float:
        """Resume the lane. Returns the time of the performance counter at which it resumed.

        The pause is set to expire: nats-server 2.15 then serves open pull requests, but not on a request to
        resume, after which they wait for their next heartbeat or another publish.
        """
        resumes_at = time.perf_counter() + _RESUME_S
        await self.pause(stream, _RESUME_S)
        await asyncio.sleep(resumes_at - time.perf_counter())
        return resumes_at

    async def interleave(self, *measures: Measure) -> list[list[float]]:
        """Run all measures once per round, so that a disturbance of the machine affects all of them.

        The order alternates, so that no measure always runs after the same other one.
        """
        samples: list[list[float]] = [[] for _ in measures]
        order = list(range(len(measures)))
        for number in range(self.rounds):
            for index in order if number % 2 == 0 else reversed(order):
                await self.clear()
                samples[index].append(await measures[index]())
        return samples


@contextlib.asynccontextmanager
async def opened(url: str, queues: Sequence[str] | None = None) -> AsyncIterator[None]:
    """Connect the app to `url` with its queues provisioned while the block runs."""
    app.configure(build_settings({"nats": {"url": url}}))
    async with app:
        await app.provision(queues)
        yield


@contextlib.asynccontextmanager
async def prepared(rounds: int, scale: float) -> AsyncIterator[Bench]:
    """A new server with both clients connected."""
    with EmbeddedServer() as server:
        async with opened(server.url, [QUEUE, raw.QUEUE]):
            nc = await nats.connect(server.url)
            try:
                yield Bench(server.url, nc, rounds, scale)
            finally:
                await nc.close()


def log_as_workers_do() -> None:
    """Give workers in this process the same log observer and level as workers started by command."""
    set_up(LOG_LEVEL, "auto", dict)
    app.observe(log_event)


async def rate(count: int, work: Awaitable[Any]) -> float:
    """Units of work per second."""
    started = time.perf_counter()
    await work
    return count / (time.perf_counter() - started)
