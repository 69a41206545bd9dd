"""Threads for tasks that are plain functions, and an eye on those that a cancel could not stop."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from jetjobs.define.context import Context
from jetjobs.define.task import Task
from jetjobs.model.events import Observer, ThreadStuck

SPARE_THREADS = 64
"""Threads beyond the slots, for those a timeout has given up on but cannot stop."""
STUCK_S = 1.0
"""A thread that still runs so long after it was given up counts as stuck."""


class Threads:
    """The threads of one worker."""

    def __init__(self, slots: int, observe: Observer) -> None:
        self._pool = ThreadPoolExecutor(slots + SPARE_THREADS, "jetjobs")
        self._observe = observe
        self._running: set[Future[Any]] = set()
        self._given_up: dict[Future[Any], tuple[float, Context]] = {}
        self._stuck: set[Future[Any]] = set()

    async def run(self, context: Context, task: Task[Any, Any], arguments: dict[str, Any]) -> Any:
        """Call the function in a thread. A cancel gives it up; it runs on."""
        call = functools.partial(_call, task.function, arguments)
        running = self._pool.submit(contextvars.copy_context().run, call)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            value = await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.done():
                self._given_up[running] = (time.monotonic(), context)
            raise
        # A plain function may hand back a coroutine; it belongs to the loop.
        return await value if asyncio.iscoroutine(value) else value

    @property
    def running(self) -> int:
        """Threads that run a task now, given up or not."""
        return sum(running.running() for running in list(self._running))

    @property
    def stuck(self) -> int:
        """Threads that were given up and still run."""
        self._stuck = {running for running in self._stuck if not running.done()}
        return len(self._stuck)

    def look(self) -> None:
        """Tell of each that is stuck, once. Called by the loop at every tick."""
        if not self._given_up:
            return
        now = time.monotonic()
        for running, (since, context) in list(self._given_up.items()):
            if running.done():
                del self._given_up[running]
            elif now - since >= STUCK_S:
                del self._given_up[running]
                self._stuck.add(running)
                self._observe(ThreadStuck(context.queue, context.task, context.id, self.stuck))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (StopIteration, GeneratorExit) as error:
        # A future cannot carry the one, and the other would close whoever waits for it.
        raise RuntimeError(f"the task raised {type(error).__name__}") from error
