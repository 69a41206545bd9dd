"""The app of the workers that faults are injected into: one task per way in which a job can end."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta

from jetjobs import JetJobs, Reject, RetryPolicy, Snooze, current_job
from tests.chaos.journal import journaled

app = JetJobs("chaos")
SECOND_QUEUE = "bulk"

QUICK = RetryPolicy(max_attempts=6, base=timedelta(seconds=0.2), cap=timedelta(seconds=1))
SLOW = RetryPolicy(max_attempts=6, base=timedelta(seconds=3), backoff="fixed", jitter=False)
"""Longer than a publish waits for its confirmation, so a repeated publish finds the first one still waiting."""
DOOMED_ATTEMPTS = 3


@app.task
async def effect(n: int, seconds: float = 0.0) -> int:
    with journaled(n):
        await asyncio.sleep(seconds)
    return n


@app.task
async def timed(n: int) -> None:
    """The task of the schedules."""
    with journaled(n):
        pass


@app.task(store_result=False, queue=SECOND_QUEUE)
async def quiet(n: int, seconds: float = 0.0) -> None:
    with journaled(n):
        await asyncio.sleep(seconds)


@app.task(retry=QUICK)
async def flaky(n: int, failures: int, seconds: float = 0.0) -> int:
    with journaled(n):
        await asyncio.sleep(seconds)
        if current_job().attempt <= failures:
            raise ConnectionError("not yet")
    return n


@app.task(retry=SLOW)
async def patient(n: int, failures: int) -> int:
    with journaled(n):
        if current_job().attempt <= failures:
            raise ConnectionError("not yet")
    return n


@app.task(retry=RetryPolicy(max_attempts=DOOMED_ATTEMPTS, base=timedelta(seconds=0.3)), queue=SECOND_QUEUE)
async def doomed(n: int, seconds: float = 0.0) -> None:
    with journaled(n):
        await asyncio.sleep(seconds)
        raise RuntimeError("never works")


@app.task
async def reject(n: int) -> None:
    with journaled(n):
        raise Reject("not wanted")


@app.task
async def snooze(n: int, times: int) -> int:
    with journaled(n):
        if current_job().job.hop < times:
            raise Snooze(timedelta(seconds=0.5))
    return n


@app.task
def thread(n: int, seconds: float) -> int:
    with journaled(n):
        time.sleep(seconds)
    return n


@app.task(queue=SECOND_QUEUE)
async def block(n: int, seconds: float) -> int:
    """Blocks the worker's event loop; the heartbeat thread must renew the leases without it."""
    with journaled(n):
        time.sleep(seconds)  # noqa: ASYNC251 - blocking is intended
    return n


@app.task
async def poison(n: int) -> None:
    with journaled(n):
        os._exit(9)


@app.task
async def large(n: int, text: str) -> int:
    with journaled(n):
        pass
    return n


@app.task(isolation="process", queue=SECOND_QUEUE)
def isolated(n: int, seconds: float) -> int:
    with journaled(n, in_child=True):
        time.sleep(seconds)
    return n


@app.task(isolation="process", retry=RetryPolicy(max_attempts=DOOMED_ATTEMPTS, base=timedelta(seconds=0.3)))
def poison_in_child(n: int) -> None:
    """Ends its child process, not the worker: an ordinary failure."""
    with journaled(n, in_child=True):
        os._exit(7)
