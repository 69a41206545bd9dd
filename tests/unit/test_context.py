"""The context of a running attempt."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from jetjobs.define.context import Context, current_job, enter_job, running_job
from jetjobs.model.errors import JetJobsError
from jetjobs.model.job import Job

JOB = Job(
    "u1",
    "greet",
    "mail",
    "normal",
    b"{}",
    attempt=3,
    enqueued_at=1.0,
    headers={"Trace": "abc", "Nats-Msg-Id": "x", "Jetjobs-Attempt": "3"},
)


def a_context(job: Job = JOB, seconds: float = 60.0) -> Context:
    return Context(job, "w1", fence=7, delivery=2, deadline=time.monotonic() + seconds)


def test_current_job_fails_outside_of_a_job() -> None:
    assert running_job() is None
    with pytest.raises(JetJobsError, match="no job is running here") as caught:
        current_job()
    assert caught.value.hint is not None


def test_the_context_tells_of_the_job() -> None:
    context = a_context()
    assert (context.id, context.task, context.queue, context.attempt) == ("u1", "greet", "mail", 3)
    assert (context.worker, context.fence, context.delivery) == ("w1", 7, 2)
    assert context.headers == {"Trace": "abc"}
    assert context.enqueued_at == datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)


def test_the_remaining_time_is_never_negative() -> None:
    assert timedelta(seconds=59) < a_context(seconds=60.0).remaining <= timedelta(minutes=1)
    assert a_context(seconds=-5.0).remaining == timedelta(0)


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_the_deadline_is_in_utc_in_any_time_zone() -> None:
    deadline = a_context(seconds=60.0).deadline
    assert abs(deadline - datetime.now(UTC) - timedelta(seconds=60)) < timedelta(seconds=5)
    assert deadline.utcoffset() == timedelta(0)


async def test_concurrent_jobs_each_see_their_own() -> None:
    barrier = asyncio.Barrier(3)

    async def run(number: int) -> str:
        enter_job(a_context(JOB._replace(id=f"u{number}")))
        await barrier.wait()
        return current_job().id

    assert await asyncio.gather(*(run(number) for number in range(3))) == ["u0", "u1", "u2"]
    assert running_job() is None


async def test_a_thread_that_was_given_the_context_sees_the_job() -> None:
    def run() -> str:
        enter_job(a_context())
        return contextvars.copy_context().run(lambda: current_job().id)

    assert await asyncio.to_thread(run) == "u1"
    assert running_job() is None


def test_lines_of_the_jobs_logger_carry_the_job_and_what_the_task_adds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "jetjobs.task"):
        a_context().logger.info("hello %s", "Ada", extra={"amount": 5})
    record = caplog.records[0]
    assert record.getMessage() == "hello Ada"
    fields = {"job_id": "u1", "task": "greet", "queue": "mail", "attempt": 3, "amount": 5}
    assert vars(record).items() >= fields.items()
