"""Enqueue the planned jobs at their times and record the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
from nats.aio.client import Client

from jetjobs import JetJobs, JetJobsError, JobRequest
from jetjobs.errors import EnqueueUnconfirmed
from tests.chaos import tasks
from tests.chaos.history import CONFIRMED, DUPLICATE, REFUSED, UNCONFIRMED, History, Sent
from tests.chaos.plan import BATCH, PlannedJob

KEYS = 5
FAR = timedelta(hours=2)
LARGE = 2_000_000

Make = Callable[[PlannedJob], JobRequest[Any]]


def _soon(job: PlannedJob, most_s: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=job.draw * most_s)


MAKERS: dict[str, Make] = {
    "plain": lambda j: tasks.effect.options(queue=j.queue).bind(j.number, j.draw * 0.1),
    "quiet": lambda j: tasks.quiet.options(queue=j.queue).bind(j.number, j.draw * 0.1),
    "high": lambda j: tasks.effect.options(queue=j.queue, priority="high").bind(j.number),
    "low": lambda j: tasks.quiet.options(queue=j.queue, priority="low").bind(j.number),
    "delayed": lambda j: tasks.effect.options(delay=timedelta(seconds=j.draw * 5)).bind(j.number),
    "run_at": lambda j: tasks.quiet.options(run_at=_soon(j, 5), queue=j.queue).bind(j.number),
    "far": lambda j: tasks.effect.options(delay=FAR, queue=j.queue).bind(j.number),
    "keyed": lambda j: tasks.effect.options(key=f"key {int(j.draw * KEYS)}").bind(j.number, 0.1 + j.draw * 0.5),
    "flaky": lambda j: tasks.flaky.options(queue=j.queue).bind(j.number, 1 + int(j.draw * 3)),
    "doomed": lambda j: tasks.doomed.bind(j.number),
    "reject": lambda j: tasks.reject.options(queue=j.queue).bind(j.number),
    "snooze": lambda j: tasks.snooze.bind(j.number, 1 + int(j.draw * 3)),
    "thread": lambda j: tasks.thread.options(queue=j.queue).bind(j.number, j.draw),
    "slow": lambda j: tasks.effect.options(queue=j.queue).bind(j.number, 1.0 + 3.0 * j.draw),
    "slow_quiet": lambda j: tasks.quiet.bind(j.number, 1.0 + 3.0 * j.draw),
    "slow_flaky": lambda j: tasks.flaky.options(queue=j.queue).bind(j.number, 1, 0.5 + 2.5 * j.draw),
    "slow_doomed": lambda j: tasks.doomed.bind(j.number, 0.2 + j.draw),
    "block": lambda j: tasks.block.bind(j.number, 0.2 + 2.6 * j.draw**2),
    "expiring": lambda j: tasks.effect.options(deadline=_soon(j, 3), queue=j.queue).bind(j.number, 0.3),
    "poison": lambda j: tasks.poison.bind(j.number),
    "large": lambda j: tasks.large.bind(j.number, "x" * LARGE),
    "isolated": lambda j: tasks.isolated.bind(j.number, j.draw * 2.0),
    "poison_in_child": lambda j: tasks.poison_in_child.bind(j.number),
}
ANONYMOUS: dict[str, tuple[str, bytes, dict[str, str]]] = {
    "anonymous": ("effect", b'{"n": 1}', {}),
    "bad_body": ("effect", b"not JSON", {}),
    "bad_header": ("effect", b'{"n": 1}', {"Jetjobs-Attempt": "many"}),
    "no_task": ("no_such_task", b"{}", {}),
}


class Producer:
    """Enqueues through the app, and anonymous jobs through a plain client, both over the producer's link."""

    def __init__(self, app: JetJobs, plain: Client, history: History) -> None:
        self._app = app
        self._js = plain.jetstream(timeout=5)
        self._history = history
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, jobs: list[PlannedJob], started: float) -> None:
        """Send each job at its time, without waiting for earlier ones."""
        for job in jobs:
            await asyncio.sleep(max(0.0, started + job.at - time.time()))
            self.send(job)

    def send(self, job: PlannedJob) -> None:
        task = asyncio.create_task(self._send(job))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def settled(self) -> None:
        """Wait until every enqueue has its answer."""
        while self._under_way:
            await asyncio.gather(*self._under_way)

    async def _send(self, job: PlannedJob) -> None:
        try:
            if job.kind == "batch":
                await self._batch(job)
            elif job.kind in ANONYMOUS:
                await self._anonymous(job)
            else:
                await self._one(job)
        except Exception as error:
            self._history.producer_trouble.append(f"{job.kind} #{job.number}: {error!r}")

    def _note(self, job: PlannedJob, queue: str, task: str) -> Sent:
        sent = Sent(job.kind, job.number, queue, task, time.time())
        self._history.sent.append(sent)
        return sent

    async def _one(self, job: PlannedJob) -> None:
        request = MAKERS[job.kind](job)
        sent = self._note(job, request.options.get("queue", request.task.queue), request.task.name)
        try:
            handle = await request.task.send(request)
        except JetJobsError as error:
            _failed(sent, error)
        else:
            sent.id, sent.run, sent.answer = handle.id, handle.run, DUPLICATE if handle.duplicate else CONFIRMED
        sent.answered_at = time.time()

    async def _batch(self, job: PlannedJob) -> None:
        low, high = BATCH
        count = low + int(job.draw * (high - low))
        requests: list[JobRequest[Any]] = [
            tasks.effect.bind(job.number) if n % 2 else tasks.quiet.bind(job.number) for n in range(count)
        ]
        entries = [self._note(job, request.task.queue, request.task.name) for request in requests]
        report = await self._app.enqueue_many(requests)
        for sent, handle in zip(entries, report.handles, strict=True):
            sent.answered_at = time.time()
            if handle is not None:
                sent.id, sent.run, sent.answer = handle.id, handle.run, CONFIRMED
        for refusal in report.refused:
            _failed(entries[refusal.index], refusal.error)

    async def _anonymous(self, job: PlannedJob) -> None:
        task, body, headers = ANONYMOUS[job.kind]
        sent = self._note(job, job.queue, task)
        sent.id = f"anonymous-{job.kind}-{job.number}"
        try:
            subject = f"jobs.work.{job.queue}.normal.{task}"
            answer = await self._js.publish(subject, body, headers={**headers, "Nats-Msg-Id": sent.id})
        except nats.errors.Error as error:
            sent.error = repr(error)
        else:
            sent.sequence, sent.answer = answer.seq, CONFIRMED
        sent.answered_at = time.time()


def _failed(sent: Sent, error: JetJobsError) -> None:
    sent.error = f"{type(error).__name__}: {error}"
    if isinstance(error, EnqueueUnconfirmed):
        sent.id, sent.answer = error.job_id, UNCONFIRMED
    else:
        sent.answer = REFUSED
