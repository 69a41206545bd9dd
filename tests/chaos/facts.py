"""Read the state of the server with plain nats-py, without jetjobs' own code."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.chaos import clock
from tests.support.server import Truth

WAITING = ("later", "retry")
"""Lanes of jobs that the server moves when they are due."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of a job in a work stream."""

    subject: str
    sequence: int
    headers: dict[str, str]

    @property
    def lane(self) -> str:
        return self.subject.split(".")[3]

    @property
    def id(self) -> str:
        tokens = self.subject.split(".")
        if len(tokens) < 7:
            return self.headers.get("Nats-Msg-Id", "")
        return tokens[6] if tokens[5] == "-" else f"{tokens[5]}-{tokens[6]}"

    @property
    def due_at(self) -> float:
        """The due time of a message in lane `later` or `retry`, otherwise 0."""
        schedule = self.headers.get("Nats-Schedule", "")
        return datetime.fromisoformat(schedule.removeprefix("@at ")).timestamp() if schedule else 0.0


@dataclass(slots=True)
class Facts:
    """What the checker knows about the server."""

    stored: list[Stored] = field(default_factory=list)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    dead: dict[str, dict[str, Any]] = field(default_factory=dict)
    consumers: dict[str, dict[str, Any]] = field(default_factory=dict)


async def gather(truth: Truth, queues: list[str]) -> Facts:
    facts = Facts()
    for queue in queues:
        facts.stored += await stored(truth, queue)
        facts.done.update(await truth.done(queue))
        listed = await truth.api(f"CONSUMER.NAMES.jobs-work-{queue}")
        for lane in listed.get("consumers") or []:
            facts.consumers[f"{queue}/{lane}"] = await truth.consumer(lane, queue)
    facts.dead = await truth.dead()
    return facts


async def stored(truth: Truth, queue: str) -> list[Stored]:
    """Every message in the work stream but the pin."""
    found = []
    stream = f"jobs-work-{queue}"
    state = (await truth.api(f"STREAM.INFO.{stream}"))["state"]
    for subject, count in (await truth.subjects(stream)).items():
        if ".mark." in subject:
            continue
        if count == 1:
            one = await _get(truth, stream, {"last_by_subj": subject})
            found += [one] if one else []  # deleted since the subjects were listed
            continue
        # Anonymous jobs have no id in their subject, so several share one.
        sequence = int(state["first_seq"])
        while one := await _get(truth, stream, {"seq": sequence, "next_by_subj": subject}):
            found.append(one)
            sequence = one.sequence + 1
    return found


async def _get(truth: Truth, stream: str, query: dict[str, Any]) -> Stored | None:
    answer = await truth.api(f"STREAM.MSG.GET.{stream}", query)
    if "error" in answer:
        return None
    message = answer["message"]
    lines = base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")[1:]
    headers = dict(line.split(": ", 1) for line in lines if ": " in line)
    return Stored(message["subject"], int(message["seq"]), headers)


# Waiting until all jobs have ended


async def until_all_ended(truth: Truth, queues: list[str], timeout_s: float) -> list[Stored]:
    """Wait until no job is under way. Returns the jobs that still are when the time is up."""
    give_up = clock.now() + timeout_s
    while True:
        under_way = await _under_way(truth, queues)
        if not under_way or clock.now() > give_up:
            return under_way
        await asyncio.sleep(0.25)


async def _under_way(truth: Truth, queues: list[str]) -> list[Stored]:
    """Jobs in a lane, and those in `later` or `retry` that are due within ten minutes or overdue."""
    soon = clock.now() + 600
    found = []
    for queue in queues:
        found += [one for one in await stored(truth, queue) if one.lane not in WAITING or one.due_at < soon]
    return found
