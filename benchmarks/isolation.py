"""Measure start and call of a child process compared with a thread: `python -m benchmarks.isolation`."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable

from benchmarks import isolated
from jetjobs.define.context import Context
from jetjobs.model.job import Job
from jetjobs.worker.execution.thread_pool import ThreadPool
from jetjobs.worker.isolation.pool import ProcessPool
from jetjobs.worker.isolation.process import ChildProcess

STARTS = 10
CALLS = 2_000


async def main() -> None:
    """Print medians."""
    task = isolated.noop
    children = ProcessPool(1, isolated.app, {})
    setup = children._make_setup()
    starts = []
    for _ in range(STARTS):
        began = time.perf_counter()
        child, _ = await ChildProcess.start(setup)
        starts.append(time.perf_counter() - began)
        memory = resident(child.pid)
        await child.end(at_once=True)
    start_ms = statistics.median(starts) * 1e3
    print(f"start of a child          {start_ms:8.0f} ms, {memory / 2**20:.0f} MiB resident")
    threads = ThreadPool(1, lambda event: None)
    context = Context(Job("id", task.name, "default", "normal", b""), "w", 1, 1, time.monotonic() + 3600)
    for size in (10, 100_000):
        arguments = {"text": "x" * size}
        body = task.signature.encode(arguments)
        in_child, in_thread = [], []
        for _ in range(CALLS):
            in_child.append(await timed(children.run(context, task, body)))
            in_thread.append(await timed(threads.run(context, task, arguments)))
        child_us, thread_us = (statistics.median(times) * 1e6 for times in (in_child, in_thread))
        print(f"a call with {size:7,} bytes  {child_us:8.0f} µs in a child, {thread_us:.0f} µs in a thread")
    await children.close()
    threads.close()


async def timed(call: Awaitable[object]) -> float:
    began = time.perf_counter()
    await call
    return time.perf_counter() - began


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * 4096


if __name__ == "__main__":
    asyncio.run(main())
