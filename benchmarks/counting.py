"""Measure the cost of metrics per job by turning them on and off every few milliseconds during one run."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.bench import Bench
from benchmarks.measures import SLOTS, fill, work_off
from benchmarks.report import Table, paired
from benchmarks.tasks import app, noop, tallied, tally

_TURN_S = 0.005
"""Some hundred drained jobs. Disturbances of the machine mostly last longer and so affect both turns of a pair.
With turns of half a second and the same number of jobs, the ratio varies several times as much."""

Pairs = tuple[list[float], list[float]]


async def metrics(bench: Bench) -> Table:
    """Jobs per second of this process's CPU time, with metrics on and off."""
    each, drained, sent = bench.count(40_000), bench.count(200_000), 0

    async def enqueue() -> None:
        nonlocal sent
        for i in range(each):
            await noop.enqueue(i)
            sent += 1

    counting = app.metrics()
    app.forget(counting.observe)

    def switch(on: bool) -> None:
        if on:
            app.observe(counting.observe, *counting.kinds)
        else:
            app.forget(counting.observe)

    await bench.clear()
    enqueueing = await _in_turn(enqueue(), lambda: sent, switch)
    draining: Pairs = ([], [])
    for _ in range(2 * bench.rounds):
        await bench.clear()
        await fill(tally, drained)
        turns = await _in_turn(work_off(bench, SLOTS, drained), lambda: tallied[0], switch)
        for kept, found in zip(draining, turns, strict=True):
            kept += found
    rows = [
        paired("enqueue one by one", "jobs/cpu s", *enqueueing, least=0.95),
        paired("drain, no results", "jobs/cpu s", *draining, least=0.95),
    ]
    return Table("with metrics on, beside off", "on", "off", rows)


async def _in_turn(work: Awaitable[Any], done: Callable[[], int], switch: Callable[[bool], None]) -> Pairs:
    """Rates per CPU time, on and off, in pairs. The order within a pair is random, so that neither side always
    meets periodic work."""
    on: list[float] = []
    off: list[float] = []
    working = asyncio.ensure_future(work)
    try:
        while not working.done():
            first = random.random() < 0.5
            rates = {turn: await _turn(turn, done, switch) for turn in (first, not first)}
            if all(rates.values()):  # otherwise the work had not started or has ended
                on.append(rates[True])
                off.append(rates[False])
    finally:
        await working
    return on, off


async def _turn(on: bool, done: Callable[[], int], switch: Callable[[bool], None]) -> float:
    if on:
        switch(True)
    before, began = done(), time.process_time()
    await asyncio.sleep(_TURN_S)
    rate = (done() - before) / (time.process_time() - began)
    if on:
        switch(False)
    return rate
