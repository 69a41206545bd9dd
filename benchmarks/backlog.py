"""Compare a long backlog with a short one: a worker's start, its drain rate and its memory."""

from __future__ import annotations

import asyncio
import json
import time
from typing import NamedTuple

from benchmarks.bench import opened
from benchmarks.drainer import EARLY
from benchmarks.processes import child
from benchmarks.report import Row, Table, compared
from benchmarks.tasks import app, stamp
from jetjobs.dev_server import EmbeddedServer

SHORT = 1_000
_JOBS = {100: 20_000, 1: 5_000}
"""Jobs to drain from the long backlog, by slots: enough for a few seconds.

The larger number comes first: the server stores a stream in blocks of about 18,500 such jobs, and only the first
block has the pin (ADR 1), so a single slot must be measured beyond it.
"""
_CHUNK = 20_000
_DRAIN_S = 300.0


class Drained(NamedTuple):
    """The report of one worker process."""

    start_s: float
    """Time from the start of the process to the first line of its first job."""
    rate: float
    early_rate: float
    rss_before: float
    rss_after: float


async def backlog(count: int, rounds: int) -> Table:
    """Drain a long and a short backlog, in turn. Each has its own server, so that neither slows the other."""
    results: dict[tuple[int, bool], list[Drained]] = {
        (slots, long): [] for slots in _JOBS for long in (True, False)
    }
    with EmbeddedServer() as full, EmbeddedServer() as small:
        enqueued = await _fill(full.url, count)
        for _ in range(rounds):
            for slots, jobs in _JOBS.items():
                # Jobs left by the last drain stay: 100 more or less do not matter, an empty queue would.
                await _fill(small.url, SHORT)
                results[slots, False].append(await _drain(small.url, slots, EARLY))
                results[slots, True].append(await _drain(full.url, slots, min(jobs, count // 10)))
    return Table(
        f"backlog of {count:,} ({enqueued:,.0f} jobs/s enqueued)", f"{count:,}", f"{SHORT:,}", _rows(results)
    )


def _rows(results: dict[tuple[int, bool], list[Drained]]) -> list[Row]:
    rows = []
    for slots in _JOBS:
        long, short = results[slots, True], results[slots, False]
        rows += [
            _compared(f"slots {slots}: start to first job", "s", "start_s", long, short, limit=5.0),
            _compared(f"slots {slots}: drain", "jobs/s", "rate", long, short, least=0.60),
            _compared(f"slots {slots}: drain, first {EARLY}", "jobs/s", "early_rate", long, short),
            _compared(f"slots {slots}: memory before", "MB", "rss_before", long, short),
            _compared(f"slots {slots}: memory after", "MB", "rss_after", long, short, most=1.20),
        ]
    return rows


def _compared(
    name: str, unit: str, what: str, long: list[Drained], short: list[Drained], **bounds: float | None
) -> Row:
    return compared(name, unit, [getattr(d, what) for d in long], [getattr(d, what) for d in short], **bounds)


async def _fill(url: str, count: int) -> float:
    """Enqueue `count` jobs. Returns the rate."""
    started = time.perf_counter()
    async with opened(url):
        for first in range(0, count, _CHUNK):
            chunk = [stamp.bind(i) for i in range(first, min(first + _CHUNK, count))]
            report = await app.enqueue_many(chunk)
            if report.refused:
                raise RuntimeError(f"{len(report.refused)} jobs were refused: {report.refused[0].error}")
    return count / (time.perf_counter() - started)


async def _drain(url: str, slots: int, jobs: int) -> Drained:
    started = time.monotonic()
    async with child("benchmarks.drainer", url, str(slots), str(jobs), capture=True) as process:
        async with asyncio.timeout(_DRAIN_S):
            output, _ = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"the draining process ended with status {process.returncode}")
    report: dict[str, float] = json.loads(output)
    start_s = report.pop("first_at") - started
    return Drained(start_s=start_s, **report)
