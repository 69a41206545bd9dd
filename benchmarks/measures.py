"""The comparisons with plain nats-py. Each clears the queues, prepares untimed, and times one operation."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks import raw
from benchmarks.bench import QUEUE, STREAM, Bench, rate
from benchmarks.processes import bare_command, child, rss_mb, worker_command
from benchmarks.report import Row, compared
from benchmarks.tasks import NAP_S, app, arrivals, nap, noop, noop_stored, touch
from jetjobs import Task
from jetjobs.worker.worker import running

SLOTS = 200
_NAP_SLOTS = 100
_GAP_S = 0.003
"""Pause between pickups, long enough for the next pull request, so that every job finds the worker idle."""
_SETTLE_S = 2.0
"""Pause between the start of a process and the reading of its memory."""

AnyTask = Task[Any, Any]


async def enqueue(bench: Bench) -> list[Row]:
    """Enqueue one by one: every publish waits for its confirmation."""
    count = bench.count(3_000)

    async def ours() -> None:
        for i in range(count):
            await noop.enqueue(i)

    mine, plain = await bench.interleave(
        lambda: rate(count, ours()), lambda: rate(count, raw.publish_each(bench.nc, count))
    )
    return [compared("enqueue one by one", "jobs/s", mine, plain, least=0.80)]


async def enqueue_many(bench: Bench) -> list[Row]:
    """Enqueue many at once. Binding the arguments is timed too, since every caller has to do it."""
    count = bench.count(20_000)
    mine, plain = await bench.interleave(
        lambda: rate(count, fill(noop, count)), lambda: rate(count, raw.publish_pipelined(bench.nc, count))
    )
    return [compared("enqueue_many", "jobs/s", mine, plain, least=0.70)]


async def drain(bench: Bench) -> list[Row]:
    """No-op jobs through one worker, compared with a pull loop, both in this process."""
    count = bench.count(20_000)

    async def ours(task: AnyTask) -> float:
        await fill(task, count)
        return await rate(count, work_off(bench, SLOTS, count))

    async def plain() -> float:
        await raw.publish_pipelined(bench.nc, count)
        return await rate(count, _pull_off(bench, count))

    bare, stored, pulled = await bench.interleave(lambda: ours(noop), lambda: ours(noop_stored), plain)
    return [
        compared("drain, no results", "jobs/s", bare, pulled, least=0.50),
        compared("drain, results stored", "jobs/s", stored, pulled, least=0.30),
    ]


async def drain_processes(bench: Bench) -> list[Row]:
    """No-op jobs through two worker processes, compared with two processes with a pull loop."""
    count = bench.count(20_000)
    worker, bare = worker_command(bench.url, SLOTS), bare_command(bench.url, SLOTS)

    def ours(task: AnyTask) -> Awaitable[float]:
        return _drain_by_two(bench, STREAM, worker, lambda: fill(task, count), count)

    def plain() -> Awaitable[float]:
        return _drain_by_two(bench, raw.STREAM, bare, lambda: raw.publish_pipelined(bench.nc, count), count)

    kept, stored, pulled = await bench.interleave(lambda: ours(noop), lambda: ours(noop_stored), plain)
    return [
        compared("drain, 2 processes, no results", "jobs/s", kept, pulled),
        compared("drain, 2 processes, results", "jobs/s", stored, pulled),
    ]


async def pickup(bench: Bench) -> list[Row]:
    """Time from the start of a publish to the first line of its handler, with an idle worker."""
    count = bench.count(500)
    spread: dict[int, tuple[list[float], list[float]]] = {p: ([], []) for p in (50, 95, 99)}

    async def measure(latencies: Awaitable[list[float]], side: int) -> float:
        cuts = statistics.quantiles(await latencies, n=100, method="inclusive")
        for percentile, samples in spread.items():
            samples[side].append(cuts[percentile - 1])
        return cuts[49]

    await bench.interleave(lambda: measure(_pickups(count), 0), lambda: measure(_plain_pickups(bench, count), 1))
    return [
        compared(f"idle pickup, p{percentile}", "ms", ours, plain, most=1.5 if percentile == 50 else None)
        for percentile, (ours, plain) in spread.items()
    ]


async def sleep(bench: Bench) -> list[Row]:
    """Jobs that sleep 50 ms, compared with the time that the slots alone would need."""
    count = bench.count(2_000)
    ideal = count * NAP_S / _NAP_SLOTS

    async def ours() -> float:
        await fill(nap, count)
        started = time.perf_counter()
        await work_off(bench, _NAP_SLOTS, count)
        return time.perf_counter() - started

    (mine,) = await bench.interleave(ours)
    return [compared(f"{count:,} x 50 ms, {_NAP_SLOTS} slots", "s", mine, [ideal], most=1.15)]


async def memory(bench: Bench) -> list[Row]:
    """Resident memory of an idle worker process, compared with a plain one with an open pull request."""
    await bench.clear()
    mine = await _idle_rss(bench, STREAM, worker_command(bench.url, 10))
    plain = await _idle_rss(bench, raw.STREAM, bare_command(bench.url, 10))
    return [compared("idle memory of a process", "MB", [mine], [plain])]


async def fill(task: AnyTask, count: int) -> None:
    report = await app.enqueue_many([task.bind(i) for i in range(count)])
    if report.refused:
        raise RuntimeError(f"{len(report.refused)} jobs were refused: {report.refused[0].error}")


async def work_off(bench: Bench, slots: int, count: int) -> None:
    """Start a worker, run the jobs, stop it, and wait until the server has the last ack."""
    await app.worker(slots=slots, max_jobs=count).run()
    await bench.settled(STREAM)


async def _pull_off(bench: Bench, count: int) -> None:
    await raw.drain(bench.nc, count, SLOTS)
    await bench.settled(raw.STREAM)


async def _drain_by_two(
    bench: Bench, stream: str, command: tuple[str, ...], fill: Callable[[], Awaitable[None]], count: int
) -> float:
    """The rate of two processes on a full lane.

    Only the drain is timed: both processes wait with an open pull request (the server counts them), the lane is
    paused while it is filled, and the timing runs from the end of the pause until the server has nothing left to
    deliver and no ack outstanding. The error is the polling interval of 5 ms.
    """
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(child(*command))
        await bench.until_pulling(stream, 2)
        await bench.pause(stream)
        try:
            await fill()
        finally:
            started = await bench.resume(stream)
        await bench.settled(stream)
        return count / (time.perf_counter() - started)


async def _pickups(count: int) -> list[float]:
    latencies = []
    async with running(app.worker(queues={QUEUE: None}, slots=10)):
        for i in range(count):
            await asyncio.sleep(_GAP_S)
            started = time.perf_counter()
            await touch.enqueue(i)
            latencies.append((await arrivals.get() - started) * 1000)
    return latencies


async def _plain_pickups(bench: Bench, count: int) -> list[float]:
    latencies = []
    came: asyncio.Queue[float] = asyncio.Queue()
    loop = raw.PullLoop(bench.nc, 1, lambda: came.put_nowait(time.perf_counter()))
    await loop.start()
    for _ in range(count):
        await asyncio.sleep(_GAP_S)
        started = time.perf_counter()
        await raw.publish_each(bench.nc, 1)
        latencies.append((await came.get() - started) * 1000)
    await loop.stop()
    return latencies


async def _idle_rss(bench: Bench, stream: str, command: tuple[str, ...]) -> float:
    async with child(*command) as process:
        await bench.until_pulling(stream, 1)
        await asyncio.sleep(_SETTLE_S)
        return rss_mb(process.pid)


MEASURES: dict[str, Callable[[Bench], Awaitable[list[Row]]]] = {
    measure.__name__: measure for measure in (enqueue, enqueue_many, drain, drain_processes, pickup, sleep, memory)
}
