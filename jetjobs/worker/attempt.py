"""One delivery in our hands: its job, its lease, its time limit, and how it may be interrupted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeVar

from jetjobs.jetstream.jobs.checkpoints import CheckpointHandle
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.job import Job

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
STOPPING_S = 2.0
"""So long a child process may take to stop a job that is cancelled; then it is killed."""


class Interrupt(Enum):
    """Why a running task was cancelled by us."""

    TIMEOUT = "timeout"
    LEASE_LOST = "lease lost"
    STOP = "stop"
    CANCEL = "cancel"


class Report:
    """How far the task says it is. A new one for each call, so that threads need no lock."""

    __slots__ = ("fraction", "message", "sent")

    def __init__(self, fraction: float, message: str | None) -> None:
        self.fraction = fraction
        self.message = message
        self.sent = False


class Attempt:
    """Held from delivery until settled. Times are of the monotonic clock."""

    __slots__ = (
        "alone",
        "ask_child",
        "beat_at",
        "delivery",
        "expires_at",
        "interrupt",
        "job",
        "kept",
        "lane",
        "leased_until",
        "place",
        "queue",
        "received_at",
        "report",
        "runner",
        "running",
        "sent",
        "shown_at",
        "started_at",
    )

    def __init__(self, delivery: Delivery, queue: str, lane: str, now: float, lease_s: float) -> None:
        """`now` is when it was delivered, as far as we can tell: the lease counts from then."""
        self.delivery = delivery
        self.queue = queue
        self.lane = lane
        """The lane it was delivered from, which may be a detour from the job's own."""
        self.alone = False
        """Whether it is a suspect, one crash short of the limit: it runs with nothing new beside it. ADR 29."""
        self.place = (queue, delivery.sequence)
        self.job: Job | None = None
        self.received_at = now
        self.beat_at = now
        self.leased_until = now + lease_s
        self.started_at = 0.0
        self.expires_at = 0.0
        self.running = False
        """True only while the task's own code runs: nothing else may be cancelled."""
        self.runner: asyncio.Task[None] | None = None
        self.interrupt: Interrupt | None = None
        self.sent: tuple[Interrupt, ...] = ()
        """For which reasons the task was cancelled."""
        self.ask_child: Callable[[], None] | None = None
        """Asks the child process that runs the task to stop it; None where none does."""
        self.shown_at = 0.0
        """When a `running` record was last written; 0 for never."""
        self.report: Report | None = None
        """The newest progress, if the task has told of any."""
        self.kept: CheckpointHandle | None = None
        """Our hand on the job's checkpoint, if the task has asked for or written one."""

    def owned(self) -> bool:
        """Whether the lease is still ours, by our own clock: a worker that was frozen learns it here first."""
        return self.interrupt is not Interrupt.LEASE_LOST and time.monotonic() < self.leased_until

    async def patiently(self, look: Callable[[], Awaitable[T]]) -> T:
        """What `look` finds. A server that does not answer is asked again while the lease is ours: to give up
        would count as a crash of the job."""
        while True:
            try:
                return await look()
            except BrokerUnavailable:
                if not self.owned():
                    raise
            await asyncio.sleep(LOOK_AGAIN_S)

    def stop_running(self, why: Interrupt) -> None:
        """Cancel the task's code; kill it, in a child process. The first reason stays, and it is cancelled once:
        only one who was to be cancelled and went on is told again when his time is up or the worker stops."""
        first = self.interrupt in (None, Interrupt.CANCEL) and why not in self.sent
        if self.running and self.runner is not None and first:
            self.interrupt = self.interrupt or why
            self.sent += (why,)
            self.runner.cancel()

    def cancel_running(self) -> None:
        """Somebody has cancelled the job. A child process is asked to stop it first, so that it may clean up."""
        if not self.running or self.interrupt is not None:
            return
        if self.ask_child is None:
            self.stop_running(Interrupt.CANCEL)
            return
        self.interrupt = Interrupt.CANCEL
        self.ask_child()
        asyncio.get_running_loop().call_later(STOPPING_S, self._kill_child)

    def _kill_child(self) -> None:
        if self.ask_child is not None:  # else it has answered: what still runs is middleware
            self.stop_running(Interrupt.CANCEL)
