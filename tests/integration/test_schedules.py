"""Ticks are placed a minute ahead, once each, also after a period without a leader."""

from __future__ import annotations

import contextlib
import itertools
import time
import types
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.messages.batch import _block, batch_message
from jetjobs.model.errors import BrokerError
from jetjobs.model.schedule.plan import Mark, plan, step
from jetjobs.model.schedule.schedule import make_schedule, time_of_token, time_token
from tests.conftest import MakeApp
from tests.support.probe import eventually
from tests.support.schedules import (
    HOUR,
    SECOND,
    gaps,
    now_of,
    placed,
    planning,
    ready,
    set_back,
    ticks_in,
    ticks_once,
    times_of,
)
from tests.support.server import Truth
from tests.support.workers import provisioned

pytestmark = pytest.mark.timeout(150)


# Placing


async def test_ticks_are_placed_a_minute_ahead_and_the_server_fires_them(
    app: JetJobs, work: Any, truth: Truth
) -> None:
    async with provisioned(app):
        await app.schedules.put("often", work, every=SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 50), 30)
            fired = await eventually(lambda: ready(truth, 2), 30)
        found = await ticks_once(truth)
        assert gaps(times_of(found)) == {SECOND}  # none is missing
        message = await truth.js.get_last_msg("jobs-work-default", fired[0])
        for subject in fired:
            stored = await truth.api("STREAM.MSG.GET.jobs-work-default", {"last_by_subj": subject})
            scheduled_time = time_of_token(subject.rsplit(".", 1)[1])
            assert scheduled_time is not None
            assert datetime.fromisoformat(stored["message"]["time"]) >= scheduled_time  # never before its time
        headers = message.headers or {}
        assert headers["Jetjobs-Schedule"] == "often"
        assert time_token(datetime.fromisoformat(headers["Jetjobs-Scheduled-Time"])) == fired[0].rsplit(".", 1)[1]


async def test_two_leaders_at_once_place_every_tick_once(make_app: MakeApp, truth: Truth) -> None:
    first, second = make_app("one"), make_app("two")
    for app in (first, second):

        @app.task
        async def work() -> None: ...

    async with provisioned(first), second:
        for number in range(1, 6):
            await first.schedules.put(f"s{number}", "work", every=number * SECOND)
        async with planning(first, second):

            async def enough() -> bool:
                by_key = Counter(subject.split(".")[5] for subject in await truth.jobs())
                return len(by_key) == 5 and min(by_key.values()) >= 12

            await eventually(enough, 40)
        found = await ticks_once(truth)
        per_tick = Counter((subject.split(".")[5], subject.split(".")[6]) for subject in found)
        assert set(per_tick.values()) == {1}
        for number in range(1, 6):
            key = make_schedule({"name": f"s{number}", "task": "work", "every": SECOND}).key
            scheduled_times = sorted(uid for token, uid in per_tick if token == key)
            assert gaps(scheduled_times) == {number * SECOND}


async def test_a_stale_leader_is_refused_even_after_a_restart(
    app: JetJobs, work: Any, server: EmbeddedServer, truth: Truth
) -> None:
    async with provisioned(app):
        schedule = (await app.schedules.put("s", work, every=10 * SECOND)).schedule
        now = await now_of(app)
        one = step(schedule, Mark(), plan(schedule, Mark(), now), now)
        assert one.plan.ticks
        assert await app.jetstream.ticks.store("default", [one], now) is not None
        before = times_of(await ticks_in(truth))  # without lanes, which change when ticks fire
        server.kill()
        server.start()
        await eventually(lambda: connected(app), 30)
        assert await app.jetstream.ticks.store("default", [one], now) is None
        assert times_of(await ticks_in(truth)) == before


async def connected(app: JetJobs) -> bool:
    with contextlib.suppress(BrokerError):
        return (await app.jetstream.ticks.mark("default", "s")).sequence > 0
    return False


async def test_a_leader_that_dies_during_a_batch_places_nothing(app: JetJobs, work: Any, truth: Truth) -> None:
    async with provisioned(app):
        schedule, now = (await app.schedules.put("s", work, every=20 * SECOND)).schedule, await now_of(app)
        tick = plan(schedule, Mark(), now).ticks[0]
        job = batch_message(app.jetstream.ticks._job(schedule, tick, now))
        # The first message of a batch that is never committed.
        reply = await app.jetstream.connection.ask(job.subject, job.body, _block(job, "abandoned", 1), 5.0)
        assert reply == b""
        assert await truth.jobs() == []
        async with planning(app):
            found = await eventually(lambda: placed(truth, 2), 30)
        assert set(Counter(times_of(found)).values()) == {1}
        assert time_token(tick.scheduled_time) in times_of(found)


# Misfire


@pytest.mark.parametrize(("misfire", "expected"), [("last", 1), ("skip", 0), ("all", 72)])
async def test_after_three_days_without_a_leader(
    app: JetJobs, work: Any, truth: Truth, misfire: Any, expected: int
) -> None:
    async with provisioned(app):
        await app.schedules.put("s", work, every=HOUR, misfire=misfire)
        # The last scheduled time is made half an hour old, independent of the current time.
        now = (await now_of(app)).replace(microsecond=0)
        newest = now.replace(minute=0, second=0)
        if now - newest < timedelta(minutes=2) or now - newest > timedelta(minutes=58):
            newest -= HOUR
        await set_back(app, truth, "s", newest - 72 * HOUR, end=newest)
        async with planning(app) as planners:

            async def caught_up() -> bool:
                return (await app.jetstream.ticks.mark("default", "s")).planned_until == newest

            await eventually(caught_up, 30)
            assert planners[0].lateness() in ({"s": 0.0}, {})
        all_slots = [time_token(newest - timedelta(hours=i)) for i in range(71, -1, -1)]
        assert times_of(await truth.jobs()) == (all_slots[-expected:] if expected else [])
        info = await app.schedules.get("s")
        assert info.missed == 72 - expected
        assert info.last == (newest if expected else None)
        assert info.late == timedelta(0)


# Clock


async def test_the_clock_of_the_server_counts_and_not_that_of_this_machine(
    app: JetJobs, work: Any, truth: Truth, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = itertools.cycle((3600.0, -3600.0))
    clock = types.SimpleNamespace(time=lambda: time.time() + next(jumps), monotonic=time.monotonic)
    monkeypatch.setattr("jetjobs.jetstream.transport.server_clock.time", clock)
    async with provisioned(app):
        info = await truth.api("STREAM.INFO.KV_jobs-schedules")
        assert abs(await now_of(app) - datetime.fromisoformat(info["ts"])) < 5 * SECOND
        await app.schedules.put("s", work, every=5 * SECOND)
        async with planning(app):
            await eventually(lambda: placed(truth, 10), 30)
        assert gaps(times_of(await ticks_once(truth))) == {5 * SECOND}
