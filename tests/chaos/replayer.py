"""Replay dead letters and change priorities during the run, as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from jetjobs import JetJobs, JetJobsError, JobState, JobStatus
from jetjobs.admin import DeadLetter, JobQuery
from jetjobs.model.errors import JobNotFound
from tests.chaos.history import History, Move, Replay
from tests.chaos.plan import PlannedMove, PlannedReplay

NEVER = frozenset({"poison"})
"""Tasks whose letters are not replayed: a replay would be another fault."""


async def replay_at_times(app: JetJobs, replays: list[PlannedReplay], seed: int, history: History) -> None:
    started = history.started
    draw = random.Random(f"{seed} letters")
    for planned in replays:
        await asyncio.sleep(max(0.0, started + planned.at - time.time()))
        letters: list[DeadLetter] = []
        with contextlib.suppress(JetJobsError):  # the server is down: skip this time
            letters = [letter async for letter in app.dead.list() if letter.task not in NEVER]
        for letter in draw.sample(letters, min(planned.most, len(letters))):
            entry = Replay(letter.id, letter.run, time.time())
            history.replays.append(entry)
            with contextlib.suppress(JetJobsError):
                entry.answer = str((await app.dead.replay(letter, by="chaos", reason="try again")).outcome)


async def move_at_times(app: JetJobs, moves: list[PlannedMove], seed: int, history: History) -> None:
    """Change the priority of queued jobs."""
    draw = random.Random(f"{seed} moved")
    for planned in moves:
        await asyncio.sleep(max(0.0, history.started + planned.at - time.time()))
        queued: list[JobStatus] = []
        with contextlib.suppress(JetJobsError):
            found = await app.jobs.page(JobQuery(state=JobState.QUEUED), limit=100)
            queued = [one.status for one in found.items]
        for job in draw.sample(queued, min(planned.most, len(queued))):
            entry = Move(job.id, planned.lane, time.time())
            history.moves.append(entry)
            try:
                where = {"queue": job.queue, "task": job.task}
                entry.answer = str((await app.jobs.set_priority(job.id, planned.lane, **where)).outcome)
            except JobNotFound:
                entry.answer = "not found"
            except JetJobsError:
                pass
