"""Progress and checkpoints of a job in a child process: both ends of the requests over the channel."""

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
from jetjobs.worker.isolation.channel import Channel, Frame, ProtocolError

PROGRESS_EVERY_S = 0.25
"""How often a child reports progress at most. The worker does not publish it more often."""

# The worker's end


async def handle_request(services: AttemptServices, attempt: Attempt, frame: Frame) -> Frame | None:
    """Answer a frame of the child that runs this attempt; None if it needs no answer. ProtocolError otherwise."""
    kind = frame.head.get("kind")
    if kind == "progress":
        fraction, message = frame.head.get("fraction"), frame.head.get("message")
        if not isinstance(fraction, float) or not isinstance(message, str | None):
            raise ProtocolError("unreadable progress")
        services.report(attempt, fraction, message)
        return None
    if kind not in ("save", "load"):
        raise ProtocolError(f"unexpected frame of kind {kind!r}")
    try:
        if kind == "save":
            await services.save(attempt, frame.body)
            return Frame({"kind": "kept"})
        value = await services.load(attempt)
    except JetJobsError as error:
        return Frame({"kind": "refused", "type": type(error).__name__, "text": str(error), "hint": error.hint})
    return Frame({"kind": "kept", "none": value is None}, value or b"")


# The child's end


class ChildServices:
    """The services of one job. After `close` it sends nothing more: the channel belongs to the next job."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pid = os.getpid()
        self._closed = False
        self._request_lock = threading.Lock()
        self._progress_lock = threading.Lock()
        self._pending: dict[str, Any] | None = None
        self._sent_at = -math.inf  # not 0.0: monotonic clocks start near it on a freshly booted machine
        self._timer: threading.Timer | None = None

    def report(self, held: Any, fraction: float, message: str | None) -> None:
        """Send progress now or when its interval has passed. A timer sends the last of several reports."""
        if os.getpid() != self._pid:
            return  # a process that the task forked; the channel is not its own
        with self._channel.shield, self._progress_lock:
            if self._closed:
                return
            self._pending = {"kind": "progress", "fraction": fraction, "message": message}
            wait_s = self._sent_at + PROGRESS_EVERY_S - time.monotonic()
            if wait_s <= 0 or not self._send_after(wait_s):
                self._send_pending()

    def _send_after(self, wait_s: float) -> bool:
        if self._timer is None:
            timer = threading.Timer(wait_s, self._send_on_timer)
            timer.daemon = True
            try:
                timer.start()
            except RuntimeError:  # cannot start another thread
                return False
            self._timer = timer
        return True

    def _send_on_timer(self) -> None:
        with self._progress_lock:
            self._timer = None
            self._send_pending()

    def _send_pending(self) -> None:
        if self._pending is not None:
            self._channel.send(Frame(self._pending))
            self._pending, self._sent_at = None, time.monotonic()

    async def save(self, held: Any, value: bytes) -> None:
        await asyncio.to_thread(self._request, "save", value)

    def save_sync(self, held: Any, value: bytes) -> None:
        self._request("save", value)

    async def load(self, held: Any) -> bytes | None:
        return await asyncio.to_thread(self._request, "load")

    def load_sync(self, held: Any) -> bytes | None:
        return self._request("load")

    def _request(self, kind: str, body: bytes = b"") -> bytes | None:
        if os.getpid() != self._pid:
            raise AttemptError("checkpoints are not available in a process that the task forked")
        with self._channel.shield, self._request_lock:
            if self._closed:
                raise AttemptError("the attempt has ended: its checkpoint can no longer be read or saved")
            self._channel.send(Frame({"kind": kind}, body))
            reply = self._channel.receive()
        if reply is None:
            raise LeaseLost("the worker has ended")
        if reply.head.get("kind") == "refused":
            raise _error_from(reply.head)
        return None if reply.head.get("none") else reply.body

    def close(self) -> None:
        """Send pending progress and wait for an outstanding reply."""
        with self._request_lock, self._progress_lock:
            if self._timer is not None:
                self._timer.cancel()
            self._send_pending()
            self._closed = True


def _error_from(head: dict[str, Any]) -> JetJobsError:
    """The worker's error, raised again in the child."""
    kind = getattr(errors, str(head.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, JetJobsError)):
        kind = JetJobsError
    return kind(str(head.get("text")), hint=head.get("hint"))
