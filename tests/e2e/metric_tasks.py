"""Tasks of the metrics tests: one per way in which an attempt can end."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import timedelta

from jetjobs import JetJobs, Reject, RetryPolicy, Snooze, current_job

app = JetJobs("metrics")
LATER = timedelta(hours=1)


@app.task
async def succeed(n: int) -> int:
    return n


@app.task(retry=RetryPolicy(max_attempts=3, base=LATER, cap=LATER, jitter=False))
async def retry(n: int) -> None:
    raise ValueError("again")


@app.task(retry=RetryPolicy(max_attempts=1))
async def exhaust(n: int) -> None:
    raise ValueError("never")


@app.task
async def reject(n: int) -> None:
    raise Reject("no")


@app.task
async def snooze(n: int) -> None:
    raise Snooze(LATER)


@app.task
async def wait(seconds: float) -> None:
    await asyncio.sleep(seconds)


@app.task
async def block(seconds: float) -> None:
    time.sleep(seconds)  # noqa: ASYNC251 - blocking is intended


@app.task
async def die_once() -> int:
    if current_job().delivery == 1:
        os._exit(9)
    return os.getpid()


@app.task(queue="unserved")
async def stay(n: int) -> None: ...
