"""What running jobs tell and ask of their worker: progress is only noted, checkpoints are stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from jetjobs.jetstream.jobs.checkpoints import CheckpointHandle, Checkpoints, Superseded
from jetjobs.model.errors import AttemptError, BrokerUnavailable, LeaseLost, StorageFull
from jetjobs.worker.attempt import Attempt, Report

T = TypeVar("T")

TRY_AGAIN_S = 1.0


class WorkerDesk:
    """One for the worker's life; jobs may come from its loop, from its threads and from loops of their own."""

    def __init__(self, checkpoints: Checkpoints, worker: str) -> None:
        self._checkpoints = checkpoints
        self._worker = worker
        self._loop = asyncio.get_running_loop()

    def report(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        """Only noted: the leases tell of it at their next tick, or when the attempt ends."""
        attempt.report = Report(fraction, message)

    async def save(self, attempt: Attempt, value: bytes) -> None:
        await self._here(self._save(attempt, value))

    def save_sync(self, attempt: Attempt, value: bytes) -> None:
        asyncio.run_coroutine_threadsafe(self._save(attempt, value), self._loop).result()

    async def load(self, attempt: Attempt) -> bytes | None:
        return await self._here(self._load(attempt))

    def load_sync(self, attempt: Attempt) -> bytes | None:
        return asyncio.run_coroutine_threadsafe(self._load(attempt), self._loop).result()

    async def _here(self, work: Coroutine[Any, Any, T]) -> T:
        """On the worker's loop, which is the connection's. A plain function may run a loop of its own."""
        if asyncio.get_running_loop() is self._loop:
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    async def _save(self, attempt: Attempt, value: bytes) -> None:
        kept = self._kept(attempt)
        async with kept.lock:
            await self._while_ours(
                attempt, lambda: self._checkpoints.save(kept, value, lambda: attempt.running and attempt.owned())
            )

    async def _load(self, attempt: Attempt) -> bytes | None:
        kept = self._kept(attempt)
        async with kept.lock:
            return await self._while_ours(attempt, lambda: self._checkpoints.load(kept))

    def _kept(self, attempt: Attempt) -> CheckpointHandle:
        if attempt.kept is None:
            assert attempt.job is not None
            delivery = attempt.delivery
            attempt.kept = CheckpointHandle(attempt.job, delivery.delivered, delivery.fence, self._worker)
        return attempt.kept

    async def _while_ours(self, attempt: Attempt, work: Callable[[], Awaitable[T]]) -> T:
        """Until the server has done it. An outage or a full disk is none of the job's doing: it waits, up to its
        time limit or the end of its lease."""
        while True:
            _check(attempt)
            try:
                return await work()
            except Superseded as error:
                # Should the task go on, the next tick of the leases stops it.
                attempt.leased_until = 0.0
                raise LeaseLost(f"the job is another worker's by now: {error}") from None
            except (BrokerUnavailable, StorageFull):
                await asyncio.sleep(TRY_AGAIN_S)


def _check(attempt: Attempt) -> None:
    """A thread that was given up may still call; its job is settled, or another's."""
    if not attempt.owned():
        raise LeaseLost("the lease of the job has run out: somebody else may be running it now")
    if not attempt.running:
        raise AttemptError("the attempt has ended: nothing more is kept of it")
