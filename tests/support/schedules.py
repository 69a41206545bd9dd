"""Schedules in tests: planners without a worker, and the runs that are placed in the queues."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from typing import Any

from jetjobs import JetJobs
from jetjobs.model.schedule.schedule import Schedule
from jetjobs.worker.scheduling.planner import Planner
from tests.support.probe import background, eventually
from tests.support.server import Truth

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@contextlib.asynccontextmanager
async def planning(*apps: JetJobs) -> AsyncIterator[list[Planner]]:
    """Run a planner for each of these apps, as if all their processes were leaders at once."""
    planners = [Planner(app.jetstream, lambda: 1) for app in apps]
    async with background(*(planner.run() for planner in planners)):
        yield planners


async def now_of(app: JetJobs) -> datetime:
    return await app.jetstream.server_clock.now()


async def set_back(app: JetJobs, truth: Truth, name: str, moment: datetime, **changed: Any) -> Schedule:
    """Rewrite a schedule as if it was created before that time and last planned at it."""
    definition = await app.jetstream.schedules.find(name)
    assert definition.schedule is not None
    schedule = definition.schedule.model_copy(update={"since": moment - HOUR, **changed})
    ack = await truth.js.publish(f"$KV.jobs-schedules.{name}", schedule.model_dump_json().encode())
    mark = {"revision": ack.seq, "planned_until": moment.isoformat()}
    subject = f"jobs.work.{schedule.queue}.mark.schedule.{name}"
    await truth.js.publish(subject, json.dumps(mark).encode(), headers={"Nats-Rollup": "sub"})
    return schedule


async def aligned(app: JetJobs, name: str) -> bool:
    """Whether the leader has planned the latest definition."""
    info = await app.schedules.get(name)
    return info.planned_by == info.revision


async def ticks_in(truth: Truth, queue: str = "default") -> list[str]:
    """The subject of each tick in the queue, once per message."""
    found = await truth.subjects(f"jobs-work-{queue}", f"jobs.work.{queue}.*.>")
    return sorted(s for s, count in found.items() for _ in range(count) if ".mark." not in s)


async def ticks_once(truth: Truth) -> list[str]:
    """All ticks, each once: a tick that is firing can be visible in two lanes for a moment."""

    async def once() -> list[str] | None:
        found = await ticks_in(truth)
        doubled = [tick for tick, count in Counter(s.split(".", 4)[4] for s in found).items() if count > 1]
        return None if doubled else found

    return await eventually(once, 10)


def times_of(subjects: list[str]) -> list[str]:
    return sorted(subject.rsplit(".", 1)[1] for subject in subjects)


def gaps(scheduled_times: list[str]) -> set[timedelta]:
    """The intervals between consecutive scheduled times."""
    times = [datetime.strptime(scheduled_time, "%Y%m%dT%H%M%SZ") for scheduled_time in scheduled_times]
    return {after - before for before, after in itertools.pairwise(times)}


async def placed(truth: Truth, count: int, queue: str = "default") -> list[str] | None:
    found = await truth.jobs(queue, "later")
    return found if len(found) >= count else None


async def ready(truth: Truth, count: int) -> list[str] | None:
    found = await truth.jobs(lane="normal")
    return found if len(found) >= count else None
