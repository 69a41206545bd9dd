"""`jetjobs.testing`: `drain` runs ready jobs, and the clock makes waiting jobs due."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from jetjobs import JetJobs, JobState, RetryPolicy, Snooze, current_job
from jetjobs.model.errors import BrokerError
from jetjobs.model.events import JobFinished
from jetjobs.testing import Clock, JobsFailed, assert_enqueued, drain, enqueued
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.shop import HOUR, Order, Shop
from tests.support.workers import provisioned

# Drain


async def test_drain_runs_ready_jobs_and_the_jobs_they_enqueue_but_no_delayed_jobs(
    app: JetJobs, truth: Truth
) -> None:
    @app.task(queue="second")
    async def child(depth: int) -> None:
        if depth:
            await parent.enqueue(depth - 1)

    @app.task(queue="first")
    async def parent(depth: int) -> None:
        await child.enqueue(depth)

    async with provisioned(app):
        await parent.enqueue(3)
        await parent.options(delay=HOUR).enqueue(0)
        ran = await drain(app)
        assert sorted(one.task for one in ran.succeeded) == ["child"] * 4 + ["parent"] * 4
        assert repr(ran) == "<Drained succeeded=8 retried=0 snoozed=0 dead=0>"
        left = [*await truth.jobs("first"), *await truth.jobs("second")]
        assert len(left) == 1
        assert ".later." in left[0]


async def test_drain_of_one_queue_does_not_run_jobs_of_others(shop: Shop) -> None:
    app = shop.app
    await shop.greet.enqueue("Ada")
    await shop.charge.enqueue(Order(id=7))
    assert [one.task for one in (await drain(app, "money")).finished] == ["charge"]
    assert [one.task for one in enqueued(app)] == ["greet"]
    assert [one.task for one in (await drain(app, ["default", "money"])).finished] == ["greet"]


async def test_a_failed_attempt_fails_the_drain_with_its_traceback(shop: Shop) -> None:
    app = shop.app
    handle = await shop.flaky.enqueue(2)
    with pytest.raises(JobsFailed) as caught:
        await drain(app)
    text = str(caught.value)
    assert "1 job failed in drain()" in text
    assert f"flaky {handle.id}, attempt 1, retries in 1h00m: ConnectionError: the bank does not answer" in text
    assert 'raise ConnectionError("the bank does not answer")' in text
    assert [one.job_id for one in caught.value.failures] == [handle.id]
    assert (await handle.status()).state is JobState.RETRYING


async def test_without_check_the_report_has_the_failures(shop: Shop) -> None:
    app = shop.app
    await shop.flaky.enqueue(2)
    await shop.flaky.options(max_attempts=1).enqueue(2)
    ran = await drain(app, check=False)
    assert (len(ran.retried), len(ran.dead), len(ran.succeeded)) == (1, 1, 0)
    assert ran.dead[0].reason == "exhausted"


async def test_with_retries_a_job_is_retried_without_backoff_until_it_ends(shop: Shop) -> None:
    app = shop.app
    good = await shop.flaky.enqueue(3)
    bad = await shop.flaky.enqueue(9)
    waiting = await shop.flaky.options(delay=HOUR).enqueue(1)
    with pytest.raises(JobsFailed) as caught:
        await drain(app, retries=True)
    assert [(one.job_id, one.attempt) for one in caught.value.failures] == [(bad.id, 3)]
    assert len(caught.value.drained.retried) == 4
    assert await good.result() == 3
    assert (await waiting.status()).state is JobState.SCHEDULED


async def test_with_retries_a_short_backoff_is_waited_for(app: JetJobs) -> None:
    @app.task(retry=RetryPolicy(max_attempts=3, base=timedelta(milliseconds=300), jitter=False))
    async def flaky() -> int:
        if current_job().attempt < 3:
            raise ConnectionError
        return current_job().attempt

    async with provisioned(app):
        handle = await flaky.enqueue()
        ran = await drain(app, retries=True)
        assert len(ran.retried) == 2
        assert await handle.result() == 3


async def test_a_snoozed_job_is_reported_and_left_waiting(app: JetJobs) -> None:
    @app.task
    async def not_now() -> None:
        raise Snooze(HOUR)

    async with provisioned(app):
        await not_now.enqueue()
        ran = await drain(app, retries=True)
        assert len(ran.snoozed) == 1
        assert len(enqueued(app, not_now)) == 1


@pytest.mark.parametrize("retries", [False, True])
async def test_a_job_whose_task_the_app_does_not_know_fails_the_drain(
    app: JetJobs, truth: Truth, retries: bool
) -> None:
    @app.task
    async def work() -> None: ...

    async with provisioned(app):
        await truth.nc.publish("jobs.work.default.normal.wrok", b"{}")
        await truth.nc.flush()
        with pytest.raises(JobsFailed, match=r"wrok .* parked: .* no worker knows task 'wrok'") as failed:
            await drain(app, retries=retries)
        assert len(failed.value.drained.parked) == 1
        assert repr(failed.value.drained) == "<Drained succeeded=0 retried=0 snoozed=0 parked=1 dead=0>"
        assert len(await truth.jobs()) == 1  # parked, not lost


async def test_a_drain_that_times_out_names_the_remaining_jobs(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with provisioned(app):
        handle = await hang.enqueue()
        with pytest.raises(AssertionError, match=rf"not drained within 500 ms: hang {handle.id}"):
            await drain(app, timeout="500ms")
        assert len(await truth.jobs()) == 1  # released, not lost


async def test_a_drain_leaves_no_observer_behind(shop: Shop, probe: Probe) -> None:
    app = shop.app
    first = await drain(app)
    await shop.greet.enqueue("Ada")
    await drain(app)
    assert first.finished == []
    assert len(probe.of(JobFinished)) == 1


async def test_a_missing_queue_is_an_error(app: JetJobs) -> None:
    Shop(app)
    async with app:
        with pytest.raises(BrokerError):
            await drain(app)


# The clock


async def test_the_clock_queues_jobs_that_are_due_and_shortens_the_wait_of_others(
    shop: Shop, truth: Truth
) -> None:
    app = shop.app
    clock = Clock(app)
    await shop.greet.options(delay=HOUR).enqueue("one")
    await shop.charge.options(delay=2 * HOUR, priority="high").enqueue(Order(id=2))
    last = await shop.greet.options(delay=5 * HOUR, key="k").enqueue("five")
    before = (await last.status()).due_at
    assert clock.advance("30m") == 0
    assert clock.advance(timedelta(minutes=90)) == 2
    assert [subject.split(".")[3] for subject in await truth.jobs("money")] == ["high"]
    status = await last.status()
    assert status.state is JobState.SCHEDULED
    assert before is not None
    assert status.due_at is not None
    assert abs(before - status.due_at - 2 * HOUR) < timedelta(milliseconds=1)
    assert {one.task for one in (await drain(app)).succeeded} == {"greet", "charge"}
    assert_enqueued(app, shop.greet.options(key="k", delay=5 * HOUR), "five")
    assert clock.advance("3h") == 1
    assert [one.job_id for one in (await drain(app)).succeeded] == [last.id]
    assert await truth.jobs() == []
    assert clock.advance("365d") == 0


async def test_the_server_fires_waiting_jobs_at_their_new_time(shop: Shop, truth: Truth) -> None:
    app = shop.app
    await shop.greet.options(delay=HOUR).enqueue("Ada")
    Clock(app).advance(timedelta(minutes=59, seconds=55))
    await eventually(lambda: truth.jobs(lane="normal"), 30)


async def test_the_clock_waits_for_jobs_that_are_about_to_be_due(shop: Shop, truth: Truth) -> None:
    app = shop.app
    await shop.greet.options(delay=timedelta(seconds=1)).enqueue("Ada")
    assert Clock(app).advance("1m") <= 1  # 0 when it fired before the clock read the queue
    assert await truth.jobs(lane="later") == []
    assert len(await truth.jobs(lane="normal")) == 1


async def test_the_clock_makes_retries_due_and_the_job_keeps_its_history(shop: Shop) -> None:
    app = shop.app
    handle = await shop.flaky.enqueue(3)
    await drain(app, check=False)
    assert Clock(app).advance("59m") == 0
    assert Clock(app).advance("1m") == 1
    await drain(app, check=False)
    assert (await handle.status()).attempt == 3
    Clock(app).advance("1d")
    await drain(app)
    assert await handle.result() == 3


async def test_a_deadline_passes_with_the_clock(shop: Shop) -> None:
    app = shop.app
    deadline = datetime.now(UTC) + 3 * HOUR
    await shop.greet.options(delay=2 * HOUR, deadline=deadline).enqueue("in time")
    await shop.greet.options(delay=4 * HOUR, deadline=deadline).enqueue("too late")
    Clock(app).advance("2h")
    assert len((await drain(app)).succeeded) == 1
    Clock(app).advance("2h")
    ran = await drain(app, check=False)
    assert [one.reason for one in ran.dead] == ["expired"]
