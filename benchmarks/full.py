"""A server with many jobs in every state: queued, scheduled, running, succeeded, cancelled and dead."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from jetjobs import JetJobs, JobState, Task
from jetjobs.define.task import JobRequest
from jetjobs.dev_server import EmbeddedServer
from jetjobs.jetstream.jobs.dead_letters import NewDeadLetter
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo
from jetjobs.model.settings import build_settings
from jetjobs.model.wire.ids import new_run, new_uid
from jetjobs.worker.worker import running

QUEUED, DEAD = 200_000, 50_000
QUEUES = ("mail", "images", "reports", "billing", "imports")
BUSY = QUEUES[0]
"""The queue that is drained and filled again."""
COMMON, RARE, NONE = "resize", "invoice", "absent"
RARE_LETTERS = 10
_CHUNK = 10_000
_AT_ONCE = 200
_HOUR = timedelta(hours=1)

app = JetJobs("full")
held = asyncio.Event()
"""Ends the one running job."""


def _declare(queue: str) -> Task[[int], int]:
    @app.task(name=f"work-{queue}", queue=queue)
    async def work(i: int) -> int:
        return i

    return work


works = {queue: _declare(queue) for queue in QUEUES}


@app.task(queue=QUEUES[1])
async def hold() -> None:
    """Run until `held` is set."""
    await held.wait()


@dataclass(slots=True)
class Full:
    """The server, the number of jobs on it, and ids of jobs by state."""

    server: EmbeddedServer
    queued: int
    dead: int
    ids: dict[str, list[str]] = field(default_factory=dict)

    def note(self, state: str, found: Sequence[str]) -> None:
        """Keep about ten of the ids, evenly spaced."""
        self.ids[state] = list(found[:: max(1, len(found) // 10)])


@asynccontextmanager
async def full(scale: float) -> AsyncIterator[Full]:
    """Fill a server. While the block runs, the app is open and one job occupies the only slot of a worker."""
    with EmbeddedServer() as server:
        app.configure(build_settings({"nats": {"url": server.url}}))
        there = Full(server, int(QUEUED * scale), int(DEAD * scale))
        async with app:
            await app.provision(QUEUES)
            await _finish(there, int(2_000 * scale))
            job = await hold.enqueue()
            async with running(app.worker(queues={hold.queue: None}, slots=1, name="holder")):
                async with asyncio.timeout(30):
                    while (await app.jobs.get(job.id)).state is not JobState.RUNNING:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
                there.note("running", [job.id])
                await _wait(there, int(2_000 * scale))
                await _bury(there)
                try:
                    yield there
                finally:
                    held.set()


async def store(requests: list[JobRequest[int]]) -> list[str]:
    """Enqueue all requests. Returns the job ids."""
    ids = []
    for first in range(0, len(requests), _CHUNK):
        report = await app.enqueue_many(requests[first : first + _CHUNK])
        if report.refused:
            raise RuntimeError(f"{len(report.refused)} jobs were refused: {report.refused[0].error}")
        ids += [handle.id for handle in report.stored]
    return ids


async def _finish(there: Full, count: int) -> None:
    for queue, work in works.items():
        there.note(f"done, {queue}", await store([work.bind(i) for i in range(count)]))
    await app.worker(queues=dict.fromkeys(QUEUES), slots=200, max_jobs=count * len(QUEUES)).run()


async def _wait(there: Full, later: int) -> None:
    for queue, work in works.items():
        share = there.queued // len(QUEUES)
        special = share // 20
        jobs = [work.bind(i) for i in range(share - 3 * special)]
        jobs += [work.options(priority="high").bind(i) for i in range(special)]
        jobs += [work.options(priority="low").bind(i) for i in range(special)]
        there.note(f"queued, {queue}", await store(jobs))
        there.note(
            f"queued with key, {queue}", await store([work.options(key=f"n{i}").bind(i) for i in range(special)])
        )
        there.note(f"later, {queue}", await store([work.options(delay=_HOUR).bind(i) for i in range(later)]))
        gone = await store([work.options(delay=_HOUR).bind(i) for i in range(2)])
        for job_id in gone:
            await app.jobs.cancel(job_id)
        there.ids.setdefault("cancelled", []).extend(gone)


async def _bury(there: Full) -> None:
    """Write dead letters as a worker does, of several tasks in random order."""
    others = there.dead // 5
    tasks = [COMMON] * (there.dead - others - RARE_LETTERS) + ["scan"] * others + [RARE] * RARE_LETTERS
    random.Random(4).shuffle(tasks)
    trace = "".join(f'  File "/srv/app/jobs.py", line {line}, in step\n' for line in range(20))
    cause = DeadLettered(DeadReason.EXHAUSTED, ErrorInfo("LookupError", "no such thing", trace))
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int, task: str) -> str:
        queue = QUEUES[number % len(QUEUES)]
        job = Job(new_uid(), task, queue, "normal", b'{"i":%d}' % number, run=new_run())
        origin = f"{app.jetstream.names.job(queue, 'normal', task, job.key, job.uid)} {number}"
        async with gate:
            await app.jetstream.dead.add(
                NewDeadLetter(job, cause, origin, "bench", time.time()), 20.0, lambda: True
            )
        return job.id

    ids = []
    for first in range(0, len(tasks), _CHUNK):
        part = enumerate(tasks[first : first + _CHUNK], first)
        ids += await asyncio.gather(*(one(number, task) for number, task in part))
    there.note("dead", ids)
