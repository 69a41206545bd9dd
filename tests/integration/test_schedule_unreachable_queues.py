"""Edits of schedules while some of their queues do not answer."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import importlib
from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.jetstream.schedules.ticks import Ticks
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.schedule.schedule import time_token
from jetjobs.worker.scheduling.planner import Planner
from tests.support.probe import background, eventually, wait_until
from tests.support.schedule_edits import every_time_once, planned_past, put
from tests.support.schedules import SECOND, aligned, now_of, placed, planning, ticks_in, times_of
from tests.support.server import Truth

SELDOM = timedelta(days=3000)

pytestmark = pytest.mark.timeout(150)


@contextlib.asynccontextmanager
async def leading(app: JetJobs, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[set[str]]:
    """A leader that plans 6 s ahead, and gets no answer from the queues in the set."""
    silent: set[str] = set()
    leads = contextvars.ContextVar("leads", default=False)
    monkeypatch.setattr("jetjobs.model.schedule.plan.AHEAD", 6 * SECOND)
    monkeypatch.setattr("jetjobs.worker.scheduling.planner.COMPARE_S", 1.0)

    def cut(name: str, timeout_s: float) -> None:
        original = getattr(Ticks, name)

        async def asked(self: Ticks, queue: str, *args: Any) -> Any:
            if queue in silent and leads.get():
                await asyncio.sleep(timeout_s)
                raise BrokerUnavailable(f"{queue} does not answer")
            return await original(self, queue, *args)

        monkeypatch.setattr(Ticks, name, asked)

    for name, timeout_s in (("mark", 0.5), ("marks", 0.5), ("waiting", 0.5), ("store", 15.0)):
        cut(name, timeout_s)

    async def lead() -> None:
        leads.set(True)
        await Planner(app.jetstream, lambda: 1).run()

    async with background(lead()):
        yield silent


async def test_an_edit_does_not_need_a_queue_where_the_schedule_never_was(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = await put(queues_app)
    async with leading(queues_app, monkeypatch) as silent:
        silent.add("c")
        await eventually(lambda: aligned(queues_app, "s"), 10)
        await put(queues_app, args={"n": 2})
        await eventually(lambda: aligned(queues_app, "s"), 10)
        await put(queues_app, args={"n": 2}, queue="b")
        await eventually(lambda: aligned(queues_app, "s"), 10)
        await queues_app.schedules.put("new", "work", every=SELDOM)
        await eventually(lambda: aligned(queues_app, "new"), 10)
        until = await now_of(queues_app) + 8 * SECOND
        await eventually(lambda: planned_past(queues_app, truth, until), 30)
    await every_time_once(truth, since)


@pytest.mark.parametrize("gone", ["b", "c"])
async def test_a_schedule_is_planned_where_it_was_until_it_can_move(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, gone: str
) -> None:
    """It goes from b to c, and one of them does not answer: then neither c is begun, nor b ended."""

    async def is_told() -> bool:
        return any(vars(record).get("event") == "schedule.unplaced" for record in caplog.records)

    since = await put(queues_app, queue="b", misfire="all")
    async with leading(queues_app, monkeypatch) as silent:
        await eventually(lambda: placed(truth, 4, "b"), 10)
        silent.add(gone)
        await put(queues_app, queue="c", misfire="all")
        await eventually(is_told, 10)
        until = await now_of(queues_app) + 8 * SECOND
        if gone == "c":
            await eventually(lambda: planned_past(queues_app, truth, until), 12)
        assert await ticks_in(truth, "c") == []
        silent.clear()
        await eventually(lambda: aligned(queues_app, "s"), 30)
        await eventually(lambda: planned_past(queues_app, truth, until), 30)
    await every_time_once(truth, since)


async def test_queues_that_do_not_answer_hold_up_no_other(
    queues_app: JetJobs, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = await put(queues_app)
    for queue in ("b", "c"):
        await queues_app.schedules.put(f"a-{queue}", "work", every=SECOND, queue=queue)
    async with leading(queues_app, monkeypatch) as silent:
        await eventually(lambda: aligned(queues_app, "s"), 10)
        silent |= {"b", "c"}
        for _ in range(3):  # each of them takes 15 s to fail
            until = time_token(await now_of(queues_app) + 6 * SECOND)

            async def fired(until: str = until) -> bool:
                return any(uid >= until for uid in times_of(await truth.jobs(lane="normal")))

            await eventually(fired, 8)
    await every_time_once(truth, since, queues=("default",))


async def test_the_event_loop_is_shared_while_many_schedules_are_taken_over(
    queues_app: JetJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        await queues_app.schedules.put(f"s{number}", "work", cron=f"{number % 60} 3 * * *")

    async def all_aligned() -> bool:
        return len(await queues_app.jetstream.ticks.marks("default")) == 200

    async with planning(queues_app):
        await eventually(all_aligned, 30)
    counts, most = Counter[str](), Counter[str]()

    def counted(where: str) -> None:
        original = getattr(importlib.import_module(where.rpartition(".")[0]), where.rpartition(".")[2])

        def call(*args: Any) -> Any:
            counts[where] += 1
            return original(*args)

        monkeypatch.setattr(where, call)

    parse, plan = "jetjobs.jetstream.schedules.store.read_schedule", "jetjobs.worker.scheduling.planner.plan"
    counted(parse)
    counted(plan)

    async def others() -> None:
        while True:
            before = counts.copy()
            await asyncio.sleep(0)
            most[parse] = max(most[parse], counts[parse] - before[parse])
            most[plan] = max(most[plan], counts[plan] - before[plan])

    async with background(others()), planning(queues_app):
        await wait_until(lambda: counts[parse] >= 200 and counts[plan] >= 200, 30)
    assert most[parse] <= 50
    assert most[plan] <= 50
