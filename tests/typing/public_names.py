"""The public names have the types that the documentation promises. Each ignore marks an error."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import assert_type

from jetjobs import (
    CallNext,
    Context,
    EnqueueReport,
    JetJobs,
    JobHandle,
    JobState,
    JobStatus,
    Observer,
    Reject,
    Retry,
    RetryPolicy,
    Router,
    Schedule,
    Settings,
    Snooze,
    Worker,
    current_job,
)
from jetjobs.admin import CancelAnswer, DeadLetter, DeadLetterFilter, Finding, JobQuery, ListedJob, WorkerRecord
from jetjobs.errors import PERMANENT, JetJobsError, JobFailed, Verdict
from jetjobs.events import Event, JobFinished, LiveEvent

app = JetJobs("typed", settings=Settings())
app.include(Router(queue="mail"))


@app.lifespan
async def warm(app: JetJobs) -> AsyncIterator[None]:
    yield


@app.lifespan
@asynccontextmanager
async def managed() -> AsyncGenerator[None, None]:
    yield


@app.lifespan  # type: ignore[type-var]
async def does_not_yield() -> None: ...


assert_type(warm(app), AsyncIterator[None])


@app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(seconds=1)))
async def charge(order: int) -> float:
    if order < 0:
        raise Reject("negative")
    if order == 0:
        raise Snooze(timedelta(minutes=1))
    if assert_type(current_job(), Context).attempt > 2:
        raise Retry(timedelta(seconds=5))
    return order / 100


@app.middleware
async def timed(context: Context, call_next: CallNext) -> object:
    return await call_next()


@app.classify(KeyError)
def classify(error: BaseException) -> Verdict | None:
    return PERMANENT if error.args else None


def observe(event: Event) -> None:
    if isinstance(event, JobFinished):
        assert_type(event.queue, str)


observer: Observer = observe
app.observe(observer)


async def follow(handle: JobHandle[float]) -> None:
    assert_type(await handle.status(), JobStatus)
    assert_type((await handle.status()).state, JobState | None)
    try:
        assert_type(await handle.result(), float)
    except JobFailed as error:
        assert_type(error.reason, str)
    except JetJobsError as error:
        assert_type(error.hint, str | None)


async def operate() -> None:
    assert_type(await app.enqueue_many([charge.bind(1)]), EnqueueReport)
    async for job in app.jobs.list(JobQuery(task="charge")):
        assert_type(job, ListedJob)
    assert_type(await app.jobs.cancel("id"), CancelAnswer)
    assert_type(await app.workers.list(), list[WorkerRecord])
    assert_type(await app.doctor(), list[Finding])
    assert_type((await app.schedules.get("nightly")).schedule, Schedule)
    async for letter in app.dead.list(DeadLetterFilter(task="charge")):
        assert_type(letter, DeadLetter)
    async for event in app.events():
        assert_type(event, LiveEvent)
    await app.jobs.cancel(7)  # type: ignore[arg-type]


async def work() -> None:
    worker = app.worker(slots=2)
    assert_type(worker, Worker)
    await worker.run()
    app.worker(slot=2)  # type: ignore[call-arg]
