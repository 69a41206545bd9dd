"""Replays some of the dead letters while everything goes on, as an operator would in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from jetjobs import DeadLetter, JetJobs, JetJobsError
from tests.chaos.history import History, Replay
from tests.chaos.plan import PlannedReplay

NEVER = frozenset({"poison"})
"""Tasks whose letters are left alone: their replay would only be one more fault."""


async def replay_at_times(app: JetJobs, replays: list[PlannedReplay], seed: int, history: History) -> None:
    started = history.started
    draw = random.Random(f"{seed} letters")
    for planned in replays:
        await asyncio.sleep(max(0.0, started + planned.at - time.time()))
        letters: list[DeadLetter] = []
        with contextlib.suppress(JetJobsError):  # no server just now: whoever asked tries another time
            letters = [letter async for letter in app.dead.list() if letter.task not in NEVER]
        for letter in draw.sample(letters, min(planned.most, len(letters))):
            entry = Replay(letter.id, letter.run, time.time())
            history.replays.append(entry)
            with contextlib.suppress(JetJobsError):
                entry.answer = str((await app.dead.replay(letter, by="chaos", reason="try again")).outcome)
