"""Change schedules during the run and compare their ticks with the calendar (invariant I4)."""

from __future__ import annotations

import asyncio
import math
from datetime import datetime

from jetjobs.model.schedule.schedule import schedule_key, time_of_token
from tests.chaos import clock
from tests.chaos.facts import Facts
from tests.chaos.history import OLDER_STORE, History
from tests.chaos.journal import START, Line
from tests.chaos.plan import TIMED, PlannedEdit
from tests.support.calendar import Editor, Fired, check

TASK = "timed"
LATE_S = 30.0
"""The latest start of a tick after its scheduled time: several workers may die while they hold it."""
HELD = ("fill_storage", "slow_answers")
"""Faults during which a leader cannot place ticks: it does not get the confirmations."""
SETTLED_S = 10.0
"""How long an edit takes to have its effect on all ticks."""


class Schedules:
    """Edits the schedules, one change at a time."""

    def __init__(self, editor: Editor) -> None:
        self._editor = editor
        self._one = asyncio.Lock()

    async def edit_at_times(self, edits: list[PlannedEdit], started: float) -> None:
        for planned in edits:
            await asyncio.sleep(max(0.0, started + planned.at - clock.now()))
            async with self._one:
                await self._editor.change(planned.name, planned.kind)

    async def edit_all(self) -> None:
        """Edit every schedule: the server may have forgotten the last edits."""
        async with self._one:
            for name in TIMED:
                await self._editor.change(name, "put")


async def end_all(editor: Editor) -> datetime:
    """Delete the remaining schedules after the faults. Returns the time until which all of them were active."""
    until = await editor.app.jetstream.server_clock.now()
    for name in TIMED:
        while not editor.edits[name] or editor.edits[name][-1].schedule is not None:
            await editor.change(name, "delete")  # again, until a leader has planned it
            await asyncio.sleep(0.2)
    return until


def problems(editor: Editor, until: datetime, lines: list[Line], facts: Facts, history: History) -> list[str]:
    """Problems with the ticks. There may be no leader at any time, so each change may take a minute."""
    first: dict[tuple[str, str], float] = {}
    for line in lines:
        if line.task == TASK and line.event == START:
            first.setdefault((line.id, line.run), line.at)
    for replay in history.replays:  # another run of the same tick
        for key in [key for key in first if key[0] == replay.id and key[1] != replay.run]:
            del first[key]
    ended = dict.fromkeys((*facts.dead, *(one.id for one in facts.stored)), 0.0)
    started = {job_id for job_id, _ in first}
    first |= {(job_id, ""): at for job_id, at in ended.items() if job_id not in started}
    held = [(span.start, span.over) for span in history.spans if span.kind in HELD]
    found = []
    for name in TIMED:
        ticks = [
            Fired(scheduled_time, at)
            for (job_id, _), at in sorted(first.items())
            if job_id.startswith(f"{schedule_key(name)}-")
            and (scheduled_time := time_of_token(job_id.split("-", 1)[1]))
        ]
        wrong = check(editor.edits[name], ticks, until, LATE_S, [(0.0, math.inf)], held)
        unknown = _unknown(editor, name, history)
        found += [f"{name}: {problem}" for problem in wrong if not _is_about(problem, unknown)]
    return found


def _unknown(editor: Editor, name: str, history: History) -> list[tuple[float, float]]:
    """When an older store made the server forget edits and ticks, until the schedule was edited again."""
    found = []
    for span in history.spans:
        if span.kind == OLDER_STORE:
            answers = [edit.answered.timestamp() for edit in editor.edits[name]]
            edited = min((at for at in answers if at > span.end), default=math.inf)
            found.append((span.start - SETTLED_S, edited + SETTLED_S))
    return found


def _is_about(problem: str, spans: list[tuple[float, float]]) -> bool:
    """Whether the problem is about a scheduled time in one of the spans."""
    scheduled_time = time_of_token(problem.split(": ", 1)[1].split(" ")[0])
    return scheduled_time is not None and any(a <= scheduled_time.timestamp() <= b for a, b in spans)
