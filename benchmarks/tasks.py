"""The app under measurement and its tasks. Inert at import, as every app: worker processes load it too."""

from __future__ import annotations

import asyncio
import time
from array import array
from datetime import timedelta

from jetjobs import JetJobs, RetryPolicy

NAP_S = 0.05

app = JetJobs("bench")

arrivals: asyncio.Queue[float] = asyncio.Queue()
"""When each `touch` began, for who waits for it in this process."""

stamps = array("d")
"""When each `stamp` began. An array: the list of floats would show in the memory that is measured."""

tallied = [0]
"""How many `tally` have begun in this process."""


@app.task(store_result=False)
async def noop(i: int) -> None:
    """Nothing, and nothing kept."""


@app.task(store_result=False)
async def tally(i: int) -> None:
    """Count itself, for who looks while it goes on."""
    tallied[0] += 1


@app.task
async def noop_stored(i: int) -> None:
    """Nothing, and its result kept."""


@app.task(store_result=False)
async def nap(i: int) -> None:
    """Work that waits, as most jobs do."""
    await asyncio.sleep(NAP_S)


@app.task(store_result=False)
async def touch(i: int) -> None:
    """Tell when it began."""
    arrivals.put_nowait(time.perf_counter())


@app.task(store_result=False)
async def stamp(i: int) -> None:
    """Note when it began, by a clock that all processes of this machine share."""
    stamps.append(time.monotonic())


@app.task(retry=RetryPolicy(base=timedelta(hours=1), jitter=False))
async def broken(i: int) -> None:
    """Fail, and wait an hour for the next attempt."""
    raise RuntimeError("no")
