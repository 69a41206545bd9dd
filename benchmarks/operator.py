"""Measure operator commands on a full server: as calls in an app, and as commands without start-up time."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from benchmarks.beside_top import beside_top, beside_top_of_many
from benchmarks.full import BUSY, COMMON, NONE, RARE, Full, app, full
from benchmarks.processes import child
from benchmarks.report import Row, Table
from jetjobs import JobState
from jetjobs.jetstream.queues.inspection import list_queues
from jetjobs.model.views.job_query import JobQuery

_SHOW_MS, _DEAD_MS, _QUEUES_MS = 50.0, 200.0, 300.0
_COMMAND_S = 60.0
_START_UP = ("workers", "list")
_SHOW = "show"
_CALLS = 10

Call = Callable[[int], Awaitable[Any]]


class Query(NamedTuple):
    """One query, as a command and as a call."""

    name: str
    words: tuple[str, ...]
    call: Call
    limit_ms: float | None
    by_command: bool = False
    """Whether it is also measured as a command. One of each kind is enough: a command needs 0.5 s to start."""


async def operator(rounds: int, scale: float) -> list[Table]:
    """Measure how long queries take, and what `jetjobs top` costs."""
    several = 2 * rounds + 1
    async with full(scale) as there:
        queues = Query("queues list", ("queues", "list"), _queues, _QUEUES_MS, by_command=True)
        queries = [*_shows(there), *_lists(), queues]
        rows = [await _called(query) for query in queries]
        slowest = max(sample for row in rows if row.name.startswith(_SHOW) for sample in row.samples["ours"])
        rows.append(Row("the slowest of all `show`", "ms", slowest, limit=_SHOW_MS))
        held = f"{there.queued:,} queued, {there.dead:,} dead"
        commands = await _commanded(there.server.url, [query for query in queries if query.by_command], several)
        return [
            Table(f"operator, in an app: {held}", "took", "-", rows),
            Table(f"operator, by command beyond start-up: {held}", "beyond", "start-up", commands),
            await beside_top(there, several, scale),
            await beside_top_of_many(there, several, scale),
        ]


def _shows(there: Full) -> Iterator[Query]:
    async def nowhere(number: int) -> None:
        # One look: `jobs show` looks again a second later before it says that the job does not exist.
        jetstream = app.jetstream
        queues = await list_queues(jetstream.connection, jetstream.names)
        assert not await jetstream.locator.locate(f"unknown-{number}", queues)

    commands = {f"queued, {BUSY}", f"later, {BUSY}", f"done, {BUSY}", "dead"}
    for place, ids in there.ids.items():

        async def found(number: int, ids: list[str] = ids) -> None:
            await app.jobs.get(ids[number % len(ids)])

        words = ("jobs", "show", ids[len(ids) // 2])
        yield Query(f"{_SHOW} {place}", words, found, _SHOW_MS, by_command=place in commands)
    yield Query(f"{_SHOW} unknown id, one look", ("jobs", "show", "unknown-0"), nowhere, _SHOW_MS)


def _lists() -> Iterator[Query]:
    def paged(query: JobQuery) -> Call:
        return lambda number: app.jobs.page(query)

    for what, task in (("common task", COMMON), ("rare task", RARE), ("task with none", NONE)):
        words = ("jobs", "list", "--state", "dead", "--task", task)
        call = paged(JobQuery(JobState.DEAD, task=task))
        yield Query(f"list dead, {what}", words, call, _DEAD_MS, by_command=True)
    for state in JobState:
        # Few or none among thousands: the list reads up to 10,000 messages for them.
        limit = None if state in (JobState.RETRYING, JobState.CANCELLED) else _DEAD_MS
        yield Query(f"list {state}", ("jobs", "list", "--state", state), paged(JobQuery(state)), limit)


async def _queues(number: int) -> None:
    await app.queues.list()


async def _called(query: Query) -> Row:
    calls = [await _ms(query.call(number)) for number in range(_CALLS)]
    return Row(query.name, "ms", statistics.median(calls), limit=query.limit_ms, samples={"ours": calls})


async def _commanded(url: str, queries: list[Query], rounds: int) -> list[Row]:
    """How much longer each command takes than one that loads, connects and reads a short bucket.

    Uses the fastest run of both, since disturbances only make a process slower.
    """
    starts: list[float] = []
    took: dict[str, list[float]] = {query.name: [] for query in queries}
    for _ in range(rounds):
        for query in queries:
            starts.append(await _ms(_run("jetjobs", *_START_UP, "--server", url)))
            took[query.name].append(await _ms(_run("jetjobs", *query.words, "--server", url)))
    start = min(starts)
    return [
        Row(query.name, "ms", min(took[query.name]) - start, start, limit=query.limit_ms,
            samples={"ours": took[query.name], "other": starts})
        for query in queries
    ]  # fmt: skip


async def _run(*module: str) -> None:
    async with child(*module, capture=True, quiet=True) as process, asyncio.timeout(_COMMAND_S):
        await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(module)} ended with status {process.returncode}")


async def _ms(work: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await work
    return (time.perf_counter() - started) * 1000
