"""An app with three queues and a task to schedule."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any

from jetjobs import JetJobs
from jetjobs.model.schedule.schedule import time_of_token, time_token
from tests.conftest import MakeApp
from tests.support.probe import eventually
from tests.support.schedules import SECOND, ticks_in, times_of
from tests.support.server import Truth

QUEUES = ("default", "b", "c")


def app_of(make_app: MakeApp, name: str = "test") -> JetJobs:
    app = make_app(name)

    @app.task
    async def work(n: int = 0) -> None: ...

    return app


async def put(app: JetJobs, **options: Any) -> datetime:
    """Put schedule "s", by default every second. Returns the time from which it counts."""
    return (await app.schedules.put("s", "work", **{"every": SECOND, **options})).schedule.since


async def every_time_once(truth: Truth, since: datetime, every: timedelta = SECOND, queues: Any = QUEUES) -> None:
    """Assert that each scheduled time from `since` to the last placed one has one tick, over all queues."""

    async def once() -> list[str] | None:
        found = [subject for queue in queues for subject in await ticks_in(truth, queue)]
        lanes = Counter((s.split(".")[2], s.split(".", 4)[4]) for s in found)
        return (
            None if max(lanes.values()) > 1 else times_of(found)
        )  # a tick that is firing is visible in two lanes

    scheduled_times = [
        scheduled_time for scheduled_time in await eventually(once, 10) if scheduled_time > time_token(since)
    ]
    assert [scheduled_time for scheduled_time, count in Counter(scheduled_times).items() if count > 1] == [], (
        "doubled"
    )
    first = time_of_token(scheduled_times[0])
    assert first is not None
    assert first - since <= every, "the first is missing"
    assert scheduled_times == [time_token(first + i * every) for i in range(len(scheduled_times))], (
        "one is missing"
    )


async def planned_past(app: JetJobs, truth: Truth, moment: datetime) -> bool:
    found = [scheduled_time for queue in QUEUES for scheduled_time in times_of(await ticks_in(truth, queue))]
    return max(found, default="") > time_token(moment)


async def pause(app: JetJobs) -> None:
    await app.schedules.pause("s")


async def edit(app: JetJobs) -> None:
    await put(app, args={"n": 2})
