"""When a job that is enqueued now is expected to start, from the state of its queue."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime

from jetjobs.app import JetJobs
from jetjobs.jetstream.queues.queue_state import queue_state
from jetjobs.jetstream.workers.registry import list_workers
from jetjobs.model.errors import JetJobsError
from jetjobs.model.views.queue_info import QueueState

FRESH_S = 1.0
"""How long the state of a queue is used, so that estimates cost nothing under load."""
WAIT_S = 0.5
"""How long a request waits for an estimate. Its job is stored already."""


class StartTimes:
    """Estimates for the queues of one namespace."""

    def __init__(self, app: JetJobs) -> None:
        self._app = app
        self._states: dict[str, tuple[float, QueueState | None]] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    async def estimate(self, queue: str) -> datetime | None:
        """The expected start of a job that was enqueued just now; None if it is not known."""
        read_at, state = self._states.get(queue, (-FRESH_S, None))
        if time.monotonic() - read_at >= FRESH_S:
            reading = self._reading.get(queue)
            if reading is None:
                reading = self._reading[queue] = asyncio.create_task(self._read(queue, state))
                reading.add_done_callback(lambda _: self._reading.pop(queue, None))
            if state is None:  # others use the previous state while it is read again
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(reading), WAIT_S)
                state = self._states.get(queue, (0.0, None))[1]
        starts_in = None if state is None else state.starts_in
        return None if starts_in is None else datetime.now(UTC) + starts_in

    async def _read(self, queue: str, before: QueueState | None) -> None:
        """Read the state. Rates are those since the state before."""
        connection, names = self._app.jetstream.connection, self._app.jetstream.names
        state = None
        with contextlib.suppress(JetJobsError):  # the estimate is left out
            workers = await list_workers(connection, names)
            state = await queue_state(connection, names, queue, workers, before.lanes if before else ())
        self._states[queue] = (time.monotonic(), state)
