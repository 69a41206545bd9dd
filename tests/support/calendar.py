"""Change schedules at random, and check their ticks against the expected scheduled times."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from jetjobs import JetJobs
from jetjobs.admin.schedules import ScheduleInfo
from jetjobs.model.errors import JetJobsError, ScheduleNotFound
from jetjobs.model.schedule.schedule import Schedule, time_token

SEEN_S = 5.0
"""When a change has taken effect: two seconds after the leader saw it, which takes a second or more."""
Spans = Sequence[tuple[float, float]]
UNLED_S = 65.0
"""Placed ticks fire without a leader too, for up to a minute."""


class Edit(NamedTuple):
    """A confirmed change: when it was first sent and when it was answered, by the server's clock."""

    sent: datetime
    answered: datetime
    schedule: Schedule | None
    """The schedule after the change; None when it was deleted."""

    @property
    def on(self) -> bool:
        return self.schedule is not None and not self.schedule.paused


class Fired(NamedTuple):
    """A tick that fired."""

    scheduled_time: datetime
    at: float
    number: int | None = None
    """Its argument `n`, which every edit changes; None when it is unknown."""


class Unplanned(Exception):
    """A scheduled time is due and unplanned. Turned off now, the schedule would not run it: not predictable."""


@dataclass
class Editor:
    """Changes schedules at random. Each change is repeated until it is confirmed."""

    app: JetJobs
    task: str
    queues: tuple[str, ...]
    draw: random.Random
    edits: dict[str, list[Edit]] = field(default_factory=lambda: defaultdict(list))
    number: int = 0

    async def change(self, name: str, kind: str) -> None:
        """`kind`: put (create or edit), move, pause, resume or delete."""
        sent = None
        while True:
            try:
                now = await self.app.jetstream.server_clock.now()
                sent = sent or now
                info = await self._write(name, kind)
                now = await self.app.jetstream.server_clock.now()
            except JetJobsError as error:
                if self.app.jetstream.connection.closed.is_set():
                    raise AssertionError(f"{kind} {name}") from error
                await asyncio.sleep(0.2)  # the server is down or its storage is full
                continue
            except Unplanned:
                return
            self.edits[name].append(Edit(sent, now, info.schedule if info is not None else None))
            return

    async def _write(self, name: str, kind: str) -> ScheduleInfo | None:
        """The schedule after the change; None when there is none. Unplanned when it was not changed."""
        schedules = self.app.schedules
        try:
            info = await schedules.get(name)
        except ScheduleNotFound:
            if kind == "delete":
                return None
            info = None
        if kind in ("pause", "delete") and info is not None and (info.planned_by != info.revision or info.late):
            raise Unplanned
        if kind == "delete":
            await schedules.delete(name)
            return None
        if info is not None and kind in ("pause", "resume"):
            return await (schedules.pause if kind == "pause" else schedules.resume)(name)
        self.number += 1
        there = info.schedule.queue if info is not None else self.queues[0]
        queue = self.draw.choice(self.queues) if kind == "move" else there
        every = timedelta(seconds=1 + int(name[-1]) % 3)
        return await schedules.put(
            name, self.task, every=every, queue=queue, misfire="all", args={"n": self.number}
        )


def check(
    edits: list[Edit], fired: list[Fired], until: datetime, late_s: float, unled: Spans, held: Spans | None = None
) -> list[str]:
    """The problems with the ticks of one schedule: doubled, lost, unexpected, late, or of an old definition.

    `unled`: when there may have been no leader or no server. `held`: when ticks may be late; by default, the same.
    """
    held = unled if held is None else held
    problems = []
    ticks: dict[datetime, Fired] = {}
    for tick in fired:
        if tick.scheduled_time in ticks:
            problems.append(f"doubled: {time_token(tick.scheduled_time)}")
        ticks[tick.scheduled_time] = tick
    wanted, allowed = _scheduled_times(edits, until, unled)
    problems += [f"lost: {time_token(scheduled_time)}" for scheduled_time in sorted(wanted - ticks.keys())]
    problems += [
        f"off: {time_token(scheduled_time)}"
        for scheduled_time in sorted(ticks.keys() - allowed)
        if scheduled_time <= until
    ]
    for scheduled_time, tick in sorted(ticks.items()):
        if tick.at - scheduled_time.timestamp() > late_s and not _is_in(
            held, scheduled_time.timestamp() - 1.0, tick.at
        ):
            problems.append(f"late by {tick.at - scheduled_time.timestamp():.1f} s: {time_token(scheduled_time)}")
        seen = [e for e in edits if e.on and e.answered + _delay(e, unled) < scheduled_time]
        if tick.number is not None and seen and seen[-1].schedule is not None:
            newest = seen[-1].schedule.args["n"]
            if tick.number < newest:
                problems.append(f"old: {time_token(scheduled_time)} of edit {tick.number}, not {newest}")
    return problems


def _scheduled_times(edits: list[Edit], until: datetime, unled: Spans) -> tuple[set[datetime], set[datetime]]:
    """The scheduled times that must have fired, and those that may have."""
    wanted: set[datetime] = set()
    allowed: set[datetime] = set()
    for number, edit in enumerate(edits):
        if edit.on and edit.schedule is not None:
            start = max(edit.schedule.since, edit.sent) if number and edits[number - 1].on else edit.schedule.since
            following = edits[number + 1] if number + 1 < len(edits) else None
            end = following.sent if following is not None else until
            wanted.update(between(edit.schedule, start, min(end, until)))
            last = end if following is None else following.answered + _delay(following, unled)
            allowed.update(between(edit.schedule, start, last))
    return wanted, allowed


def _delay(edit: Edit, unled: Spans) -> timedelta:
    """How long after an edit ticks of the previous definition may fire."""
    at = edit.answered.timestamp()
    return timedelta(seconds=UNLED_S if _is_in(unled, at - SEEN_S, at + SEEN_S) else SEEN_S)


def _is_in(spans: Spans, begin: float, end: float) -> bool:
    return any(since <= end and begin <= until for since, until in spans)


def between(schedule: Schedule, since: datetime, until: datetime) -> list[datetime]:
    scheduled_times = []
    scheduled_time = schedule.after(since)
    while scheduled_time is not None and scheduled_time <= until:
        scheduled_times.append(scheduled_time)
        scheduled_time = schedule.after(scheduled_time)
    return scheduled_times
