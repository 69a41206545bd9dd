"""Tasks of the end-to-end tests: each run appends a line to a file, so that effects can be counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time

from jetjobs import JetJobs, RetryPolicy, current_job

app = JetJobs("journal")


def note(kind: str, n: int) -> None:
    """Append one line atomically: many processes write concurrently."""
    job = current_job()
    line = f"{kind} {n} {job.id} {job.attempt} {job.delivery} {os.getpid()} {time.time():.6f}\n"
    descriptor = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)


@app.task
async def effect(n: int) -> int:
    note("effect", n)
    return n


@app.task(store_result=False)
async def quiet_effect(n: int) -> None:
    note("effect", n)


@app.task(retry=RetryPolicy(max_attempts=1))
async def fail(n: int) -> None:
    note("fail", n)
    raise RuntimeError("on purpose")


@app.task(store_result=False)
async def wait(n: int, seconds: float) -> None:
    note("begin", n)
    await asyncio.sleep(seconds)
    note("end", n)


@app.task(retry=RetryPolicy(max_attempts=1))
async def die(n: int) -> None:
    note("die", n)
    os._exit(9)


@app.task(retry=RetryPolicy(max_attempts=1))
async def fail_late(n: int, seconds: float) -> None:
    note("begin", n)
    await asyncio.sleep(seconds)
    raise RuntimeError("late")


@app.task
async def stubborn(n: int) -> None:
    note("begin", n)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


@app.task
def hang(n: int) -> None:
    note("begin", n)
    time.sleep(60)


@app.task
async def once_stuck(n: int) -> int:
    """Hang on the first delivery."""
    note("begin", n)
    if current_job().delivery == 1:
        await asyncio.sleep(600)
    return n


@app.task
async def blocks(n: int, seconds: float) -> None:
    note("begin", n)
    time.sleep(seconds)  # noqa: ASYNC251 - the fault under test


@app.task
async def interruptible(n: int, seconds: float) -> int:
    """Record when it started and when it was cancelled."""
    note("begin", n)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("cut", n)
        raise
    return n
