"""Measure whether a thousand jobs in backoff slow down a drain."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from benchmarks.bench import STREAM, Bench, rate
from benchmarks.measures import SLOTS, AnyTask, fill, work_off
from benchmarks.report import Row, Table, compared
from benchmarks.tasks import broken, noop, noop_stored

WAITING = 1_000


async def backoff(bench: Bench) -> Table:
    """Drain the same number of jobs with and without failed jobs that wait for their retry (prepared untimed)."""
    count = bench.count(20_000)

    async def drained(task: AnyTask) -> float:
        await fill(task, count)
        return await rate(count, work_off(bench, SLOTS, count))

    def beside(task: AnyTask) -> Callable[[], Awaitable[float]]:
        async def measured() -> float:
            await fill(broken, WAITING)
            await work_off(bench, SLOTS, WAITING)
            held = await bench.api(f"STREAM.INFO.{STREAM}")
            if held["state"]["messages"] != WAITING + 1:  # and the pin
                raise RuntimeError(f"{held['state']['messages']} messages are in {STREAM}")
            return await drained(task)

        return measured

    bare, bare_alone, stored, stored_alone = await bench.interleave(
        beside(noop), lambda: drained(noop), beside(noop_stored), lambda: drained(noop_stored)
    )
    rows: list[Row] = [
        compared("drain, no results", "jobs/s", bare, bare_alone, least=0.90),
        compared("drain, results stored", "jobs/s", stored, stored_alone, least=0.90),
    ]
    return Table(f"beside {WAITING:,} jobs in backoff", "beside", "alone", rows)
