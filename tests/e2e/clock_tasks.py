"""Tasks whose times must not depend on the wall clock of the worker's machine."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from jetjobs import JetJobs, RetryPolicy, Snooze, current_job
from tests.e2e.journal_tasks import note

app = JetJobs("clocks")
HALF = timedelta(seconds=0.5)
MINUTES = timedelta(minutes=5)
_snoozed: set[str] = set()


@app.task(retry=RetryPolicy(max_attempts=2, base=HALF, jitter=False, max_age=MINUTES))
async def flaky(n: int) -> None:
    if current_job().attempt == 1:
        raise ConnectionError("on purpose")
    note("flaky", n)


@app.task
async def sleepy(n: int) -> None:
    if current_job().id not in _snoozed:
        _snoozed.add(current_job().id)
        raise Snooze(after=HALF)
    note("sleepy", n)


@app.task
async def produce(n: int) -> None:
    """Enqueue a job for later: the producer is this worker's process."""
    await effect.options(delay=HALF).enqueue(n)


@app.task
async def effect(n: int) -> None:
    note("effect", n)


@app.task
async def long(n: int) -> None:
    note("long", n)
    await asyncio.sleep(60)


@app.task
async def tick() -> None:
    note("tick", 0)


tick.every(timedelta(seconds=1), name="ticking")
