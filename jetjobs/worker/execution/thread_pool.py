"""Run plain functions in threads, and report threads that do not end."""

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
"""Threads beyond the slots, to replace those that were cancelled and still run."""
STUCK_S = 1.0
"""A thread that still runs this long after it was cancelled is stuck."""


class ThreadPool:
    """The threads of one worker. A thread cannot be cancelled: the attempt ends, and the thread runs on."""

    def __init__(self, slots: int, observe: Observer) -> None:
        self._pool = ThreadPoolExecutor(slots + SPARE_THREADS, "jetjobs")
        self._observe = observe
        self._running: set[Future[Any]] = set()
        self._cancelled: dict[Future[Any], tuple[float, Context]] = {}
        self._stuck: set[Future[Any]] = set()

    async def run(self, context: Context, task: Task[Any, Any], arguments: dict[str, Any]) -> Any:
        """Call the task's function in a thread."""
        call = functools.partial(_call, task.function, arguments)
        running = self._pool.submit(contextvars.copy_context().run, call)
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            value = await asyncio.wrap_future(running)
        except asyncio.CancelledError:
            if not running.done():
                self._cancelled[running] = (time.monotonic(), context)
            raise
        # A plain function may return a coroutine, which belongs on the event loop.
        return await value if asyncio.iscoroutine(value) else value

    @property
    def running(self) -> int:
        """Threads that run a task now, cancelled ones included."""
        return sum(running.running() for running in list(self._running))

    @property
    def stuck(self) -> int:
        """Threads that were cancelled and still run."""
        self._stuck = {running for running in self._stuck if not running.done()}
        return len(self._stuck)

    def report_stuck(self) -> None:
        """Report each stuck thread once. Called at every tick."""
        if not self._cancelled:
            return
        now = time.monotonic()
        for running, (since, context) in list(self._cancelled.items()):
            if running.done():
                del self._cancelled[running]
            elif now - since >= STUCK_S:
                del self._cancelled[running]
                self._stuck.add(running)
                self._observe(ThreadStuck(context.queue, context.task, context.id, self.stuck))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (StopIteration, GeneratorExit) as error:
        # A future cannot hold a StopIteration, and a GeneratorExit would close the coroutine that awaits it.
        raise RuntimeError(f"the task raised {type(error).__name__}") from error
