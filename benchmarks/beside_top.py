"""Fill and drain a queue with and without `jetjobs top` running, in turn, also beside many queues."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import NamedTuple

from benchmarks.full import BUSY, Full, app, store, works
from benchmarks.processes import child, cpu_s
from benchmarks.report import Row, Table, compared, paired

_JOBS = 40_000
"""Enough for several seconds: `top` refreshes once per second."""
_SLOTS = 200
_DRAWN_S = 30.0
_WATCHED_S = 20.0
_MANY = 500
_PARKED = [f"parked-{number:03}" for number in range(_MANY)]
"""Queues without jobs, which `top` lists and reads too."""


class Rates(NamedTuple):
    """The rates of one fill and drain."""

    fill: float
    drain: float
    drain_worker: float
    """Jobs per second of the worker's CPU time."""
    drain_server: float
    """Jobs per second of the server's CPU time, fill included."""


async def beside_top(there: Full, rounds: int, scale: float) -> Table:
    """Each round drains the jobs it enqueued, so that the queue keeps its length."""
    count = int(_JOBS * scale)
    idle = await _server_share(there, _WATCHED_S * scale)
    with_top, without, cost = [], [], []
    for number in range(rounds):
        for watched in (True, False) if number % 2 == 0 else (False, True):
            if not watched:
                without.append(await _once(there, count))
                continue
            async with _top(there.server.url) as pid:
                began, before = time.perf_counter(), cpu_s(pid)
                with_top.append(await _once(there, count))
                cost.append((cpu_s(pid) - before) / (time.perf_counter() - began) * 100)

    def sides(what: str) -> tuple[list[float], list[float]]:
        return [getattr(t, what) for t in with_top], [getattr(t, what) for t in without]

    rows = [
        paired("enqueue_many", "jobs/s", *sides("fill")),
        paired("drain", "jobs/s", *sides("drain")),
        paired("drain, worker's CPU", "jobs/cpu s", *sides("drain_worker"), least=0.95),
        paired("both, server's CPU", "jobs/cpu s", *sides("drain_server"), least=0.95),
    ]
    rows.append(compared("top itself, of one core", "%", cost, [0.0], limit=5.0))
    rows.append(idle)
    return Table(f"beside `jetjobs top`, {rounds} rounds", "beside", "alone", rows)


async def beside_top_of_many(there: Full, rounds: int, scale: float) -> Table:
    """The same beside 500 more queues. They stay: call it last."""
    parked = _PARKED[: max(1, int(_MANY * scale))]
    await app.provision(parked)
    table = await beside_top(there, rounds, scale)
    return replace(table, title=f"{table.title}, {len(parked)} more queues")


async def _server_share(there: Full, seconds: float) -> Row:
    """The server's CPU share that `top` causes without load. It varies less than rates on a busy machine."""
    assert there.server.process is not None
    server = there.server.process.pid

    async def share() -> float:
        before = cpu_s(server)
        await asyncio.sleep(seconds)
        return (cpu_s(server) - before) / seconds * 100

    alone = await share()
    async with _top(there.server.url):
        return compared("server, idle, of one core", "%", [await share()], [alone], limit=5.0)


async def _once(there: Full, count: int) -> Rates:
    assert there.server.process is not None
    server = there.server.process.pid
    requests = [works[BUSY].bind(i) for i in range(count)]
    started, server_s = time.perf_counter(), cpu_s(server)
    await store(requests)
    filled, worker_s = time.perf_counter(), time.process_time()
    await app.worker(queues={BUSY: None}, slots=_SLOTS, max_jobs=count).run()
    drained = time.perf_counter()
    return Rates(
        count / (filled - started),
        count / (drained - filled),
        count / (time.process_time() - worker_s),
        count / (cpu_s(server) - server_s),
    )


@contextlib.asynccontextmanager
async def _top(url: str) -> AsyncIterator[int]:
    """Run `jetjobs top` on a pseudo-terminal; yields its process id after it has drawn."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    drawn, watched = asyncio.Event(), False
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            data = os.read(ours, 65536)
            if BUSY.encode() in data or watched:  # later, only what has changed is drawn
                drawn.set()
        except OSError:  # it has ended
            loop.remove_reader(ours)

    loop.add_reader(ours, read)
    try:
        async with child("jetjobs", "--server", url, "top", terminal=theirs) as process:
            async with asyncio.timeout(_DRAWN_S):
                await drawn.wait()
            watched = True
            yield process.pid
            drawn.clear()
            async with asyncio.timeout(_DRAWN_S):
                await drawn.wait()  # it ran until now
    finally:
        loop.remove_reader(ours)
        os.close(ours)
        os.close(theirs)
