"""What a running task can request of its worker: note progress, store and load checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jetjobs.jetstream.jobs.checkpoints import CheckpointHandle, Checkpoints, Superseded
from jetjobs.model.errors import AttemptError, BrokerUnavailable, LeaseLost, StorageFull
from jetjobs.worker.attempt import Attempt, Progress

T = TypeVar("T")

RETRY_S = 1.0


class WorkerServices:
    """The `AttemptServices` of a worker. Tasks call it from the worker's event loop, from threads and from event
    loops of their own."""

    def __init__(self, checkpoints: Checkpoints, worker: str) -> None:
        self._checkpoints = checkpoints
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Serve requests on the running event loop."""
        self._loop = asyncio.get_running_loop()

    def report(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        """Note the progress. It is published at the next tick, or when the attempt ends."""
        attempt.progress = Progress(fraction, message)

    async def save(self, attempt: Attempt, value: bytes) -> None:
        await self._on_worker_loop(self._save(attempt, value))

    def save_sync(self, attempt: Attempt, value: bytes) -> None:
        self._wait_for(self._save(attempt, value))

    async def load(self, attempt: Attempt) -> bytes | None:
        return await self._on_worker_loop(self._load(attempt))

    def load_sync(self, attempt: Attempt) -> bytes | None:
        return self._wait_for(self._load(attempt))

    async def _on_worker_loop(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` on the worker's event loop, which owns the connection. A plain function may run an event
        loop of its own."""
        assert self._loop is not None
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _save(self, attempt: Attempt, value: bytes) -> None:
        kept = self._checkpoint(attempt)
        async with kept.lock:
            await self._while_owned(
                attempt, lambda: self._checkpoints.save(kept, value, lambda: attempt.running and attempt.owned())
            )

    async def _load(self, attempt: Attempt) -> bytes | None:
        kept = self._checkpoint(attempt)
        async with kept.lock:
            return await self._while_owned(attempt, lambda: self._checkpoints.load(kept))

    def _checkpoint(self, attempt: Attempt) -> CheckpointHandle:
        if attempt.checkpoint is None:
            assert attempt.job is not None
            delivery = attempt.delivery
            attempt.checkpoint = CheckpointHandle(attempt.job, delivery.delivered, delivery.fence, self._worker)
        return attempt.checkpoint

    async def _while_owned(self, attempt: Attempt, request: Callable[[], Awaitable[T]]) -> T:
        """Repeat `request` through outages and full storage, which are not the job's fault, until its time limit
        is up or its lease is lost."""
        while True:
            _check(attempt)
            try:
                return await request()
            except Superseded as error:
                # If the task goes on, the next tick finds its lease expired and stops it.
                attempt.leased_until = 0.0
                raise LeaseLost(f"another worker has the job: {error}") from None
            except (BrokerUnavailable, StorageFull):
                await asyncio.sleep(RETRY_S)


def _check(attempt: Attempt) -> None:
    """A thread may still call after its attempt has ended, when the job is settled or with another worker."""
    if not attempt.owned():
        raise LeaseLost("the lease of the job has expired: another worker may be running it")
    if not attempt.running:
        raise AttemptError("the attempt has ended: its checkpoint cannot change any more")
