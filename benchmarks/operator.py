"""The operator's commands on a full server, each beyond the start-up of the command line, and within an app."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.beside_top import beside_top
from benchmarks.full import BUSY, COMMON, NONE, RARE, Full, app, full
from benchmarks.processes import child
from benchmarks.report import Row, Table
from jetjobs import JobState
from jetjobs.model.errors import JobNotFound
from jetjobs.model.views.job_query import JobQuery

_SHOW_MS, _DEAD_MS, _QUEUES_MS = 50.0, 200.0, 300.0
_COMMAND_S = 60.0
_START_UP = ("workers", "list")
_SHOW = "show"
_CALLS = 10

Call = Callable[[int], Awaitable[Any]]


class Look(NamedTuple):
    """One question: the same by command and by a call."""

    name: str
    words: tuple[str, ...]
    call: Call
    limit_ms: float | None
    code: int = 0
    by_command: bool = False
    """Also measured as a command. One of a kind is enough: each takes half a second to start."""


async def operator(rounds: int, scale: float) -> list[Table]:
    """How long commands take, and what `jetjobs top` costs."""
    several = 2 * rounds + 1
    async with full(scale) as there:
        queues = Look("queues list", ("queues", "list"), _queues, _QUEUES_MS, by_command=True)
        looks = [*_shows(there), *_lists(), queues]
        rows = [await _called(look) for look in looks]
        slowest = max(sample for row in rows if row.name.startswith(_SHOW) for sample in row.samples["ours"])
        rows.append(Row("the slowest of all `show`", "ms", slowest, limit=_SHOW_MS))
        held = f"{there.queued:,} queued, {there.dead:,} dead"
        commands = await _commanded(there.server.url, [look for look in looks if look.by_command], several)
        return [
            Table(f"operator, in an app: {held}", "took", "-", rows),
            Table(f"operator, by command beyond start-up: {held}", "beyond", "start-up", commands),
            await beside_top(there, several, scale),
        ]


def _shows(there: Full) -> Iterator[Look]:
    async def nowhere(number: int) -> None:
        with contextlib.suppress(JobNotFound):
            await app.jobs.get(f"nobody-{number}")

    commands = {f"queued, {BUSY}", f"later, {BUSY}", f"done, {BUSY}", "dead"}
    for place, ids in there.ids.items():

        async def found(number: int, ids: list[str] = ids) -> None:
            await app.jobs.get(ids[number % len(ids)])

        words = ("jobs", "show", ids[len(ids) // 2])
        yield Look(f"{_SHOW} {place}", words, found, _SHOW_MS, by_command=place in commands)
    words = ("jobs", "show", "nobody-0")
    yield Look(f"{_SHOW} unknown id", words, nowhere, _SHOW_MS, code=5, by_command=True)


def _lists() -> Iterator[Look]:
    def paged(query: JobQuery) -> Call:
        return lambda number: app.jobs.page(query)

    for what, task in (("common task", COMMON), ("rare task", RARE), ("task with none", NONE)):
        words = ("jobs", "list", "--state", "dead", "--task", task)
        call = paged(JobQuery(JobState.DEAD, task=task))
        yield Look(f"list dead, {what}", words, call, _DEAD_MS, by_command=True)
    for state in JobState:
        # Of these there are a few among thousands, or none: up to 10,000 are looked at for them.
        limit = None if state in (JobState.RETRYING, JobState.CANCELLED) else _DEAD_MS
        yield Look(f"list {state}", ("jobs", "list", "--state", state), paged(JobQuery(state)), limit)


async def _queues(number: int) -> None:
    await app.queues.list()


async def _called(look: Look) -> Row:
    calls = [await _ms(look.call(number)) for number in range(_CALLS)]
    return Row(look.name, "ms", statistics.median(calls), limit=look.limit_ms, samples={"ours": calls})


async def _commanded(url: str, looks: list[Look], rounds: int) -> list[Row]:
    """How much longer each command takes than one that loads and connects as they do, and reads a short bucket.

    The fastest of both: whatever disturbs a process only makes it slower.
    """
    starts: list[float] = []
    took: dict[str, list[float]] = {look.name: [] for look in looks}
    for _ in range(rounds):
        for look in looks:
            starts.append(await _ms(_run("jetjobs", *_START_UP, "--server", url, code=0)))
            took[look.name].append(await _ms(_run("jetjobs", *look.words, "--server", url, code=look.code)))
    start = min(starts)
    return [
        Row(look.name, "ms", min(took[look.name]) - start, start, limit=look.limit_ms,
            samples={"ours": took[look.name], "other": starts})
        for look in looks
    ]  # fmt: skip


async def _run(*module: str, code: int) -> None:
    async with child(*module, capture=True, quiet=True) as process, asyncio.timeout(_COMMAND_S):
        await process.communicate()
    if process.returncode != code:
        raise RuntimeError(f"{' '.join(module)} ended with status {process.returncode}")


async def _ms(work: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1000
