"""Three schedulers whose leader is killed and frozen, and a server restart: one job per scheduled time.

Twenty schedules stay unchanged; six more are edited, moved between two queues, paused, resumed, deleted and put
again throughout. No worker runs the jobs, so every tick that the server has fired is still in its lane, and the
checker can compare them with the expected times. In CI the test ends with the faults; `make soak` runs it for
three minutes and adds a period without any scheduler, after which the misfire policies are checked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream import client
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport import api
from jetjobs.model.errors import BrokerError
from jetjobs.model.settings import build_settings
from jetjobs.worker.scheduling.planner import Planner
from tests.support.calendar import Edit, Editor, Fired, between, check
from tests.support.cluster import Cluster
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth
from tests.support.workers import provisioned

SOAK = bool(os.environ.get("JETJOBS_SOAK"))
SECOND = timedelta(seconds=1)
LATE_S = 2.0
SETTLE_S = 3.0
EDITED = 6
TAKEOVER_S = 60.0
"""The TTL of the lock and one poll take twenty seconds; a busy machine may take longer."""

TASKS = """
from datetime import timedelta
from jetjobs import JetJobs

app = JetJobs("clockwork")

@app.task
async def tick(n: int = 0) -> None: ...

@app.task(queue="other")
async def tock() -> None: ...

for number in range(20):
    tick.every(timedelta(seconds=1 + number % 5), name=f"s{number}", args={"n": number}, misfire="skip")
"""


class Fleet:
    """The schedulers by name, and their server."""

    def __init__(self, server: EmbeddedServer, truth: Truth, folder: Path) -> None:
        self.server = server
        self.truth = truth
        self._folder = folder
        self.processes: dict[str, Process] = {}
        self.ended = contextlib.ExitStack()
        self.unled: list[tuple[float, float]] = []
        """Periods in which there may have been no leader, by this machine's clock."""

    def start(self, name: str) -> None:
        arguments = ["worker", "--slots", "0", "--name", name, "--log-format", "json"]
        process = Process(arguments, self._folder, {"NATS_URL": self.server.url})
        self.processes[name] = self.ended.enter_context(process)

    async def leader(self) -> str | None:
        with contextlib.suppress(Exception):
            message = await self.truth.js.get_last_msg("KV_jobs-locks", "$KV.jobs-locks.leader")
            return str(json.loads(message.data or b"{}")["holder"]) if message.data else None
        return None

    async def led_by_another_than(self, name: str | None) -> str:
        async def other() -> str | None:
            found = await self.leader()
            return found if found != name else None

        since = datetime.now().timestamp()
        found = await eventually(other, TAKEOVER_S)
        self.unled.append((since, datetime.now().timestamp() + 1.0))
        return found

    async def bounce_server(self) -> None:
        loop = asyncio.get_running_loop()
        since = datetime.now().timestamp()
        await loop.run_in_executor(None, self.server.kill)
        await loop.run_in_executor(None, self.server.start)
        await eventually(self.leader, 60, where=lambda found: found is not None)
        self.unled.append((since, datetime.now().timestamp() + 1.0))


@contextlib.asynccontextmanager
async def fleet_of(count: int, folder: Path, tasks: str = TASKS) -> AsyncIterator[tuple[Fleet, JetJobs]]:
    (folder / "tasks.py").write_text(tasks)
    with EmbeddedServer() as server:
        truth = await Truth.connect(server.url)
        app = JetJobs("looks", settings=build_settings({"nats": {"url": server.url}}))
        fleet = Fleet(server, truth, folder)
        try:
            for number in range(count):
                fleet.start(f"scheduler-{number}")
            for process in fleet.processes.values():
                await asyncio.get_running_loop().run_in_executor(None, process.wait_for, "worker.ready", 1, 60)
            async with app:
                yield fleet, app
        finally:
            fleet.ended.close()
            await truth.close()


async def fired(app: JetJobs, queues: tuple[str, ...] = ("default",)) -> dict[str, list[Fired]]:
    """The ticks in their lanes by schedule, with the time at which the server stored them."""
    found: dict[str, list[Fired]] = defaultdict(list)
    names = app.jetstream.names
    for queue in queues:
        stream, lane = names.work_stream(queue), names.lane_filter(queue, "normal")
        async for message in scan(app.jetstream.connection, stream, lane):
            scheduled_time = datetime.fromisoformat(message.headers["Jetjobs-Scheduled-Time"])
            tick = Fired(scheduled_time, message.stored_at, json.loads(message.data).get("n"))
            found[message.headers["Jetjobs-Schedule"]].append(tick)
    return found


async def edit_for_ever(editor: Editor) -> None:
    while True:
        name = f"edited-{editor.draw.randrange(EDITED)}"
        await editor.change(name, editor.draw.choice(("put", "put", "move", "move", "pause", "resume", "delete")))
        await asyncio.sleep(editor.draw.uniform(0.0, 1.0))


@pytest.mark.patient
@pytest.mark.timeout(600 if SOAK else 240)
async def test_every_scheduled_time_has_one_job_through_failures_of_leaders_and_server(tmp_path: Path) -> None:
    async with fleet_of(3, tmp_path) as (fleet, app):

        @app.task
        async def tick(n: int = 0) -> None: ...

        schedules = [info.schedule for info in await app.schedules.list()]
        assert len(schedules) == 20
        began = await app.jetstream.server_clock.now()
        first = await fleet.led_by_another_than(None)
        editor = Editor(app, "tick", ("default", "other"), random.Random(11))
        for number in range(EDITED):
            await editor.change(f"edited-{number}", "put")
        editing = asyncio.create_task(edit_for_ever(editor))
        await asyncio.sleep(SETTLE_S)

        await break_everything(fleet, first)
        now = await app.jetstream.server_clock.now()
        if SOAK:
            await asyncio.sleep(max(0.0, 180 - (now - began).total_seconds()))
        if editing.done():
            editing.result()
        editing.cancel()
        # Ticks planned for later may not have fired yet.
        until = await app.jetstream.server_clock.now()
        await asyncio.sleep(2.0)
        ticks = await fired(app, ("default", "other"))
        edits = {one.name: [Edit(one.since, one.since, one)] for one in schedules} | editor.edits
        assert sum(map(len, editor.edits.values())) > (100 if SOAK else 30)
        problems = {name: check(edits[name], ticks[name], until, LATE_S, fleet.unled) for name in edits}
        assert {name: found for name, found in problems.items() if found} == {}


async def break_everything(fleet: Fleet, first: str) -> None:
    fleet.processes[first].send(signal.SIGKILL)
    second = await fleet.led_by_another_than(first)
    fleet.start(first)  # as a supervisor would
    await asyncio.sleep(SETTLE_S)

    fleet.processes[second].send(signal.SIGSTOP)
    await fleet.led_by_another_than(second)
    await asyncio.sleep(SETTLE_S)
    fleet.processes[second].send(signal.SIGCONT)  # for a moment it believes that it is still the leader
    await asyncio.sleep(SETTLE_S)

    await fleet.bounce_server()
    await asyncio.sleep(SETTLE_S)
    last = await fleet.led_by_another_than("")
    fleet.processes[last].send(signal.SIGTERM)  # gracefully: another takes over at once
    await fleet.led_by_another_than(last)


@pytest.mark.patient
@pytest.mark.timeout(180)
async def test_two_leaders_on_three_replicas_place_every_tick_once_when_the_leader_of_the_stream_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PUBLISH_TIMEOUT_S", 60.0)
    with Cluster(tmp_path) as cluster:
        settings = build_settings({"nats": {"url": cluster.url}})
        apps = [JetJobs(name, settings=settings) for name in ("one", "two")]
        for app in apps:

            @app.task
            async def tick() -> None: ...

        async with provisioned(apps[0]), apps[1]:
            for number in range(1, 6):
                await apps[0].schedules.put(f"s{number}", "tick", every=number * SECOND, misfire="all")
            # Both believe that they are the leader.
            planning = [asyncio.create_task(Planner(app.jetstream, lambda: 1).run()) for app in apps]
            try:
                await eventually(lambda: fired(apps[0]), 60, where=lambda found: len(found) == 5)
                info = await apps[0].jetstream.connection.api(api.stream_info("jobs-work-default"))
                assert info["config"]["num_replicas"] == 3
                cluster.named(info["cluster"]["leader"]).kill()
                killed_at = datetime.now(UTC)

                async def goes_on() -> bool:
                    with contextlib.suppress(BrokerError):
                        ticks = await fired(apps[0])
                        return all(
                            max(ticks[f"s{n}"]).scheduled_time > killed_at + 5 * SECOND for n in range(1, 6)
                        )
                    return False

                await eventually(goes_on, 90)
            finally:
                for task in planning:
                    task.cancel()
                await asyncio.gather(*planning, return_exceptions=True)
            ticks = await fired(apps[0])
            for info_ in await apps[0].schedules.list():
                slots = sorted(tick.scheduled_time for tick in ticks[info_.schedule.name])
                assert slots == between(info_.schedule, info_.schedule.since, slots[-1])


MISFIRES = """
from datetime import timedelta
from jetjobs import JetJobs

app = JetJobs("clockwork")

@app.task
async def tick() -> None: ...

for policy in ("last", "all", "skip"):
    tick.every(timedelta(seconds=5), name=policy, misfire=policy)
"""

if SOAK:  # defined only here, so that no test is skipped

    @pytest.mark.alone
    @pytest.mark.timeout(600)
    async def test_after_a_period_without_schedulers_each_misfire_policy_has_its_effect(tmp_path: Path) -> None:
        async with fleet_of(1, tmp_path, MISFIRES) as (fleet, app):
            schedules = {info.schedule.name: info.schedule for info in await app.schedules.list()}
            await fleet.led_by_another_than(None)
            await asyncio.sleep(10)
            fleet.processes["scheduler-0"].send(signal.SIGKILL)
            fleet.processes["scheduler-0"].popen.wait(10)
            planned = {name: await app.jetstream.ticks.mark("default", name) for name in schedules}
            await asyncio.sleep(120)
            back = await app.jetstream.server_clock.now()
            fleet.start("scheduler-1")
            await fleet.led_by_another_than("scheduler-0")
            await asyncio.sleep(15)
            until = await app.jetstream.server_clock.now()
            await asyncio.sleep(2)
            ticks = await fired(app)
            for name, schedule in schedules.items():
                until_then = planned[name].planned_until
                assert until_then is not None
                slots = sorted(tick.scheduled_time for tick in ticks[name] if tick.scheduled_time <= until)
                assert len(set(slots)) == len(slots)
                before = [scheduled_time for scheduled_time in slots if scheduled_time <= until_then]
                assert before == between(schedule, schedule.since, until_then)  # fired without a scheduler
                after = [scheduled_time for scheduled_time in slots if scheduled_time > until_then]
                assert after == between(schedule, after[0] - SECOND, until)  # one gap, then none
                gap = (back - after[0]).total_seconds()
                if name == "all":
                    assert after[0] == until_then + 5 * SECOND
                elif name == "last":
                    assert gap < 5
                else:
                    assert gap <= 10
