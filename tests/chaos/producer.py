"""Enqueue the planned jobs at their times, record the answers, and ask about some of the jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
from nats.aio.client import Client

from jetjobs import JetJobs, JetJobsError, JobRequest
from jetjobs.errors import EnqueueUnconfirmed
from jetjobs.model.durations import to_duration
from tests.chaos import clock, tasks
from tests.chaos.asker import ASKED, HURRIED_S, POSTPONED_S, Asker
from tests.chaos.history import CONFIRMED, DUPLICATE, REFUSED, UNCONFIRMED, History, Sent
from tests.chaos.plan import BATCH, PlannedJob

KEYS = 5
FAR = timedelta(hours=2)
LARGE = 2_000_000

Make = Callable[[PlannedJob], JobRequest[Any]]


def number_of(job: PlannedJob, index: int = 0) -> int:
    """The argument `n`: no two jobs have the same, not even within a batch."""
    return job.number * 100 + index


def _soon(job: PlannedJob, most_s: float) -> datetime:
    # The time of the run, not of this process: a caller with a wrong clock would ask for another moment.
    return datetime.fromtimestamp(clock.now(), UTC) + timedelta(seconds=job.draw * most_s)


def _to_cancel(job: PlannedJob) -> JobRequest[Any]:
    """Running or queued when it is cancelled; one in four still waits for its due time."""
    task = tasks.effect.options(queue=job.queue)
    if job.draw < 0.25:
        task = tasks.effect.options(queue=job.queue, delay=timedelta(seconds=6))
    return task.bind(number_of(job), 0.5 + 2.5 * job.draw)


MAKERS: dict[str, Make] = {
    "plain": lambda j: tasks.effect.options(queue=j.queue).bind(number_of(j), j.draw * 0.1),
    "quiet": lambda j: tasks.quiet.options(queue=j.queue).bind(number_of(j), j.draw * 0.1),
    "high": lambda j: tasks.effect.options(queue=j.queue, priority="high").bind(number_of(j)),
    "low": lambda j: tasks.quiet.options(queue=j.queue, priority="low").bind(number_of(j)),
    "delayed": lambda j: tasks.effect.options(delay=timedelta(seconds=j.draw * 5)).bind(number_of(j)),
    "run_at": lambda j: tasks.quiet.options(run_at=_soon(j, 5), queue=j.queue).bind(number_of(j)),
    "far": lambda j: tasks.effect.options(delay=FAR, queue=j.queue).bind(number_of(j)),
    "keyed": lambda j: tasks.effect.options(key=f"key {int(j.draw * KEYS)}").bind(
        number_of(j), 0.1 + j.draw * 0.5
    ),
    "flaky": lambda j: tasks.flaky.options(queue=j.queue).bind(number_of(j), 1 + int(j.draw * 3)),
    "patient": lambda j: tasks.patient.options(queue=j.queue).bind(number_of(j), 1 + int(j.draw * 2)),
    "cancelled": _to_cancel,
    "hurried": lambda j: tasks.effect.options(delay=HURRIED_S, queue=j.queue).bind(number_of(j)),
    "postponed": lambda j: tasks.effect.options(delay=POSTPONED_S, queue=j.queue).bind(number_of(j)),
    "awaited": lambda j: tasks.effect.options(queue=j.queue).bind(number_of(j), j.draw),
    "doomed": lambda j: tasks.doomed.bind(number_of(j)),
    "reject": lambda j: tasks.reject.options(queue=j.queue).bind(number_of(j)),
    "snooze": lambda j: tasks.snooze.bind(number_of(j), 1 + int(j.draw * 3)),
    "thread": lambda j: tasks.thread.options(queue=j.queue).bind(number_of(j), j.draw),
    "slow": lambda j: tasks.effect.options(queue=j.queue).bind(number_of(j), 1.0 + 3.0 * j.draw),
    "slow_quiet": lambda j: tasks.quiet.bind(number_of(j), 1.0 + 3.0 * j.draw),
    "slow_flaky": lambda j: tasks.flaky.options(queue=j.queue).bind(number_of(j), 1, 0.5 + 2.5 * j.draw),
    "slow_doomed": lambda j: tasks.doomed.bind(number_of(j), 0.2 + j.draw),
    "block": lambda j: tasks.block.bind(number_of(j), 0.2 + 2.6 * j.draw**2),
    "expiring": lambda j: tasks.effect.options(deadline=_soon(j, 3), queue=j.queue).bind(number_of(j), 0.3),
    "poison": lambda j: tasks.poison.bind(number_of(j)),
    "large": lambda j: tasks.large.bind(number_of(j), "x" * LARGE),
    "isolated": lambda j: tasks.isolated.bind(number_of(j), j.draw * 2.0),
    "poison_in_child": lambda j: tasks.poison_in_child.bind(number_of(j)),
}
ANONYMOUS: dict[str, tuple[str, str, dict[str, str]]] = {
    "anonymous": ("effect", '{"n": %d}', {}),
    "newcomer": ("effect", '{"n": %d, "seconds": 2.5}', {}),
    "bad_body": ("effect", "not JSON %d", {}),
    "bad_header": ("effect", '{"n": %d}', {"Jetjobs-Attempt": "many"}),
    "no_task": ("no_such_task", '{"n": %d}', {}),
}
"""Task, body with the job's number, and headers."""


class Producer:
    """Enqueues through the app, and anonymous jobs through a plain client, both over the producer's link."""

    def __init__(self, app: JetJobs, plain: Client, history: History, asker: Asker | None = None) -> None:
        self._app = app
        self._asker = asker
        self._js = plain.jetstream(timeout=5)
        self._history = history
        self._under_way: set[asyncio.Task[None]] = set()

    async def run(self, jobs: list[PlannedJob], started: float) -> None:
        """Send each job at its time, without waiting for earlier ones."""
        for job in jobs:
            await asyncio.sleep(max(0.0, started + job.at - clock.now()))
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

    def _note(self, job: PlannedJob, queue: str, task: str, index: int = 0) -> Sent:
        sent = Sent(job.kind, number_of(job, index), queue, task, clock.now())
        self._history.sent.append(sent)
        return sent

    async def _one(self, job: PlannedJob) -> None:
        request = MAKERS[job.kind](job)
        options = request.options
        sent = self._note(job, options.get("queue", request.task.queue), request.task.name)
        if "delay" in options:
            sent.due_at = sent.at + to_duration("delay", options["delay"]).total_seconds()
        elif "run_at" in options:
            sent.due_at = options["run_at"].timestamp()
        sent.deadline = options["deadline"].timestamp() if "deadline" in options else 0.0
        try:
            handle = await request.task.send(request)
        except JetJobsError as error:
            _failed(sent, error)
        else:
            sent.id, sent.run, sent.answer = handle.id, handle.run, DUPLICATE if handle.duplicate else CONFIRMED
            if self._asker is not None and job.kind in ASKED and not handle.duplicate:
                sent.answered_at = clock.now()
                await self._asker.ask(job, sent, handle)
                return
        sent.answered_at = clock.now()

    async def _batch(self, job: PlannedJob) -> None:
        low, high = BATCH
        count = low + int(job.draw * (high - low))
        requests: list[JobRequest[Any]] = [
            (tasks.effect if n % 2 else tasks.quiet).bind(number_of(job, n)) for n in range(count)
        ]
        entries = [self._note(job, request.task.queue, request.task.name, n) for n, request in enumerate(requests)]
        report = await self._app.enqueue_many(requests)
        for sent, handle in zip(entries, report.handles, strict=True):
            sent.answered_at = clock.now()
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
            answer = await self._js.publish(
                subject, (body % sent.number).encode(), headers={**headers, "Nats-Msg-Id": sent.id}
            )
        except nats.errors.Error as error:
            sent.error = repr(error)
        else:
            sent.sequence, sent.answer = answer.seq, CONFIRMED
        sent.answered_at = clock.now()


def _failed(sent: Sent, error: JetJobsError) -> None:
    sent.error = f"{type(error).__name__}: {error}"
    if isinstance(error, EnqueueUnconfirmed):
        sent.id, sent.answer = error.job_id, UNCONFIRMED
    else:
        sent.answer = REFUSED
