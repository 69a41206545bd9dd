"""Write dead letters as a worker does, without failing jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from jetjobs import JetJobs
from jetjobs.admin import DeadLetter
from jetjobs.jetstream.jobs.dead_letters import NewDeadLetter
from jetjobs.model.job import Job
from jetjobs.model.outcome import DeadLettered, DeadReason, ErrorInfo
from jetjobs.model.wire.ids import new_run, new_uid, parse_id


async def bury(
    app: JetJobs,
    task: str,
    bodies: Sequence[bytes],
    *,
    queue: str = "default",
    ids: Sequence[str] | None = None,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> list[str]:
    """Write one letter per body. Returns the job ids."""
    names = list(ids) if ids is not None else [new_uid() for _ in bodies]
    lane = asyncio.Semaphore(50)
    cause = DeadLettered(DeadReason.EXHAUSTED, ErrorInfo("LookupError", "no such thing", "Traceback"))

    async def one(job_id: str, body: bytes) -> None:
        key = parse_id(job_id).key
        job = Job(job_id, task, queue, "normal", body, key, run=new_run(), headers=dict(headers or {}), **fields)
        origin = f"{app.jetstream.names.job(queue, 'normal', task, key, job.uid)} 7"
        async with lane:
            letter = NewDeadLetter(job, cause, origin, "somewhere", time.time())
            await app.jetstream.dead.add(letter, 20.0, lambda: True)

    await asyncio.gather(*(one(job_id, body) for job_id, body in zip(names, bodies, strict=True)))
    return names


async def letter_of(app: JetJobs, job_id: str, **place: str) -> DeadLetter:
    """The letter of a job; AssertionError when there is none."""
    letter = await app.dead.get(job_id, **place)
    assert letter is not None, f"no letter of {job_id}"
    return letter
