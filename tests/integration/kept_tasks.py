"""Tasks that report progress and store checkpoints. Child processes import this module."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from jetjobs import JetJobs, RetryPolicy, current_job

app = JetJobs("kept")

QUICK = RetryPolicy(max_attempts=3, base=timedelta(milliseconds=10))


class State(BaseModel):
    step: int
    note: str = ""


class Failed(Exception):
    """The first attempt of each of these fails."""


def wait_for_file(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


async def wait_for(path: str) -> None:
    await asyncio.to_thread(wait_for_file, path)


@app.task(retry=QUICK)
async def in_loop(until: str) -> list[Any]:
    job = current_job()
    found = await job.resume(State)
    job.progress(0.25, "on the loop")
    await wait_for(until)
    if found is None:
        await job.checkpoint(State(step=7, note="ö"))
        raise Failed
    return [found.step, found.note, job.attempt]


@app.task(retry=QUICK)
def in_thread(until: str) -> list[Any]:
    job = current_job()
    found = job.resume_sync(State)
    job.progress(0.5, "in a thread")
    wait_for_file(until)
    if found is None:
        job.checkpoint_sync(State(step=8))
        raise Failed
    return [found.step, found.note, job.attempt]


@app.task(retry=QUICK, isolation="process")
def in_child(until: str) -> list[Any]:
    job = current_job()
    found = job.resume_sync(State)
    for n in range(1000):  # only the last one is shown
        job.progress(n / 1000, "too many")
    job.progress(0.75, "in a child")
    wait_for_file(until)
    if found is None:
        job.checkpoint_sync(State(step=9))
        raise Failed
    return [found.step, found.note, job.attempt]


@app.task(retry=QUICK, isolation="process")
async def in_child_loop(until: str) -> list[Any]:
    job = current_job()
    found = await job.resume(State)
    job.progress(1, "on the child's loop")
    await wait_for(until)
    if found is None:
        await asyncio.gather(*(job.checkpoint(State(step=n)) for n in (1, 2, 3)))
        await job.checkpoint(State(step=10))
        raise Failed
    return [found.step, found.note, job.attempt]


@app.task(isolation="process")
def refused_in_child() -> list[str]:
    """The errors that a child gets for values that cannot be stored or shown."""
    job = current_job()
    errors = []
    for call in (
        lambda: job.checkpoint_sync("x" * 70_000),
        lambda: job.checkpoint_sync(threading.Lock()),
        lambda: job.progress(1.5),
        lambda: job.checkpoint(1),
    ):
        try:
            call()
        except Exception as error:
            errors.append(type(error).__name__)
    job.checkpoint_sync([1, "a"])
    try:
        job.resume_sync(State)
    except Exception as error:
        errors.append(f"{type(error).__name__}: {error}")
    errors.append(str(job.resume_sync()))
    return errors


@app.task(isolation="process")
def wait_and_checkpoint_in_child(until: str) -> str:
    job = current_job()
    job.checkpoint_sync(1)
    wait_for_file(until)
    try:
        job.checkpoint_sync(2)
    except Exception as error:
        Path(until + ".error").write_text(type(error).__name__)
        raise
    return "kept"
