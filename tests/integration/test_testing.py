"""The helpers of `jetjobs.testing` against a real server: that they hold, and that they fail when they should."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any
from unittest.mock import ANY

import pytest
from pydantic import BaseModel

from jetjobs import InvalidArguments, JetJobs, JobState, RetryPolicy, Secret, Snooze, current_job
from jetjobs.define.options import EnqueueOptions
from jetjobs.model.errors import BrokerError, UnknownTask
from jetjobs.model.events import JobFinished
from jetjobs.testing import (
    Clock,
    JobsFailed,
    assert_enqueued,
    drain,
    enqueued,
    on_server,
    refute_enqueued,
    working,
)
from tests.conftest import MakeApp
from tests.support.probe import Probe, eventually
from tests.support.server import Truth
from tests.support.workers import provisioned

HOUR = timedelta(hours=1)


class Order(BaseModel):
    id: int
    amount: float = 1.0


class Shop:
    """An app and its tasks."""

    def __init__(self, app: JetJobs) -> None:
        self.app = app

        @app.task
        async def greet(name: str, times: int = 1) -> str:
            return f"Hello, {name}!" * times

        @app.task(queue="money")
        async def charge(order: Order, notes: list[str] = []) -> None:  # noqa: B006 - it is not changed
            return None

        @app.task(retry=RetryPolicy(max_attempts=3, base=HOUR, jitter=False))
        async def flaky(good_from: int) -> int:
            if current_job().attempt < good_from:
                raise ConnectionError("the bank does not answer")
            return current_job().attempt

        self.greet, self.charge, self.flaky = greet, charge, flaky


@pytest.fixture
async def shop(app: JetJobs) -> AsyncIterator[Shop]:
    """Open, with its queues."""
    shop = Shop(app)
    async with provisioned(app):
        yield shop


# What is enqueued


async def test_a_job_is_found_by_task_and_some_of_its_arguments(shop: Shop) -> None:
    app = shop.app
    handle = await shop.greet.enqueue("Ada", times=2)
    await shop.charge.enqueue(Order(id=7))
    for found in (
        assert_enqueued(app, shop.greet),
        assert_enqueued(app, "greet"),
        assert_enqueued(app, shop.greet, "Ada"),
        assert_enqueued(app, shop.greet, name="Ada", times=2),
        assert_enqueued(app, shop.greet, name=ANY),
        assert_enqueued(app, shop.greet, times=pytest.approx(2.0)),
    ):
        assert found.id == handle.id
    assert found.args == {"name": "Ada", "times": 2}
    assert found.state is JobState.QUEUED
    assert (found.queue, found.priority, found.attempt) == ("default", "normal", 1)
    assert_enqueued(app, shop.charge, order=Order(id=7))
    assert_enqueued(app, shop.charge, order={"id": 7})
    assert_enqueued(app, shop.charge, notes=[])  # a default that was not sent
    assert [one.task for one in enqueued(app)] == ["greet", "charge"]


async def test_an_argument_that_differs_fails_with_what_was_found_instead(shop: Shop) -> None:
    app = shop.app
    handle = await shop.charge.enqueue(Order(id=7, amount=20), notes=["a", "b"])
    await shop.greet.enqueue("Ada")
    await shop.greet.enqueue("Bob")
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, shop.charge, order=Order(id=7, amount=19.9), notes=["a", "c"])
    assert str(caught.value).splitlines() == [
        "not enqueued: charge(order=Order(id=7, amount=19.9), notes=['a', 'c'])",
        "found 1 of this task:",
        f"  charge(order=Order(id=7, amount=20.0), notes=['a', 'b'])  queued in queue 'money', id {handle.id}",
        "    order: wanted {'id': 7, 'amount': 19.9}, found {'id': 7, 'amount': 20.0}",
        "    notes: wanted ['a', 'c'], found ['a', 'b']",
        "of other tasks: 2 greet",
    ]


async def test_the_nearest_jobs_are_shown_first_and_not_all_of_many(shop: Shop) -> None:
    app = shop.app
    await app.enqueue_many([shop.greet.bind(f"n{i}", times=i) for i in range(8)])
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, shop.greet, name="other", times=6)
    lines = str(caught.value).splitlines()
    assert lines[1] == "found 8 of this task:"
    assert "times=6" in lines[2]
    assert lines[3] == "    name: wanted 'other', found 'n6'"
    assert lines[-1] == "  and 3 more"


async def test_nothing_enqueued_is_said_and_so_is_an_ended_job(shop: Shop) -> None:
    app = shop.app
    with pytest.raises(AssertionError, match=r"not enqueued: greet\(…\)\nnothing is enqueued"):
        assert_enqueued(app, shop.greet)
    await shop.greet.enqueue("Ada")
    await drain(app)
    with pytest.raises(AssertionError, match="a job that has ended is not enqueued any more"):
        assert_enqueued(app, shop.greet, "Ada")


async def test_a_refutation_holds_and_fails_with_the_jobs_it_met(shop: Shop) -> None:
    app = shop.app
    refute_enqueued(app)
    handle = await shop.greet.enqueue("Ada")
    refute_enqueued(app, shop.charge)
    refute_enqueued(app, shop.greet, name="Bob")
    with pytest.raises(AssertionError) as caught:
        refute_enqueued(app, shop.greet, name="Ada")
    assert "a job is enqueued that should not be: greet(name='Ada')" in str(caught.value)
    assert handle.id in str(caught.value)
    with pytest.raises(AssertionError, match="should not be: any job"):
        refute_enqueued(app)


async def test_what_can_never_be_enqueued_is_an_error_and_no_refutation(shop: Shop, make_app: MakeApp) -> None:
    app = shop.app
    for check in (assert_enqueued, refute_enqueued, enqueued):
        with pytest.raises(InvalidArguments, match="'greet' takes no argument 'nme'; it takes name, times"):
            check(app, shop.greet, nme="Ada")
        with pytest.raises(InvalidArguments, match="times: Input should be a valid integer"):
            check(app, shop.greet, times="many")
        with pytest.raises(InvalidArguments, match="takes 2 positional arguments, got 3"):
            check(app, shop.greet, "Ada", 2, 3)
        with pytest.raises(UnknownTask, match="no task named 'great'"):
            check(app, "great")
    with pytest.raises(TypeError, match="name the task too"):
        enqueued(app, name="Ada")
    elsewhere = make_app("other")

    @elsewhere.task
    async def foreign() -> None: ...

    with pytest.raises(UnknownTask):
        refute_enqueued(app, foreign)


async def test_options_are_compared_too(shop: Shop) -> None:
    app, greet = shop.app, shop.greet
    run_at, deadline = datetime.now(UTC) + 5 * HOUR, datetime.now(UTC) + 9 * HOUR
    options = EnqueueOptions(
        delay=2 * HOUR,
        priority="high",
        key="k",
        max_attempts=4,
        headers={"X-Tenant": "acme"},
        deadline=deadline,
    )
    await greet.options(**options).enqueue("Ada")
    await greet.options(run_at=run_at, job_id="mine", queue="money").enqueue("Bob")
    found = assert_enqueued(app, greet.options(**options))
    assert found.state is JobState.SCHEDULED
    assert found.headers == {"X-Tenant": "acme"}
    assert assert_enqueued(app, greet.options(run_at=run_at, job_id="mine", queue="money")).id == "mine"
    wrong: list[tuple[Any, str]] = [
        (greet.options(delay=HOUR), "delay: wanted 1h00m, found "),
        (greet.options(priority="low"), "priority: wanted 'low', found 'high'"),
        (greet.options(key="other"), "key: wanted 'other', found another"),
        (greet.options(max_attempts=5), "max_attempts: wanted 5, found 4"),
        (greet.options(headers={"X-Tenant": "x"}), "header X-Tenant: wanted 'x', found 'acme'"),
        (greet.options(deadline=run_at), "deadline: wanted"),
        (greet.options(queue="x"), "queue: wanted 'x', found 'money'"),
        (greet.options(job_id="yours"), "job_id: wanted 'yours', found 'mine'"),
        (greet.options(run_at=deadline), "run_at: wanted"),
        (greet.options(retry=RetryPolicy(max_attempts=9)), "retry: wanted"),
    ]
    for call, told in wrong:
        with pytest.raises(AssertionError, match=re.escape(told)):
            assert_enqueued(app, call)


async def test_a_body_in_the_object_store_is_compared_whole(shop: Shop, truth: Truth) -> None:
    app = shop.app
    name = "n" * 2_000_000
    await shop.greet.enqueue(name)
    assert await truth.objects()
    assert_enqueued(app, shop.greet, name=name)
    refute_enqueued(app, shop.greet, name=name + "n")


async def test_jobs_that_are_no_ours_do_not_get_in_the_way(shop: Shop, truth: Truth) -> None:
    app = shop.app
    await truth.js.publish("jobs.work.default.normal.stranger", b'{"a": 1}')
    await truth.js.publish("jobs.work.default.normal.greet", b"no json")
    found = {one.task: one.args for one in enqueued(app)}
    assert found == {"stranger": {"a": 1}, "greet": {}}
    with pytest.raises(AssertionError, match="name: wanted 'Ada', found nothing"):
        assert_enqueued(app, shop.greet, "Ada")


def test_the_app_need_not_be_open_and_the_test_need_not_be_async(app: JetJobs) -> None:
    shop = Shop(app)

    async def enqueue() -> None:
        async with provisioned(app):
            await shop.greet.options(delay=HOUR).enqueue("Ada")

    asyncio.run(enqueue())
    assert_enqueued(app, shop.greet, "Ada")
    assert asyncio.run(drain(app)).finished == []
    assert Clock(app).advance("2h") == 1
    assert [one.task for one in asyncio.run(drain(app)).succeeded] == ["greet"]
    refute_enqueued(app)


# Drain


async def test_drain_runs_what_is_ready_and_what_that_enqueues_and_nothing_for_later(
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


async def test_drain_of_one_queue_leaves_the_others_alone(shop: Shop) -> None:
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
    assert "a job failed in drain()" in text
    assert f"flaky {handle.id}, attempt 1, retries in 1h00m: ConnectionError: the bank does not answer" in text
    assert 'raise ConnectionError("the bank does not answer")' in text
    assert [one.job_id for one in caught.value.failures] == [handle.id]
    assert (await handle.status()).state is JobState.RETRYING


async def test_without_check_the_report_says_what_failed(shop: Shop) -> None:
    app = shop.app
    await shop.flaky.enqueue(2)
    await shop.flaky.options(max_attempts=1).enqueue(2)
    ran = await drain(app, check=False)
    assert (len(ran.retried), len(ran.dead), len(ran.succeeded)) == (1, 1, 0)
    assert ran.dead[0].reason == "exhausted"


async def test_with_retries_a_job_is_tried_until_it_ends_without_its_backoff(shop: Shop) -> None:
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


async def test_with_retries_a_backoff_of_a_moment_is_waited_for(app: JetJobs) -> None:
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


async def test_a_drain_that_does_not_end_says_what_is_left(app: JetJobs, truth: Truth) -> None:
    @app.task
    async def hang() -> None:
        await asyncio.Event().wait()

    async with provisioned(app):
        handle = await hang.enqueue()
        with pytest.raises(AssertionError, match=rf"not drained within 500 ms: hang {handle.id}"):
            await drain(app, timeout="500ms")
        assert len(await truth.jobs()) == 1  # given back, not lost


async def test_a_drain_leaves_no_observer_behind(shop: Shop, probe: Probe) -> None:
    app = shop.app
    first = await drain(app)
    await shop.greet.enqueue("Ada")
    await drain(app)
    assert first.finished == []
    assert len(probe.of(JobFinished)) == 1


async def test_a_missing_queue_is_an_error_of_its_own(app: JetJobs) -> None:
    Shop(app)
    async with app:
        with pytest.raises(BrokerError):
            await drain(app)


# The clock


async def test_the_clock_queues_what_is_due_by_then_and_shortens_the_other_waits(shop: Shop, truth: Truth) -> None:
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


async def test_the_server_itself_fires_what_still_waits_at_its_new_time(shop: Shop, truth: Truth) -> None:
    app = shop.app
    await shop.greet.options(delay=HOUR).enqueue("Ada")
    Clock(app).advance(timedelta(minutes=59, seconds=55))
    await eventually(lambda: truth.jobs(lane="normal"), 30)


async def test_what_is_about_to_be_due_is_waited_for(shop: Shop, truth: Truth) -> None:
    app = shop.app
    await shop.greet.options(delay=timedelta(seconds=1)).enqueue("Ada")
    assert Clock(app).advance("1m") <= 1  # 0 when it was fired before we looked
    assert await truth.jobs(lane="later") == []
    assert len(await truth.jobs(lane="normal")) == 1


async def test_the_clock_brings_retries_and_the_job_keeps_its_history(shop: Shop) -> None:
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


@pytest.mark.parametrize(
    ("by", "error", "told"),
    [
        (timedelta(seconds=-1), ValueError, "does not go back"),
        ("soon", ValueError, "is no duration"),
        (1.5, TypeError, "a timedelta or text such as '90m'"),
        (None, TypeError, "a timedelta or text such as '90m'"),
    ],
)
def test_the_clock_does_not_go_back_and_takes_durations_only(
    app: JetJobs, by: Any, error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told):
        Clock(app).advance(by)


# Beside an app


async def test_a_worker_that_cannot_start_says_so_at_once(app: JetJobs) -> None:
    @app.task
    async def greet() -> None: ...

    @app.lifespan
    def broken() -> Any:
        raise RuntimeError("no database")

    async with provisioned(app):
        with pytest.raises(RuntimeError, match="no database"):
            async with working(app.worker()):
                raise AssertionError("entered")


async def test_a_worker_beside_a_failing_test_gives_its_job_back_at_once(make_app: MakeApp, truth: Truth) -> None:
    app = make_app(worker={"stop_timeout": "10m"})
    started = asyncio.Event()

    @app.task
    async def hang() -> None:
        started.set()
        await asyncio.Event().wait()

    async with provisioned(app):
        await hang.enqueue()

        async def fail() -> None:
            async with working(app.worker()):
                await asyncio.wait_for(started.wait(), 30)
                raise AssertionError("the test's own")

        with pytest.raises(AssertionError, match="the test's own"):
            await fail()
        assert len(await truth.jobs()) == 1


def test_on_server_takes_no_credentials_along_and_puts_the_settings_back(make_app: MakeApp) -> None:
    app = make_app(nats={"user": "u", "password": "p", "connect_timeout": "3s"}, queues={"namespace": "mine"})
    before = app.settings
    with on_server(app, "nats://127.0.0.1:1"):
        inside = app.settings
        assert (inside.nats.url, inside.nats.user, inside.nats.password) == ("nats://127.0.0.1:1", None, None)
        assert inside.nats.connect_timeout == timedelta(seconds=3)
        assert (inside.queues.namespace, inside.queues.storage) == ("mine", "memory")
    assert app.settings is before


def test_settings_that_were_not_read_before_are_read_anew_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    app = JetJobs("t")
    with on_server(app, "nats://127.0.0.1:1"):
        pass
    monkeypatch.setenv("JETJOBS_NATS__URL", "nats://127.0.0.1:2")
    assert app.settings.nats.url == "nats://127.0.0.1:2"


class Login(BaseModel):
    user: str
    token: Annotated[str, Secret()]


async def test_messages_and_reprs_show_no_secret(app: JetJobs, truth: Truth) -> None:
    hush = "hunter2-hush"

    @app.task
    async def log_in(login: Login, password: Annotated[str, Secret()] = hush) -> None: ...

    async with provisioned(app):
        await log_in.enqueue(Login(user="ada", token=hush), hush)
        await truth.js.publish(
            "jobs.work.default.normal.log_in", b'{"login": {"user": "ada", "token": "%b"}}' % hush.encode()
        )
        found = enqueued(app, log_in)
        assert len(found) == 2
        texts = [repr(found), *map(str, found)]
        for wanted in (
            {"login": Login(user="eve", token=hush + "2")},
            {"login": {"user": "eve", "token": hush + "2"}},
            {"password": hush + "2"},
        ):
            with pytest.raises(AssertionError) as caught:
                assert_enqueued(app, log_in, **wanted)
            texts.append(str(caught.value))
        with pytest.raises(AssertionError) as caught:
            refute_enqueued(app, log_in, password=hush)
        texts.append(str(caught.value))
    assert "login: wanted {'user': 'eve', 'token': '***'}, found {'user': 'ada', 'token': '***'}" in texts[3]
    assert "password: not as wanted, in a part that is secret" in texts[5]
    assert not [text for text in texts if hush in text]
