"""The signal that interrupts a job in a child process: what it interrupts and when it has to wait."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from typing import Any

STOP_SIGNAL = signal.SIGUSR1
"""A signal, because a child does not read frames while a plain function runs. Not SIGTERM: service managers send
that to all processes of a worker that should finish its jobs."""


class StopSignal:
    """Handles the signal in a child process.

    As a context manager it delays the signal: a half-written frame, or a request without its reply, would corrupt
    everything that follows on the channel.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._main = threading.get_ident()
        self._due = False
        self._running = False
        self._shielded = 0
        self._coroutine: asyncio.Task[Any] | None = None
        signal.signal(STOP_SIGNAL, self._on_signal)

    def begin(self) -> None:
        """The task's code starts now. CancelledError if the signal has arrived already."""
        self._running = True
        self._interrupt()

    def end(self) -> None:
        self._running = False

    async def interruptible(self, value: Coroutine[Any, Any, Any]) -> Any:
        """Await the task's coroutine so that the signal cancels it."""
        self._coroutine = asyncio.current_task()
        try:
            return await value
        finally:
            self._coroutine = None

    def __enter__(self) -> None:
        if threading.get_ident() == self._main:  # signals only interrupt the main thread
            self._shielded += 1

    def __exit__(self, *raised: object) -> None:
        if threading.get_ident() == self._main:
            self._shielded -= 1
            self._interrupt()

    def _on_signal(self, number: int, frame: object) -> None:
        if os.getpid() == self._pid:  # otherwise a process that the task forked
            self._due = True
            self._interrupt()

    def _interrupt(self) -> None:
        """Interrupt a coroutine at its next await, a plain function where it is. Once, and only during a job."""
        if not self._due or not self._running or self._shielded:
            return
        self._due = False
        if self._coroutine is None:
            raise asyncio.CancelledError("the job was cancelled")
        self._coroutine.cancel("the job was cancelled")
        self._coroutine.get_loop().call_soon_threadsafe(lambda: None)  # wakes an idle event loop
