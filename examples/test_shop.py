"""Tests of the shop, as an example for your own: `pytest examples/test_shop.py`."""

from __future__ import annotations

import asyncio

import pytest
from pydantic import ValidationError

from examples.shop import Ledger, Order, charge, greet, import_feed, make_thumbnail, place_order, remind
from jetjobs import InvalidArguments, JetJobs, JobState, Worker
from jetjobs.testing import Clock, Inline, assert_enqueued, drain, enqueued, refute_enqueued, run_inline

# One task: no server, no worker.


async def test_a_greeting() -> None:
    assert await run_inline(greet, "Ada") == "Hello, Ada!"


async def test_the_second_attempt_charges_and_writes_to_the_ledger() -> None:
    ledger = Ledger()
    with pytest.raises(ConnectionError):
        await run_inline(charge, Order(id=7, amount=19.9), ledger=ledger)
    assert (
        await Inline(attempt=2).run(charge, Order(id=7, amount=19.9), ledger=ledger) == "charged 19.90 for order 7"
    )
    assert ledger.lines == ["charged 7"]


async def test_invalid_arguments_are_rejected_before_the_task_runs() -> None:
    with pytest.raises(InvalidArguments, match="amount"):
        await run_inline(charge, {"id": 7, "amount": -1})  # type: ignore[arg-type]
    with pytest.raises(ValidationError):
        Order(id=7, amount=-1)


# The jobs that my code enqueues: a real server, no worker.


async def test_an_order_is_charged_now_and_the_customer_reminded_in_a_week(jetjobs_app: JetJobs) -> None:
    await place_order(Order(id=7, amount=19.9), "Ada")
    assert_enqueued(jetjobs_app, charge, order=Order(id=7, amount=19.9))
    assert_enqueued(jetjobs_app, remind.options(delay="7d", key="remind-7"), "Ada")
    refute_enqueued(jetjobs_app, greet)


async def test_two_orders_with_the_same_id_send_one_reminder(jetjobs_app: JetJobs) -> None:
    await place_order(Order(id=7, amount=19.9), "Ada")
    await place_order(Order(id=7, amount=19.9), "Ada")
    assert len(enqueued(jetjobs_app, remind)) == 1


# The work of the jobs: a real worker runs until no job is left.


async def test_a_charge_is_retried_when_the_bank_does_not_answer(jetjobs_app: JetJobs) -> None:
    handle = await charge.enqueue(Order(id=7, amount=19.9))
    ran = await drain(jetjobs_app, retries=True)
    assert [(one.task, one.attempt, one.outcome) for one in ran.finished] == [
        ("charge", 1, "retried"),
        ("charge", 2, "succeeded"),
    ]
    assert await handle.result() == "charged 19.90 for order 7"


async def test_the_reminder_goes_out_after_a_week(jetjobs_app: JetJobs, jetjobs_clock: Clock) -> None:
    await place_order(Order(id=7, amount=19.9), "Ada")
    await drain(jetjobs_app, retries=True)
    assert_enqueued(jetjobs_app, remind, "Ada")  # it still waits
    jetjobs_clock.advance("6d")
    assert not (await drain(jetjobs_app)).finished
    jetjobs_clock.advance("1d")
    assert [one.task for one in (await drain(jetjobs_app)).succeeded] == ["remind"]


async def test_a_broken_feed_ends_as_a_dead_letter(jetjobs_app: JetJobs) -> None:
    handle = await import_feed.enqueue("https://example.org")
    ran = await drain(jetjobs_app, retries=True, check=False)
    assert [one.task for one in ran.dead] == ["import_feed"]
    assert (await handle.status()).state is JobState.DEAD


# Everything together, as in production.


async def test_a_worker_makes_thumbnails(jetjobs_app: JetJobs, jetjobs_worker: Worker) -> None:
    handle = await make_thumbnail.enqueue("cat.png", width=64)
    assert await handle.result(30) == "cat.png@64"


def test_the_helpers_work_in_a_plain_test(jetjobs_app: JetJobs) -> None:
    handle = charge.enqueue_sync(Order(id=7, amount=19.9))
    assert_enqueued(jetjobs_app, charge)
    asyncio.run(drain(jetjobs_app, retries=True))
    refute_enqueued(jetjobs_app, charge)
    assert handle.result_sync(5) == "charged 19.90 for order 7"
