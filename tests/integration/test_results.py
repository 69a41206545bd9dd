"""Results: pushed to who waits, kept in the bucket for who asks later, typed, and gone in time."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest
from nats.aio.msg import Msg
from pydantic import BaseModel

from jetjobs import JetJobs, JobFailed, JobState, ResultNotReady, RetryPolicy
from jetjobs.errors import ResultError, ResultExpired
from jetjobs.model.events import JobStarted
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned, provisioned_worker, running

SOON = timedelta(seconds=10)


class Invoice(BaseModel):
    number: int
    due: datetime


async def test_a_result_comes_back_as_its_type(app: JetJobs) -> None:
    due = datetime(2027, 1, 31, 9, 0, tzinfo=UTC)

    @app.task
    async def bill(number: int) -> Invoice:
        return Invoice(number=number, due=due)

    @app.task
    async def raw() -> bytes:
        return b"\x00\xff"

    async with provisioned_worker(app):
        assert await (await bill.enqueue(7)).result(SOON) == Invoice(number=7, due=due)
        assert await (await raw.enqueue()).result(SOON) == b"\x00\xff"


async def test_a_result_is_pushed_and_not_polled_for(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def work() -> float:
        await asyncio.sleep(0.3)
        return time.time()

    async with provisioned(app):
        reads = 0

        async def count(message: Msg) -> None:
            nonlocal reads
            reads += "locks" not in message.subject  # those are the leader's

        await truth.nc.subscribe("$JS.API.STREAM.MSG.GET.>", cb=count)
        await truth.nc.flush()
        async with running(app.worker()):
            handle = await work.enqueue()
            ended = await handle.result(SOON)
            assert time.time() - ended < 0.2
        assert reads <= 2  # the look before the wait: done, then dead


async def test_many_waiters_of_a_batch_get_their_own_results(app: JetJobs) -> None:
    @app.task
    async def square(n: int) -> int:
        return n * n

    async with provisioned(app):
        report = await app.enqueue_many([square.bind(n) for n in range(200)])
        async with running(app.worker(slots=50)):
            results = await asyncio.gather(*(handle.result(SOON) for handle in report.stored))
        assert results == [n * n for n in range(200)]


async def test_two_waiters_of_one_job_both_get_the_result(app: JetJobs, probe: Probe) -> None:
    @app.task
    async def work() -> int:
        await asyncio.sleep(0.2)
        return 1

    async with provisioned_worker(app):
        handle = await work.enqueue()
        both = await asyncio.gather(handle.result(SOON), handle.result(SOON))
        assert list(both) == [1, 1]


async def test_waiting_ends_with_not_ready_when_time_is_up(app: JetJobs) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        handle = await work.enqueue()
        with pytest.raises(ResultNotReady, match=handle.id):
            await handle.result(timedelta(milliseconds=200))


async def test_a_caller_that_waits_receives_the_remote_type_text_and_traceback_of_a_failure(app: JetJobs) -> None:
    @app.task(retry=RetryPolicy(max_attempts=1))
    async def work() -> None:
        raise LookupError("nothing there\nsecond line")

    async with provisioned(app):
        handle = await work.enqueue()
        async with running(app.worker()):
            with pytest.raises(JobFailed) as caught:
                await handle.result(SOON)
        error = caught.value
        assert (error.reason, error.error_type, error.text) == (
            "exhausted",
            "LookupError",
            "nothing there\nsecond line",
        )
        assert 'raise LookupError("nothing there' in error.traceback
        with pytest.raises(JobFailed) as again:  # the dead letter says the same, long after the push
            await handle.result(SOON)
        assert (again.value.error_type, again.value.text) == (error.error_type, error.text)


async def test_a_record_is_gone_after_its_ttl_and_the_answer_says_so(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(result_ttl=timedelta(seconds=1))
    async def work() -> int:
        return 1

    async with provisioned(app):
        handle = await work.enqueue()
        async with running(app.worker()):
            assert await handle.result(SOON) == 1
            await eventually(lambda: truth.subjects("KV_jobs-done-default"), where=lambda found: found == {})
        with pytest.raises(ResultExpired):
            await handle.result(SOON)
        assert (await handle.status()).state is None


async def test_a_task_that_stores_no_result_leaves_nothing_behind(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(store_result=False)
    async def work() -> int:
        return 1

    async with provisioned(app):
        handle = await work.enqueue()
        async with running(app.worker()):
            await probe.finished(1, "succeeded")
        assert await truth.done() == {}
        await truth.until_empty()
        with pytest.raises(ResultExpired, match="does not store results"):
            await handle.result(SOON)


async def test_a_result_over_64_mib_is_not_kept_and_makes_its_job_dead_without_a_retry(
    app: JetJobs, truth: Truth, probe: Probe
) -> None:
    @app.task(retry=RetryPolicy(max_attempts=3))
    async def big() -> str:
        return "x" * (64 * 1024 * 1024 - 1)  # and two quotes

    @app.task
    async def small() -> str:
        return "fine"

    async with provisioned(app):
        async with running(app.worker()):
            handle = await big.enqueue()
            with pytest.raises(JobFailed, match="too large") as caught:
                await handle.result(timedelta(seconds=30))
            assert caught.value.reason == "permanent"
            assert await (await small.enqueue()).result(SOON) == "fine"
        assert set(await truth.dead()) == {handle.id}
        assert await truth.objects() == {}


async def test_a_result_that_does_not_fit_the_annotation_is_an_error_for_the_caller(app: JetJobs) -> None:
    @app.task
    async def work() -> int:
        return "seven"  # type: ignore[return-value]

    async with provisioned(app):
        handle = await work.enqueue()
        async with running(app.worker()):
            with pytest.raises(ResultError, match="does not match"):
                await handle.result(SOON)


async def test_a_reply_header_that_is_not_an_inbox_is_ignored(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task
    async def work() -> int:
        return 1

    async with provisioned(app):
        heard: list[str] = []

        async def hear(message: object) -> None:
            heard.append(getattr(message, "subject", ""))

        await truth.nc.subscribe("secret.>", cb=hear)
        await truth.nc.publish("jobs.work.default.normal.work", b"{}", headers={"Jetjobs-Reply": "secret.place"})
        await truth.nc.publish(
            "jobs.work.default.normal.work", b"{}", headers={"Jetjobs-Reply": "$JS.API.STREAM.DELETE.jobs-dead"}
        )
        async with running(app.worker()):
            await probe.finished(2, "succeeded")
        await truth.nc.flush()
        assert heard == []
        assert await truth.has_stream("jobs-dead")


async def test_status_follows_a_job_through_its_places(app: JetJobs, truth: Truth, probe: Probe) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        await go_on.wait()

    async with provisioned(app):
        handle = await work.options(delay=timedelta(seconds=1), priority="high").enqueue()
        scheduled = await handle.status()
        assert (scheduled.state, scheduled.lane) == (JobState.SCHEDULED, "later")
        assert scheduled.due_at is not None
        async with running(app.worker(name="w1")):
            await probe.wait(JobStarted)
            await eventually(handle.status, where=lambda found: found.state is JobState.RUNNING)
            now = await handle.status()
            assert (now.worker, now.lane, now.attempt) == ("w1", "high", 1)
            assert now.started_at is not None
            go_on.set()
            await handle.result(SOON)
            done = await handle.status()
            assert (done.state, done.worker) == (JobState.SUCCEEDED, "w1")
            assert done.enqueued_at is not None
            assert done.started_at is not None
            assert done.ended_at is not None
            assert done.enqueued_at < done.started_at <= done.ended_at


async def test_short_jobs_write_no_running_record(app: JetJobs, truth: Truth, probe: Probe) -> None:
    @app.task(store_result=False)
    async def work() -> None: ...

    async with provisioned(app):
        await app.enqueue_many([work.bind() for _ in range(200)])
        async with running(app.worker()):
            await probe.finished(200, "succeeded")
        info = await truth.api("STREAM.INFO.KV_jobs-running")
        assert info["state"]["last_seq"] == 0
