"""Replay dead letters and change priorities during the run, as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import random

from jetjobs import JetJobs, JetJobsError, JobState, JobStatus
from jetjobs.admin import DeadLetter, JobQuery, MoveOutcome
from jetjobs.model.errors import JobNotFound
from tests.chaos import clock
from tests.chaos.facts import Stored
from tests.chaos.history import History, Move, Replay
from tests.chaos.plan import PlannedMove, PlannedReplay
from tests.chaos.world import World

NEVER = frozenset({"poison"})
"""Tasks whose letters are not replayed: a replay would be another fault."""


async def replay_at_times(app: JetJobs, replays: list[PlannedReplay], seed: int, history: History) -> None:
    started = history.started
    draw = random.Random(f"{seed} letters")
    for planned in replays:
        await asyncio.sleep(max(0.0, started + planned.at - clock.now()))
        letters: list[DeadLetter] = []
        with contextlib.suppress(JetJobsError):  # the server is down: skip this time
            letters = [letter async for letter in app.dead.list() if letter.task not in NEVER]
        for letter in draw.sample(letters, min(planned.most, len(letters))):
            entry = Replay(letter.id, letter.run, clock.now())
            history.replays.append(entry)
            with contextlib.suppress(JetJobsError):
                entry.answer = str((await app.dead.replay(letter, by="chaos", reason="try again")).outcome)


async def move_at_times(world: World, moves: list[PlannedMove], seed: int) -> None:
    """Change the priority of queued jobs."""
    app, history = world.app, world.history
    draw = random.Random(f"{seed} moved")
    for planned in moves:
        await asyncio.sleep(max(0.0, history.started + planned.at - clock.now()))
        queued: list[JobStatus] = []
        with contextlib.suppress(JetJobsError):
            found = await app.jobs.page(JobQuery(state=JobState.QUEUED), limit=100)
            queued = [one.status for one in found.items]
        for job in draw.sample(queued, min(planned.most, len(queued))):
            entry = Move(job.id, planned.lane, clock.now())
            history.moves.append(entry)
            try:
                answer = await app.jobs.set_priority(job.id, planned.lane, queue=job.queue, task=job.task)
            except JobNotFound:
                entry.answer = "not found"
            except JetJobsError:
                pass
            else:
                entry.answer = str(answer.outcome)
                if answer.outcome is MoveOutcome.TOO_LATE and "moved" in answer.detail:
                    entry.done = await _is_in(world, job, planned.lane)


async def _is_in(world: World, job: JobStatus, lane: str) -> bool:
    """Whether the job is in a lane by now."""
    lane_of_task = f"jobs.work.{job.queue}.{lane}.{job.task}.>"
    try:
        subjects = await world.truth.subjects(f"jobs-work-{job.queue}", lane_of_task)
    except AssertionError:  # the server does not answer: unknown
        return False
    return any(Stored(subject, 0, {}).id == job.id for subject in subjects)
