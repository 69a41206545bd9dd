"""The signal by which a child is asked to stop its job: what it interrupts, and when it has to wait."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from typing import Any

STOP_SIGNAL = signal.SIGUSR1
"""A frame would not be read while a plain function runs. Not SIGTERM: service managers send that to all processes
of a worker that is to finish its jobs."""


class StopSignal:
    """Of a child process. While it is entered, as a context manager, the signal waits: a frame that is half
    written, or a question without its answer, would make nonsense of all that follow."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._due = False
        self._running = False
        self._held_back = 0
        self._coroutine: asyncio.Task[Any] | None = None
        signal.signal(STOP_SIGNAL, self._hear)

    def begin(self) -> None:
        """The task's code runs from now on. CancelledError when it was asked to stop before that."""
        self._running = True
        self._interrupt()

    def end(self) -> None:
        self._running = False

    async def around(self, value: Coroutine[Any, Any, Any]) -> Any:
        """Await the task's coroutine."""
        self._coroutine = asyncio.current_task()
        try:
            return await value
        finally:
            self._coroutine = None

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:  # signals interrupt no other thread
            self._held_back += 1

    def __exit__(self, *raised: object) -> None:
        if threading.get_ident() == self._main:
            self._held_back -= 1
            self._interrupt()

    def _hear(self, number: int, frame: object) -> None:
        if os.getpid() == self._pid:  # else a copy that the task forked
            self._due = True
            self._interrupt()

    def _interrupt(self) -> None:
        """A coroutine at its next await, a plain function where it is. Once, and not outside of a job."""
        if not self._due or not self._running or self._held_back:
            return
        self._due = False
        if self._coroutine is None:
            raise asyncio.CancelledError("the job was cancelled")
        self._coroutine.cancel("the job was cancelled")
        self._coroutine.get_loop().call_soon_threadsafe(lambda: None)  # wakes a loop that waits
