"""An attempt: one delivery of a job that this worker holds, its lease, and how its task is interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import TypeVar

from jetjobs.jetstream.jobs.checkpoints import CheckpointHandle
from jetjobs.jetstream.pull.delivery import Delivery
from jetjobs.model.clock import SYSTEM_CLOCK, Clock
from jetjobs.model.errors import AccessDenied, BrokerUnavailable
from jetjobs.model.job import Job

T = TypeVar("T")

RETRY_S = 1.0
"""Pause between requests to a server that does not answer."""
CHILD_STOP_S = 2.0
"""How long a child process may take to stop a cancelled job. Then it is killed."""


class Interrupt(Enum):
    """Why the worker cancelled a running task."""

    TIMEOUT = "timeout"
    LEASE_LOST = "lease lost"
    STOP = "stop"
    CANCEL = "cancel"


class Progress:
    """The progress that a task reported. Each report makes a new one, so that threads need no lock."""

    __slots__ = ("fraction", "message", "sent")

    def __init__(self, fraction: float, message: str | None) -> None:
        self.fraction = fraction
        self.message = message
        self.sent = False


class Attempt:
    """Held from the delivery of a job until it is settled. Times are those of the monotonic clock."""

    __slots__ = (
        "_clock",
        "acked",
        "asyncio_task",
        "cancelled_for",
        "checkpoint",
        "delivery",
        "denied",
        "doubt",
        "expires_at",
        "heartbeat_at",
        "interrupt",
        "job",
        "key",
        "lane",
        "leased_until",
        "progress",
        "queue",
        "received_at",
        "recorded_at",
        "running",
        "seen_at",
        "started_at",
        "stop_child",
        "suspect",
    )

    def __init__(
        self,
        delivery: Delivery,
        queue: str,
        lane: str,
        received_at: float,
        lease_s: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """The lease counts from `received_at`."""
        self._clock = clock
        self.delivery = delivery
        self.queue = queue
        self.lane = lane
        """The lane that delivered the job, which may differ from the lane of its priority."""
        self.suspect = False
        """Whether the job is one crash short of the limit and runs with nothing new beside it. ADR 29."""
        self.key = (queue, delivery.sequence)
        self.job: Job | None = None
        """None until the job has been decoded."""
        self.received_at = received_at
        self.heartbeat_at = received_at
        self.leased_until = received_at + lease_s
        self.denied = ""
        """Why the worker may not read what it must know before the job starts."""
        self.seen_at = received_at
        """When its message was last known to be at its sequence."""
        self.doubt = 0
        """Not 0 while another message may have its sequence: it is neither acked nor extended. Each reason for
        doubt adds one, so that a comparison that began before it does not end it. ADR 41."""
        self.acked = False
        """Whether an ack was sent and its confirmation is awaited."""
        self.started_at = 0.0
        self.expires_at = 0.0
        """When the time limit of the task is up."""
        self.running = False
        """Whether the task's own code runs. The worker cancels nothing else."""
        self.asyncio_task: asyncio.Task[None] | None = None
        self.interrupt: Interrupt | None = None
        self.cancelled_for: tuple[Interrupt, ...] = ()
        """The reasons for which the task was cancelled."""
        self.stop_child: Callable[[], None] | None = None
        """Asks the child process that runs the task to stop it. None if no child process runs it."""
        self.recorded_at = 0.0
        """When its running record was last written. 0 if it has none."""
        self.progress: Progress | None = None
        """The latest progress that the task reported."""
        self.checkpoint: CheckpointHandle | None = None
        """The job's checkpoint, if the task has read or written one."""

    def owned(self) -> bool:
        """Whether this worker still holds the lease, by its own clock. A frozen process finds out here first."""
        return self.interrupt is not Interrupt.LEASE_LOST and self._clock.monotonic() < self.leased_until

    async def retry_while_owned(self, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat `request` until the server answers and permits it, or the lease is lost. Giving up earlier would
        count as a crash of the job."""
        try:
            while True:
                try:
                    return await request()
                except (BrokerUnavailable, AccessDenied) as error:
                    if not self.owned():
                        raise
                    self.denied = str(error) if isinstance(error, AccessDenied) else ""
                await asyncio.sleep(RETRY_S)
        finally:
            self.denied = ""

    def stop_running(self, why: Interrupt) -> None:
        """Cancel the task's code, or kill it in a child process. The first reason is the one that counts.

        A task is cancelled once. Only a task that ignored the cancellation of its job is cancelled again, when its
        time limit is up or the worker stops.
        """
        first = self.interrupt in (None, Interrupt.CANCEL) and why not in self.cancelled_for
        if self.running and self.asyncio_task is not None and first:
            self.interrupt = self.interrupt or why
            self.cancelled_for += (why,)
            self.asyncio_task.cancel()

    def cancel_running(self) -> None:
        """Stop the task of a cancelled job. A child process is asked first, so that the task can clean up."""
        if not self.running or self.interrupt is not None:
            return
        if self.stop_child is None:
            self.stop_running(Interrupt.CANCEL)
            return
        self.interrupt = Interrupt.CANCEL
        self.stop_child()
        asyncio.get_running_loop().call_later(CHILD_STOP_S, self._kill_child)

    def _kill_child(self) -> None:
        if self.stop_child is not None:  # else the child has answered, and only middleware still runs
            self.stop_running(Interrupt.CANCEL)
