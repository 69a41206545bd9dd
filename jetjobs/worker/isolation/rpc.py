"""What a child tells and asks of its worker while it runs a job, at both ends of the channel."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from typing import Any

from jetjobs.define.context import AttemptServices
from jetjobs.model import errors
from jetjobs.model.errors import AttemptError, JetJobsError, LeaseLost
from jetjobs.worker.attempt import Attempt
from jetjobs.worker.isolation.channel import Channel, Frame, Garbled

PACE_S = 0.25
"""So often at most a child tells of progress: the worker passes on no more."""

# The worker's end


async def answer(desk: AttemptServices, attempt: Attempt, frame: Frame) -> Frame | None:
    """What is to be said to a frame of the child that runs this attempt. Garbled for what is no question."""
    kind = frame.head.get("kind")
    if kind == "progress":
        fraction, message = frame.head.get("fraction"), frame.head.get("message")
        if not isinstance(fraction, float) or not isinstance(message, str | None):
            raise Garbled("a progress that cannot be read")
        desk.report(attempt, fraction, message)
        return None
    if kind not in ("save", "load"):
        raise Garbled(f"a frame of kind {kind!r}")
    try:
        if kind == "save":
            await desk.save(attempt, frame.body)
            return Frame({"kind": "kept"})
        value = await desk.load(attempt)
    except JetJobsError as error:
        return Frame({"kind": "refused", "type": type(error).__name__, "text": str(error), "hint": error.hint})
    return Frame({"kind": "kept", "none": value is None}, value or b"")


# The child's end


class ChildDesk:
    """For one job. After `close` it takes nothing more: the channel is the next job's."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._closed = False
        self._asking = threading.Lock()
        self._telling = threading.Lock()
        self._untold: dict[str, Any] | None = None
        self._told_at = -math.inf  # not 0.0: monotonic clocks begin near it on a machine just started
        self._timer: threading.Timer | None = None

    def report(self, held: Any, fraction: float, message: str | None) -> None:
        """At once, or when it is time: a timer sees to the last of many."""
        if os.getpid() != self._pid:
            return  # a copy that the task forked; the channel is not its own
        with self._channel.shield, self._telling:
            if self._closed:
                return
            self._untold = {"kind": "progress", "fraction": fraction, "message": message}
            wait_s = self._told_at + PACE_S - time.monotonic()
            if wait_s <= 0 or not self._tell_after(wait_s):
                self._tell()

    def _tell_after(self, wait_s: float) -> bool:
        if self._timer is None:
            timer = threading.Timer(wait_s, self._tell_now)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # no memory for another thread
                return False
            self._timer = timer
        return True

    def _tell_now(self) -> None:
        with self._telling:
            self._timer = None
            self._tell()

    def _tell(self) -> None:
        if self._untold is not None:
            self._channel.send(Frame(self._untold))
            self._untold, self._told_at = None, time.monotonic()

    async def save(self, held: Any, value: bytes) -> None:
        await asyncio.to_thread(self._ask, "save", value)

    def save_sync(self, held: Any, value: bytes) -> None:
        self._ask("save", value)

    async def load(self, held: Any) -> bytes | None:
        return await asyncio.to_thread(self._ask, "load")

    def load_sync(self, held: Any) -> bytes | None:
        return self._ask("load")

    def _ask(self, kind: str, body: bytes = b"") -> bytes | None:
        if os.getpid() != self._pid:
            raise AttemptError("a forked copy of the process has no checkpoints")
        with self._channel.shield, self._asking:
            if self._closed:
                raise AttemptError("the attempt has ended: nothing more is kept of it")
            self._channel.send(Frame({"kind": kind}, body))
            told = self._channel.receive()
        if told is None:
            raise LeaseLost("the worker is gone")
        if told.head.get("kind") == "refused":
            raise _error_from(told.head)
        return None if told.head.get("none") else told.body

    def close(self) -> None:
        """Tell what is untold; wait for an answer that is under way."""
        with self._asking, self._telling:
            if self._timer is not None:
                self._timer.cancel()
            self._tell()
            self._closed = True


def _error_from(head: dict[str, Any]) -> JetJobsError:
    """The same error in the child."""
    kind = getattr(errors, str(head.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, JetJobsError)):
        kind = JetJobsError
    return kind(str(head.get("text")), hint=head.get("hint"))
