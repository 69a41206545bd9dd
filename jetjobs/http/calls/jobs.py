"""Show, list, cancel, retry and move jobs over HTTP."""

from __future__ import annotations

from jetjobs.http.calls.call import Answer, Call, read_wait
from jetjobs.http.calls.enqueue import job_answer
from jetjobs.http.models.requests import JobLookup


async def show_job(call: Call, query: JobLookup) -> Answer:
    """Show a job. With `wait`, when it has ended or the time is up."""
    wait_s = read_wait(call, query.wait)
    queue, task = await call.place(call.path["id"], query.queue, query.task)
    end = None
    if wait_s:
        end = await call.wait(await call.app.job(call.path["id"], queue=queue, task=task), wait_s)
    return await job_answer(call, call.path["id"], queue, task, end)
