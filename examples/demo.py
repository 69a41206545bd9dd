"""The demo: a server, a worker process, and jobs of several kinds that are watched until they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from typing import Any

from examples.shop import Order, app, charge, greet, import_feed, make_thumbnail, remind
from jetjobs import JobFailed, JobHandle, JobNotFound, JobState
from jetjobs.dev_server import EmbeddedServer
from jetjobs.errors import ScheduleNotFound

LIMIT_S = 60.0
FINAL = {JobState.SUCCEEDED, JobState.DEAD}


async def main() -> int:
    """Run the demo. Returns 0 when every job finished as expected."""
    started = time.monotonic()
    with EmbeddedServer() as server:
        say(started, f"nats-server at {server.url}")
        os.environ["JETJOBS_NATS__URL"] = server.url  # for the worker and for this process
        command = [sys.executable, "-m", "jetjobs", "worker", "examples.shop:app"]
        command += ["--log-level", "error", "--log-format", "console"]
        worker = await asyncio.create_subprocess_exec(*command)
        say(started, f"worker with pid {worker.pid}")
        try:
            async with app:
                await app.provision()
                return await show(started)
        finally:
            worker.send_signal(signal.SIGTERM)
            await asyncio.wait_for(worker.wait(), 30)
            say(started, f"worker stopped with exit code {worker.returncode}")


async def show(started: float) -> int:
    jobs: dict[str, JobHandle[Any]] = {
        "greet": await greet.enqueue("Ada"),
        "make_thumbnail": await make_thumbnail.enqueue("cat.png", width=64),
        "charge": await charge.enqueue(Order(id=7, amount=19.9)),
        "remind": await remind.options(delay="2s", key="remind-ada").enqueue("Ada"),
        "import_feed": await import_feed.enqueue("https://example.org"),
    }
    for name, handle in jobs.items():
        say(started, f"{name:<15} enqueued as {handle.id[-16:]}")
    again = await remind.options(delay="2s", key="remind-ada").enqueue("Ada")
    say(started, f"{'remind':<15} enqueued again with the same key: duplicate={again.duplicate}")
    trails = await follow(started, jobs)
    ticked = await wait_for_tick(started)
    print("\nJOB              ATTEMPTS  STATE      RESULT")
    expected = dict.fromkeys(jobs, JobState.SUCCEEDED) | {"import_feed": JobState.DEAD}
    for name, handle in jobs.items():
        status = await handle.status()
        print(f"{name:<17}{status.attempt:>8}  {status.state or 'unknown':<9}  {await outcome(handle)}")
    seen = {state for trail in trails.values() for state in trail}
    wanted = {JobState.RUNNING, JobState.SCHEDULED, JobState.RETRYING, *FINAL}
    good = all(trails[name][-1] == state for name, state in expected.items()) and wanted <= seen and ticked
    print("\nAll jobs finished as expected." if good else f"\nNot all jobs finished as expected: {trails}")
    return 0 if good else 1


async def follow(started: float, jobs: dict[str, JobHandle[Any]]) -> dict[str, list[JobState]]:
    """Poll the status of each job until it ends. Returns the states each job was seen in."""
    trails: dict[str, list[JobState]] = {name: [] for name in jobs}
    while time.monotonic() - started < LIMIT_S:
        for name, handle in jobs.items():
            trail = trails[name]
            if trail and trail[-1] in FINAL:
                continue
            status = await handle.status()
            if status.state is not None and (not trail or trail[-1] != status.state):
                trail.append(status.state)
                say(started, f"{name:<15} {status.state}{detail(status.due_at, status.state)}")
        if all(trail and trail[-1] in FINAL for trail in trails.values()):
            break
        await asyncio.sleep(0.02)
    return trails


async def wait_for_tick(started: float) -> bool:
    """Wait until a job of the schedule has run; it fires every two seconds. False after the time limit."""
    while time.monotonic() - started < LIMIT_S:
        with contextlib.suppress(ScheduleNotFound, JobNotFound):  # the worker has not started yet
            info = await app.schedules.get("take_stock")
            if info.last_job and (await app.jobs.get(info.last_job)).state is JobState.SUCCEEDED:
                result = await (await app.job(info.last_job)).result(5)
                say(started, f"{'take_stock':<15} by its schedule, {info.schedule.rule_text}: {result}")
                return True
        await asyncio.sleep(0.05)
    return False


def detail(due_at: Any, state: JobState) -> str:
    if due_at is None or state not in (JobState.SCHEDULED, JobState.RETRYING):
        return ""
    return f", due in {max(0.0, due_at.timestamp() - time.time()):.1f} s"


async def outcome(handle: JobHandle[Any]) -> str:
    try:
        return json.dumps(await handle.result(1))
    except JobFailed as error:
        return f"{error.error_type}: {error.text}"


def say(started: float, text: str) -> None:
    print(f"{time.monotonic() - started:6.2f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
