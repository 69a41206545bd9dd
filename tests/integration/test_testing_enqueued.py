"""`jetjobs.testing`: assertions about enqueued jobs."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import Annotated, Any
from unittest.mock import ANY

import pytest
from pydantic import BaseModel

from jetjobs import InvalidArguments, JetJobs, JobState, RetryPolicy, Secret
from jetjobs.define.options import EnqueueOptions
from jetjobs.model.errors import UnknownTask
from jetjobs.testing import Clock, assert_enqueued, drain, enqueued, refute_enqueued
from tests.conftest import MakeApp
from tests.support.server import Truth
from tests.support.shop import HOUR, Order, Shop
from tests.support.workers import provisioned

# Finding jobs


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


async def test_an_assertion_fails_with_the_arguments_that_were_found(shop: Shop) -> None:
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


async def test_the_closest_jobs_are_shown_first_and_the_number_is_limited(shop: Shop) -> None:
    app = shop.app
    await app.enqueue_many([shop.greet.bind(f"n{i}", times=i) for i in range(8)])
    with pytest.raises(AssertionError) as caught:
        assert_enqueued(app, shop.greet, name="other", times=6)
    lines = str(caught.value).splitlines()
    assert lines[1] == "found 8 of this task:"
    assert "times=6" in lines[2]
    assert lines[3] == "    name: wanted 'other', found 'n6'"
    assert lines[-1] == "  and 3 more"


async def test_an_empty_queue_and_an_ended_job_are_explained(shop: Shop) -> None:
    app = shop.app
    with pytest.raises(AssertionError, match=r"not enqueued: greet\(…\)\nno job is enqueued"):
        assert_enqueued(app, shop.greet)
    await shop.greet.enqueue("Ada")
    await drain(app)
    with pytest.raises(AssertionError, match="jobs that have ended do not count"):
        assert_enqueued(app, shop.greet, "Ada")


async def test_refute_passes_or_fails_with_the_jobs_it_found(shop: Shop) -> None:
    app = shop.app
    refute_enqueued(app)
    handle = await shop.greet.enqueue("Ada")
    refute_enqueued(app, shop.charge)
    refute_enqueued(app, shop.greet, name="Bob")
    with pytest.raises(AssertionError) as caught:
        refute_enqueued(app, shop.greet, name="Ada")
    assert "1 job is enqueued, expected none: greet(name='Ada')" in str(caught.value)
    assert handle.id in str(caught.value)
    with pytest.raises(AssertionError, match="expected none: any job"):
        refute_enqueued(app)


async def test_impossible_expectations_are_errors_and_not_refutations(shop: Shop, make_app: MakeApp) -> None:
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
    with pytest.raises(TypeError, match="give the task too"):
        enqueued(app, name="Ada")
    elsewhere = make_app("other")

    @elsewhere.task
    async def foreign() -> None: ...

    with pytest.raises(UnknownTask):
        refute_enqueued(app, foreign)


async def test_options_are_compared(shop: Shop) -> None:
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
    for call, text in wrong:
        with pytest.raises(AssertionError, match=re.escape(text)):
            assert_enqueued(app, call)


async def test_a_body_in_the_object_store_is_compared_completely(shop: Shop, truth: Truth) -> None:
    app = shop.app
    name = "n" * 2_000_000
    await shop.greet.enqueue(name)
    assert await truth.objects()
    assert_enqueued(app, shop.greet, name=name)
    refute_enqueued(app, shop.greet, name=name + "n")


async def test_foreign_messages_are_ignored(shop: Shop, truth: Truth) -> None:
    app = shop.app
    await truth.js.publish("jobs.work.default.normal.stranger", b'{"a": 1}')
    await truth.js.publish("jobs.work.default.normal.greet", b"no json")
    found = {one.task: one.args for one in enqueued(app)}
    assert found == {"stranger": {"a": 1}, "greet": {}}
    with pytest.raises(AssertionError, match="name: wanted 'Ada', found nothing"):
        assert_enqueued(app, shop.greet, "Ada")


def test_the_helpers_work_in_plain_tests_and_without_an_open_app(app: JetJobs) -> None:
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


# Secrets


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
    assert "password: differs in a part that is secret" in texts[5]
    assert not [text for text in texts if hush in text]
