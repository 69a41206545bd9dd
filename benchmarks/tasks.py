"""The measured app and its tasks, also loaded by worker processes."""

from __future__ import annotations

import asyncio
import time
from array import array
from datetime import timedelta

from jetjobs import JetJobs, RetryPolicy

NAP_S = 0.05

app = JetJobs("bench")

arrivals: asyncio.Queue[float] = asyncio.Queue()
"""The start time of each `touch`, for the waiting benchmark in this process."""

stamps = array("d")
"""The start time of each `stamp`. An array, because a list of floats would show in the measured memory."""

tallied = [0]
"""How many `tally` jobs have started in this process."""


@app.task(store_result=False)
async def noop(i: int) -> None:
    """Do nothing and store no result."""


@app.task(store_result=False)
async def tally(i: int) -> None:
    """Count itself, so that progress can be read while the run goes on."""
    tallied[0] += 1


@app.task
async def noop_stored(i: int) -> None:
    """Do nothing and store the result."""


@app.task(store_result=False)
async def nap(i: int) -> None:
    """Wait, as most jobs do."""
    await asyncio.sleep(NAP_S)


@app.task(store_result=False)
async def touch(i: int) -> None:
    """Report its start time."""
    arrivals.put_nowait(time.perf_counter())


@app.task(store_result=False)
async def stamp(i: int) -> None:
    """Record its start time on a clock that all processes of the machine share."""
    stamps.append(time.monotonic())


@app.task(retry=RetryPolicy(base=timedelta(hours=1), jitter=False))
async def broken(i: int) -> None:
    """Fail and wait an hour for the retry."""
    raise RuntimeError("no")
