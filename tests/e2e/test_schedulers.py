"""Three schedulers, of which the leader is killed, frozen and thawed, and the server too: every slot has one job.

Nobody runs the jobs, so that every tick the server has fired still stands in its lane, and the checker can compare
them with the calendar. In CI it lasts as long as the faults take; `make soak` lets it run three minutes and adds a
time without any scheduler, after which the misfire policies must have given what they promise.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest

from jetjobs import JetJobs
from jetjobs.devserver import EmbeddedServer
from jetjobs.jetstream.scan import scan
from jetjobs.model.errors import BrokerError
from jetjobs.model.schedule import Schedule
from jetjobs.model.settings import build_settings
from jetjobs.worker.planner import Planner
from tests.support.cluster import Cluster
from tests.support.probe import eventually
from tests.support.processes import Process
from tests.support.server import Truth

SOAK = bool(os.environ.get("JETJOBS_SOAK"))
SECOND = timedelta(seconds=1)
LATE_S = 1.0
SETTLE_S = 3.0
TAKEOVER_S = 60.0
"""The lock's TTL and a look for it are twenty seconds; a loaded machine may take longer."""

TASKS = """
from datetime import timedelta
from jetjobs import JetJobs

app = JetJobs("clockwork")

@app.task
async def tick(n: int = 0) -> None: ...

for number in range(20):
    tick.every(timedelta(seconds=1 + number % 5), name=f"s{number}", args={"n": number}, misfire="skip")
"""


class Down(NamedTuple):
    """From when to when the server was away, by this machine's clock."""

    since: float
    until: float


class Fleet:
    """The schedulers, by name, and the server they plan on."""

    def __init__(self, server: EmbeddedServer, truth: Truth, folder: Path) -> None:
        self.server = server
        self.truth = truth
        self._folder = folder
        self.processes: dict[str, Process] = {}
        self.ended = contextlib.ExitStack()
        self.down: list[Down] = []

    def start(self, name: str) -> None:
        arguments = ["scheduler", "--name", name, "--log-format", "json"]
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

        return await eventually(other, TAKEOVER_S)

    async def bounce_server(self) -> None:
        loop = asyncio.get_running_loop()
        since = datetime.now().timestamp()
        await loop.run_in_executor(None, self.server.kill)
        await loop.run_in_executor(None, self.server.start)

        async def answers() -> bool:
            return await self.leader() is not None

        await eventually(answers, 60)
        self.down.append(Down(since, datetime.now().timestamp() + 1.0))


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
                await asyncio.get_running_loop().run_in_executor(None, process.wait_for, "scheduler.ready", 1, 60)
            async with app:
                yield fleet, app
        finally:
            fleet.ended.close()
            await truth.close()


async def fired(app: JetJobs) -> dict[str, list[tuple[datetime, float]]]:
    """By schedule: each tick in its lane, with the server's time of storing it."""
    found: dict[str, list[tuple[datetime, float]]] = defaultdict(list)
    names = app.jetstream.names
    stream, lane = names.work_stream("default"), names.lane_filter("default", "normal")
    async for message in scan(app.jetstream.connection, stream, lane):
        slot = datetime.fromisoformat(message.headers["Jetjobs-Slot"])
        found[message.headers["Jetjobs-Schedule"]].append((slot, message.stored_at))
    return found


def slots_between(schedule: Schedule, since: datetime, until: datetime) -> list[datetime]:
    slots = []
    slot = schedule.after(since)
    while slot is not None and slot <= until:
        slots.append(slot)
        slot = schedule.after(slot)
    return slots


def check(
    schedules: list[Schedule], ticks: dict[str, list[tuple[datetime, float]]], until: datetime, down: list[Down]
) -> None:
    """Every slot once, none missing, and in time but for what fell due while the server was away."""
    late: list[float] = []
    for schedule in schedules:
        there = [(slot, at) for slot, at in ticks[schedule.name] if slot <= until]
        counts = Counter(slot for slot, _ in there)
        assert [slot for slot, count in counts.items() if count > 1] == [], f"{schedule.name}: twice"
        expected = slots_between(schedule, schedule.since, until)
        assert [slot for slot in expected if slot not in counts] == [], f"{schedule.name}: missing"
        assert set(counts) == set(expected), f"{schedule.name}: out of the calendar"
        late += [
            at - slot.timestamp()
            for slot, at in there
            if not any(d.since <= slot.timestamp() <= d.until for d in down)
        ]
    late.sort()
    assert len(late) > 100
    assert late[len(late) * 99 // 100] < LATE_S, late[-20:]


@pytest.mark.patient
@pytest.mark.timeout(600 if SOAK else 240)
async def test_every_slot_has_one_job_whatever_happens_to_leaders_and_server(tmp_path: Path) -> None:
    async with fleet_of(3, tmp_path) as (fleet, app):
        schedules = [info.schedule for info in await app.schedules.list()]
        assert len(schedules) == 20
        began = await app.jetstream.server_clock.now()
        first = await fleet.led_by_another_than(None)
        await asyncio.sleep(SETTLE_S)

        fleet.processes[first].send(signal.SIGKILL)
        second = await fleet.led_by_another_than(first)
        fleet.start(first)  # as a supervisor would
        await asyncio.sleep(SETTLE_S)

        fleet.processes[second].send(signal.SIGSTOP)
        third = await fleet.led_by_another_than(second)
        await asyncio.sleep(SETTLE_S)
        fleet.processes[second].send(signal.SIGCONT)  # and it believes for a moment that it still leads
        await asyncio.sleep(SETTLE_S)

        await fleet.bounce_server()
        await asyncio.sleep(SETTLE_S)
        last = await fleet.led_by_another_than("nobody")
        fleet.processes[last].send(signal.SIGTERM)  # in order: another takes over at once
        await fleet.led_by_another_than(last)
        assert third
        now = await app.jetstream.server_clock.now()
        if SOAK:
            await asyncio.sleep(max(0.0, 180 - (now - began).total_seconds()))
        # What was planned for beyond this moment may not have fired yet.
        until = await app.jetstream.server_clock.now()
        await asyncio.sleep(2.0)
        check(schedules, await fired(app), until, fleet.down)
        assert len({schedule.generation for schedule in schedules}) == 20
        now_there = [info.schedule.generation for info in await app.schedules.list()]
        assert now_there == [schedule.generation for schedule in schedules]  # no restart has touched them


@pytest.mark.patient
@pytest.mark.timeout(180)
async def test_two_leaders_on_three_replicas_place_every_slot_once_when_the_streams_leader_dies(
    tmp_path: Path,
) -> None:
    with Cluster(tmp_path) as cluster:
        settings = build_settings({"nats": {"url": cluster.url}, "queues": {"publish_timeout": "60s"}})
        apps = [JetJobs(name, settings=settings) for name in ("one", "two")]
        for app in apps:

            @app.task
            async def tick() -> None: ...

        async with apps[0], apps[1]:
            await apps[0].provision()
            for number in range(1, 6):
                await apps[0].schedules.put(f"s{number}", "tick", every=number * SECOND, misfire="all")
            # Both believe that they lead.
            planning = [asyncio.create_task(Planner(app.jetstream, lambda: 1).run()) for app in apps]
            try:

                async def begun() -> bool:
                    return len(await fired(apps[0])) == 5

                await eventually(begun, 60)
                info = await apps[0].jetstream.connection.api("STREAM.INFO.jobs-work-default")
                assert info["config"]["num_replicas"] == 3
                cluster.named(info["cluster"]["leader"]).kill()
                killed_at = datetime.now(UTC)

                async def goes_on() -> bool:
                    with contextlib.suppress(BrokerError):
                        ticks = await fired(apps[0])
                        return all(max(ticks[f"s{n}"])[0] > killed_at + 5 * SECOND for n in range(1, 6))
                    return False

                await eventually(goes_on, 90)
            finally:
                for task in planning:
                    task.cancel()
                await asyncio.gather(*planning, return_exceptions=True)
            ticks = await fired(apps[0])
            for info_ in await apps[0].schedules.list():
                slots = sorted(slot for slot, _ in ticks[info_.schedule.name])
                assert slots == slots_between(info_.schedule, info_.schedule.since, slots[-1])


MISFIRES = """
from datetime import timedelta
from jetjobs import JetJobs

app = JetJobs("clockwork")

@app.task
async def tick() -> None: ...

for policy in ("last", "all", "skip"):
    tick.every(timedelta(seconds=5), name=policy, misfire=policy)
tick.every(timedelta(seconds=5), name="some", misfire="all", misfire_limit=4)
"""

if SOAK:  # no skipped test: it is not there otherwise

    @pytest.mark.alone
    @pytest.mark.timeout(600)
    async def test_after_a_time_without_schedulers_each_policy_gives_what_it_promises(tmp_path: Path) -> None:
        async with fleet_of(1, tmp_path, MISFIRES) as (fleet, app):
            schedules = {info.schedule.name: info.schedule for info in await app.schedules.list()}
            await fleet.led_by_another_than(None)
            await asyncio.sleep(10)
            fleet.processes["scheduler-0"].send(signal.SIGKILL)
            fleet.processes["scheduler-0"].popen.wait(10)
            planned = {name: (await app.jetstream.ticks.marker("default", name)).progress for name in schedules}
            await asyncio.sleep(120)
            back = await app.jetstream.server_clock.now()
            fleet.start("scheduler-1")
            await fleet.led_by_another_than("scheduler-0")
            await asyncio.sleep(15)
            until = await app.jetstream.server_clock.now()
            await asyncio.sleep(2)
            ticks = await fired(app)
            for name, schedule in schedules.items():
                progress = planned[name]
                assert progress is not None
                slots = sorted(slot for slot, _ in ticks[name] if slot <= until)
                assert len(set(slots)) == len(slots)
                before = [slot for slot in slots if slot <= progress.slot]
                assert before == slots_between(schedule, schedule.since, progress.slot)  # fired with nobody there
                after = [slot for slot in slots if slot > progress.slot]
                assert after == slots_between(schedule, after[0] - SECOND, until)  # one gap, then none
                gap = (back - after[0]).total_seconds()
                if name == "all":
                    assert after[0] == progress.slot + 5 * SECOND
                elif name == "last":
                    assert gap < 5
                elif name == "some":
                    assert gap < 20
                else:
                    assert gap <= 10
