"""Measure POST /api/v1/jobs of `jetjobs http` beside as many concurrent enqueues in this process."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable

from benchmarks.bench import Bench
from benchmarks.processes import LOG_LEVEL, child, cpu_s
from benchmarks.report import Table, compared
from benchmarks.tasks import noop

_IN_FLIGHT = 64
_START_S = 20.0
_READY = b"HTTP/1.1 200"


async def http(bench: Bench) -> Table:
    """The client is a bare socket that sends prepared bytes, so that it hardly counts."""
    count = bench.count(10_000)
    port = 18400
    command = ("jetjobs", "--server", bench.url, "--app", "benchmarks.tasks:app", "http", "--port", str(port))
    async with child(*command, "--no-webhooks", "--log-level", LOG_LEVEL) as process:
        await _until_ready(port)
        costs: list[float] = []
        waits: list[float] = []

        async def posts() -> float:
            before = cpu_s(process.pid)
            per_s, latencies = await _post(port, count)
            costs.append((cpu_s(process.pid) - before) / count * 1e6)
            waits.append(statistics.quantiles(latencies, n=100)[98] * 1000)
            return per_s

        over_http, in_process = await bench.interleave(posts, lambda: _enqueue(count))
    rows = [
        compared(f"enqueue, {_IN_FLIGHT} in flight", "jobs/s", over_http, in_process, least=0.12),
        compared("processor time of a POST", "µs", costs, [0.0], limit=200.0),
        compared("POST, p99", "ms", waits, [0.0]),
    ]
    return Table("over HTTP, beside in-process", "http", "in-process", rows)


async def _until_ready(port: int) -> None:
    async with asyncio.timeout(_START_S):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
            answer = await reader.read()
            writer.close()
            if answer.startswith(_READY):
                return
            await asyncio.sleep(0.05)


async def _at_once(count: int, one: Callable[[int], Awaitable[None]]) -> float:
    """Jobs per second, with some in flight at a time."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await one(number)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(some())
    return count / (time.perf_counter() - started)


async def _enqueue(count: int) -> float:
    async def one(number: int) -> None:
        await noop.enqueue(number)

    return await _at_once(count, one)


async def _post(port: int, count: int) -> tuple[float, list[float]]:
    """Jobs per second, and the seconds of each request."""
    body = json.dumps({"task": "noop", "args": {"i": 1}}).encode()
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    request = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_IN_FLIGHT)]
    latencies: list[float] = []

    async def one(_: int) -> None:
        reader, writer = idle.pop()
        started = time.perf_counter()
        writer.write(request)
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 201"):
            raise RuntimeError(answer.decode())
        length = answer.lower().split(b"content-length:")[1].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        latencies.append(time.perf_counter() - started)
        idle.append((reader, writer))

    per_s = await _at_once(count, one)
    for _, writer in idle:
        writer.close()
    return per_s, latencies
