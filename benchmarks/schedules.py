"""Measure the planner's CPU time and the lateness of ticks with ten thousand schedules per minute.

`python -m benchmarks.schedules [--schedules 10000] [--minutes 3]`. The planner runs in its own process. The
lateness of a tick is the time between its scheduled time and the time at which the server stored it in its lane.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
from datetime import datetime, timedelta

import uvloop

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.messages.scan import scan
from jetjobs.model.schedule.schedule import make_schedule
from jetjobs.model.settings import build_settings
from jetjobs.model.wire import headers as h
from jetjobs.worker.leader.leadership import Leadership

CORE_SHARE = 0.20
LATE_S = 2.0
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe")


def app_on(url: str) -> JetJobs:
    app = JetJobs("bench")
    app.configure(build_settings({"nats": {"url": url}}))

    @app.task
    async def work(n: int) -> None: ...

    return app


async def run_planner(url: str) -> None:
    """The measured process: a leader with all its duties."""
    app = app_on(url)
    async with (
        app,
        Leadership(app.jetstream, "bench", 30.0, lambda event: None, _nothing).campaign(count_queues=False),
    ):
        await asyncio.Event().wait()


async def _nothing() -> None:
    return


async def define(app: JetJobs, count: int) -> None:
    async def put(number: int) -> None:
        values = {
            "name": f"s{number}",
            "task": "work",
            "args": {"n": number},
            "cron": "* * * * *",
            "tz": ZONES[number % len(ZONES)],
        }
        await app.jetstream.schedules.put(make_schedule(values), None)

    for begin in range(0, count, 200):
        await asyncio.gather(*(put(number) for number in range(begin, min(begin + 200, count))))


def processor_s(pid: int) -> float:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def lateness(app: JetJobs, since: datetime, until: datetime) -> dict[str, list[float]]:
    """How many seconds late each tick was stored in its lane, by scheduled time."""
    found: dict[str, list[float]] = {}
    stream = app.jetstream.names.work_stream("default")
    async for message in scan(
        app.jetstream.connection, stream, app.jetstream.names.lane_filter("default", "normal")
    ):
        scheduled_time = datetime.fromisoformat(message.headers[h.SCHEDULED_TIME])
        if since <= scheduled_time <= until:
            found.setdefault(scheduled_time.isoformat(), []).append(message.stored_at - scheduled_time.timestamp())
    return found


async def measure(count: int, minutes: int) -> int:
    with EmbeddedServer() as server:
        app = app_on(server.url)
        async with app:
            await app.provision()
            await define(app, count)
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.schedules", "--plan", server.url
            )
            try:
                # Skip the start: the planner reads ten thousand new definitions while the first ticks are due.
                await asyncio.sleep(90)
                since = await app.jetstream.server_clock.now()
                before = processor_s(child.pid)
                await asyncio.sleep(minutes * 60)
                share = (processor_s(child.pid) - before) / (minutes * 60)
                until = await app.jetstream.server_clock.now() - timedelta(seconds=5)
            finally:
                child.terminate()
                await child.wait()
            by_time = await lateness(app, since, until)
    late = sorted(value for values in by_time.values() for value in values)
    print(f"{count:,} schedules, each minute, for {minutes} minutes; {len(late):,} ticks fired")
    for scheduled_time, values in sorted(by_time.items()):
        print(f"  {scheduled_time}  {len(values):,} ticks, the last {max(values) * 1000:.0f} ms late")
    p50, p99, most = (
        f"{at * 1000:.0f} ms" for at in (statistics.median(late), late[len(late) * 99 // 100], late[-1])
    )
    print(f"planner      {share:.1%} of one core (limit {CORE_SHARE:.0%})")
    print(f"lateness     p50 {p50}, p99 {p99}, most {most} (limit {LATE_S * 1000:.0f} ms)")
    whole = all(len(values) == count for values in by_time.values())
    print(f"ticks        {'' if whole else 'NOT '}each schedule once at each scheduled time")
    return 0 if whole and share < CORE_SHARE and late[-1] < LATE_S and by_time else 1


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.schedules", description=__doc__)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--minutes", type=int, default=3)
    parser.add_argument("--plan", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        uvloop.run(run_planner(options.plan))
        return
    sys.exit(uvloop.run(measure(options.schedules, options.minutes)))


if __name__ == "__main__":
    main()
