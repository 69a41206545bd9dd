"""A small shop with everyday tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from pydantic import BaseModel, Field

from jetjobs import CallNext, Context, Depends, JetJobs, RetryPolicy, current_job

app = JetJobs("shop")


class Order(BaseModel):
    """Arguments may be pydantic models. They are validated when enqueued and again when the job runs."""

    id: int = Field(gt=0)
    amount: float = Field(gt=0)


class Ledger:
    """A stand-in for a database."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    async def write(self, line: str) -> None:
        self.lines.append(line)


async def open_ledger() -> AsyncIterator[Ledger]:
    """Created once per worker; the code after the yield runs when the worker stops."""
    ledger = Ledger()
    yield ledger
    ledger.lines.clear()


@app.lifespan
@asynccontextmanager
async def warm_up() -> AsyncIterator[None]:
    """Entered before the first job, left after the last."""
    yield


@app.middleware
async def timed(job: Context, call_next: CallNext) -> object:
    """Wraps every attempt."""
    started = time.perf_counter()
    try:
        return await call_next()
    finally:
        job.logger.debug("attempt took %.3f s", time.perf_counter() - started)


@app.task
async def greet(name: str) -> str:
    """The simplest task."""
    return f"Hello, {name}!"


@app.task(queue="images", timeout="1m")
def make_thumbnail(path: str, width: int = 200) -> str:
    """A plain function runs in a thread, so it may block."""
    time.sleep(1.5)
    return f"{path}@{width}"


@app.task(retry=RetryPolicy(max_attempts=4, base="1s", jitter=False))
async def charge(order: Order, ledger: Ledger = Depends(open_ledger, scope="app")) -> str:
    """The bank does not answer the first attempt; the retry succeeds."""
    if current_job().attempt == 1:
        raise ConnectionError("the bank does not answer")
    await ledger.write(f"charged {order.id}")
    return f"charged {order.amount:.2f} for order {order.id}"


@app.task
async def remind(customer: str) -> str:
    """Enqueued with a delay; the NATS server makes it due."""
    return f"reminded {customer}"


@app.task(retry=RetryPolicy(max_attempts=2, base="500ms", jitter=False))
async def import_feed(url: str) -> None:
    """Always fails, so it ends as a dead letter."""
    await asyncio.sleep(0)
    raise ValueError(f"no feed at {url}")


@app.every("2s")  # or @app.cron("0 6 * * mon-sat", tz="Europe/Berlin")
@app.task
async def take_stock(scheduled_time: datetime) -> str:
    """Run by a schedule, which passes the scheduled time."""
    return f"stock of {scheduled_time:%H:%M:%S}"


async def place_order(order: Order, customer: str) -> None:
    """What a web handler would call: it only enqueues jobs."""
    await charge.enqueue(order)
    await remind.options(delay="7d", key=f"remind-{order.id}").enqueue(customer)
