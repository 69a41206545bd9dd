"""One run: start everything, carry out the plan, wait until all jobs have ended, check the invariants."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

from tests.chaos import answers, clock, facts, journal, logs, tasks, timed, timing
from tests.chaos.burst import Bursts
from tests.chaos.check import Checker
from tests.chaos.client import open_client
from tests.chaos.history import STALL, History, Span
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import LEASE_S, PRODUCER, Plan, make_plan
from tests.chaos.replayer import move_at_times, replay_at_times
from tests.chaos.report import Run
from tests.chaos.world import World, open_world
from tests.support.calendar import Editor

QUIET_S = 150.0
"""How long jobs may take to end after the last fault."""

Say = Callable[[str], None]


def plan_for(seed: int, seconds: float, cluster: int = 0, only: tuple[str, ...] = ()) -> Plan:
    return make_plan(seed, seconds, tuple(tasks.app.task_queues), cluster, only)


async def run(plan: Plan, folder: Path, say: Say = lambda text: None) -> Run:
    """Carry out the plan and check the outcome. `folder` gets the journal, the logs and the server's storage."""
    history = History()
    async with open_world(folder, history, clustered=bool(plan.cluster)) as world:
        await world.fleet.ready()
        say(f"{len(history.lives)} workers are ready; {len(plan.faults)} faults in {plan.seconds:g} s")
        queues = tuple(tasks.app.task_queues)
        editor = Editor(world.app, timed.TASK, queues, random.Random(f"{plan.seed} queues"))
        await _carry_out(plan, world, editor)
        ticked_until = await timed.end_all(editor)
        say("the faults are over; waiting until all jobs have ended")
        left = await _until_all_ended(world)
        await world.fleet.ready()
        await world.fleet.stop()
        found = await facts.gather(world.truth, tasks.app.task_queues)
        (folder / "history").write_text(str(history) + "\n")
        lines = journal.read(folder / "journal")
        written = world.fleet.logs
        unrecorded = logs.unrecorded(written)
        checker = Checker(history, lines, found, logs.blocked(written, history.spans), unrecorded)
        for job in left:
            checker.found.violate("QUIET", f"still under way after {QUIET_S:.0f} s: {job.subject}", job.id)
        ticks = sum(line.task == timed.TASK and line.event == journal.START for line in lines)
        history.note(f"schedules: {sum(map(len, editor.edits.values()))} changes, {ticks} ticks started")
        for problem in timed.problems(editor, ticked_until, lines, found, history):
            checker.found.violate("I4", problem)
        for trouble in history.producer_trouble:
            checker.found.violate("I5", f"an enqueue raised an unexpected error: {trouble}")
        for text, job_id in answers.false_answers(history, lines, found, unrecorded):
            checker.found.violate("ANSWER", text, job_id)
        for text, job_id in timing.wrong_times(history, lines, found):
            checker.found.violate("TIME", text, job_id)
        checker.check(logs.trouble(world.fleet.logs))
        found_version = world.truth.nc.connected_server_version
        server_version = f"{found_version.major}.{found_version.minor}.{found_version.patch}"
    return Run(plan, history, lines, found, checker.found, server_version, world.fleet.logs)


async def _carry_out(plan: Plan, world: World, editor: Editor) -> None:
    history = world.history
    watching = asyncio.create_task(_watch_machine(history))
    ways = (world.links[PRODUCER].url, world.direct_url)
    try:
        async with open_client(world.folder, plan.jobs, *ways, len(world.nodes)) as client:
            schedules = timed.Schedules(editor)
            bursts = Bursts(world, plan.seed)
            nemesis = Nemesis(world, bursts, plan.seed, schedules.edit_all)
            history.started = started = clock.now()
            client.start(started)
            async with asyncio.TaskGroup() as group:
                group.create_task(nemesis.run(plan.faults, started))
                group.create_task(nemesis.leap(plan.leaps, started, client.pid))
                group.create_task(replay_at_times(world.app, plan.replays, plan.seed, history))
                group.create_task(move_at_times(world, plan.moves, plan.seed))
                group.create_task(schedules.edit_at_times(plan.edits, started))
            await nemesis.heal()
            await bursts.settled()
            await client.finished(history)
    finally:
        watching.cancel()


async def _watch_machine(history: History) -> None:
    """Record when this process is not scheduled: then the workers may not be either, and leases may expire."""
    while True:
        before = clock.now()
        await asyncio.sleep(0.1)
        if (lag := clock.now() - before - 0.1) > LEASE_S / 4:
            history.spans.append(Span(STALL, before, clock.now(), note=f"{lag:.1f} s"))


async def _until_all_ended(world: World) -> list[facts.Stored]:
    """The jobs that are still under way when the time is up."""
    queues, truth = tasks.app.task_queues, world.truth
    return await facts.until_all_ended(truth, queues, QUIET_S)
