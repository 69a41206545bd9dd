"""A loop that is blocked is seen from the thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from jetjobs.observe.loop_watch import LoopWatch
from tests.support.probe import eventually


@pytest.fixture
async def watch() -> AsyncIterator[LoopWatch]:
    made = LoopWatch(asyncio.get_running_loop())
    made.start()
    yield made
    await asyncio.to_thread(made.stop)


async def test_a_loop_that_turns_is_never_silent_for_long(watch: LoopWatch) -> None:
    async def heard() -> bool:
        return watch.silent_s < before

    before = watch.silent_s
    await eventually(heard, 20)


async def test_a_blocked_loop_is_seen_while_it_is_blocked_and_for_a_while_after(watch: LoopWatch) -> None:
    seen = threading.Event()

    def look() -> None:
        until = time.monotonic() + 20
        while time.monotonic() < until:
            if watch.lag_s > 0.5 and watch.silent_s > 0.5:
                seen.set()
                return
            time.sleep(0.02)

    looking = threading.Thread(target=look)
    looking.start()
    assert seen.wait(25)  # blocks the loop until that was seen
    await asyncio.to_thread(looking.join)

    async def turned() -> bool:
        return watch.silent_s < 0.5

    await eventually(turned, 20)
    assert watch.lag_s > 0.5


async def test_a_loop_that_was_closed_ends_the_watch() -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop)
    loop.close()
    watch.start()
    await asyncio.to_thread(watch.stop)
