"""One run: start everything, carry out the plan, wait until all jobs have ended, check the invariants."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from tests.chaos import facts, journal, logs, tasks, timed
from tests.chaos.check import Checker
from tests.chaos.history import STALL, History, Span
from tests.chaos.nemesis import Nemesis
from tests.chaos.plan import LEASE_S, PRODUCER, Plan, make_plan
from tests.chaos.producer import Producer
from tests.chaos.replayer import move_at_times, replay_at_times
from tests.chaos.report import Run
from tests.chaos.world import World, open_world, plain_client
from tests.support.calendar import Editor

QUIET_S = 150.0
"""How long jobs may take to end after the last fault."""

Say = Callable[[str], None]


def plan_for(seed: int, seconds: float) -> Plan:
    return make_plan(seed, seconds, tuple(tasks.app.task_queues))


async def run(plan: Plan, folder: Path, say: Say = lambda text: None) -> Run:
    """Carry out the plan and check the outcome. `folder` gets the journal, the logs and the server's storage."""
    history = History()
    async with open_world(folder, history) as world:
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
        checker = Checker(history, lines, found, logs.blocked(written), logs.unrecorded(written))
        for job in left:
            checker.found.violate("QUIET", f"still under way after {QUIET_S:.0f} s: {job.subject}", job.id)
        ticks = sum(line.task == timed.TASK and line.event == journal.START for line in lines)
        history.note(f"schedules: {sum(map(len, editor.edits.values()))} changes, {ticks} ticks started")
        for problem in timed.problems(editor, ticked_until, lines, found, history):
            checker.found.violate("I4", problem)
        for trouble in history.producer_trouble:
            checker.found.violate("I5", f"an enqueue raised an unexpected error: {trouble}")
        checker.check(logs.trouble(world.fleet.logs))
        found_version = world.truth.nc.connected_server_version
        server_version = f"{found_version.major}.{found_version.minor}.{found_version.patch}"
    return Run(plan, history, lines, found, checker.found, server_version, world.fleet.logs)


async def _carry_out(plan: Plan, world: World, editor: Editor) -> None:
    history = world.history
    plain = await plain_client(world.links[PRODUCER].url)
    watching = asyncio.create_task(_watch_machine(history))
    try:
        producer = Producer(world.app, plain, history)
        nemesis = Nemesis(world, producer, plan.seed)
        history.started = started = time.time()
        async with asyncio.TaskGroup() as group:
            group.create_task(producer.run(plan.jobs, started))
            group.create_task(nemesis.run(plan.faults, started))
            group.create_task(replay_at_times(world.app, plan.replays, plan.seed, history))
            group.create_task(move_at_times(world.app, plan.moves, plan.seed, history))
            group.create_task(timed.edit_at_times(editor, plan.edits, history))
        await nemesis.heal()
        await producer.settled()
    finally:
        watching.cancel()
        await plain.close()


async def _watch_machine(history: History) -> None:
    """Record when this process is not scheduled: then the workers may not be either, and leases may expire."""
    while True:
        before = time.time()
        await asyncio.sleep(0.1)
        if (lag := time.time() - before - 0.1) > LEASE_S / 4:
            history.spans.append(Span(STALL, before, time.time(), note=f"{lag:.1f} s"))


async def _until_all_ended(world: World) -> list[facts.Stored]:
    """The jobs that are still under way when the time is up."""
    queues, truth = tasks.app.task_queues, world.truth
    return await facts.until_all_ended(truth, queues, QUIET_S)
