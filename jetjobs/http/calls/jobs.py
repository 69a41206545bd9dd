"""Show, list, cancel, retry and move jobs over HTTP, and follow their events."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from sse_starlette import EventSourceResponse

from jetjobs.admin.changes.bulk_changes import MatchingJob, Tally, find_matches
from jetjobs.http.calls.call import MAX_WAIT_S, Answer, Call, read_wait
from jetjobs.http.calls.enqueue import check_future, job_answer
from jetjobs.http.models.admin_requests import EventQuery
from jetjobs.http.models.requests import (
    Cancellation,
    CancelQuery,
    JobChange,
    JobListQuery,
    JobLookup,
    Place,
    RetryBody,
)
from jetjobs.http.problems import Problem
from jetjobs.model.errors import JobNotFound
from jetjobs.model.job import JobState
from jetjobs.model.views.audit import filter_text
from jetjobs.model.views.dead_letter import ReplayAnswer, ReplayOutcome
from jetjobs.model.views.job_changes import CancelAnswer, CancelOutcome, MoveAnswer, MoveOutcome
from jetjobs.model.views.job_query import LIVE
from jetjobs.model.wire.validation import check_queue, check_task

CANCEL_WAIT_S = 10.0
"""How long a cancel waits for a running job to end, as on the command line."""


async def show_job(call: Call, query: JobLookup) -> Answer:
    """Show a job.

    Everything that is known about it, until its record expires. With `wait`, the answer comes when the job has
    ended or the time is up.
    """
    wait_s = read_wait(call, query.wait)
    queue, task = await call.place(call.path["id"], query.queue, query.task)
    end = None
    if wait_s:
        end = await call.wait(await call.app.job(call.path["id"], queue=queue, task=task), wait_s)
    return await job_answer(call, call.path["id"], queue, task, end)


async def list_jobs(call: Call, query: JobListQuery) -> Answer:
    """List jobs by state, oldest first within each.

    Without a state, all live jobs are listed. `cursor` continues a list with the same filters.
    """
    if query.queue is not None:
        call.check_visible(query.queue)
    wanted = query.job_query(query.key)
    page = await call.app.jobs.page(wanted, limit=query.limit, cursor=query.cursor, within=call.access.queues)
    return Answer(HTTPStatus.OK, page.as_dict())


async def cancel_job(call: Call, query: CancelQuery) -> Answer:
    """Cancel a job in any state.

    200 if it is cancelled, 202 if it has not stopped yet or that could not be confirmed, 409 if it had ended.
    Safe to repeat. `wait` is how long to wait for a running job to end; 10s by default.
    """
    seconds = CANCEL_WAIT_S if query.wait is None else read_wait(call, query.wait, needs_read=False)
    queue, task = await call.place(call.path["id"], query.queue, query.task)
    answer = await call.app.jobs.cancel(
        call.path["id"], queue=queue, task=task, by=call.by, reason=query.reason, timeout=min(seconds, MAX_WAIT_S)
    )
    if answer.outcome is CancelOutcome.ENDED:
        raise _conflict(answer)
    done = answer.outcome is CancelOutcome.CANCELLED
    return Answer(HTTPStatus.OK if done else HTTPStatus.ACCEPTED, answer.as_dict())


async def cancel_jobs(call: Call, body: Cancellation) -> Answer:
    """Cancel all live jobs that match.

    `dry_run` only counts them. The answer comes when all of them were asked to stop.
    """
    if body.queue is not None:
        call.check_visible(body.queue)
    app = call.app
    query = body.job_query()
    matches = await find_matches(app.jobs, query, LIVE, call.access.queues)
    if body.dry_run:
        return Answer(HTTPStatus.OK, matches.dry_run())

    async def cancel(one: MatchingJob) -> CancelAnswer:
        return await app.jobs.cancel(
            one.id, queue=one.queue, task=one.task, by=call.by, reason=body.reason, timeout=CANCEL_WAIT_S
        )

    tally = Tally(len(matches.jobs))
    async with app.audit.together("job.cancel", filter_text(query), by=call.by, reason=body.reason):
        await tally.change_all(matches.jobs, cancel)
    return Answer(HTTPStatus.OK, tally.as_dict(complete=True))


async def retry_job(call: Call, query: Place, body: RetryBody) -> Answer:
    """Replay a dead job, or run a scheduled or retrying one now.

    `args` and `queue` replace those of a dead job. 409 for a job that is queued or running, or has ended.
    """
    job_id = call.path["id"]
    queue, task = await call.place(job_id, query.queue, query.task)
    status = await call.app.jobs.get(job_id, queue=queue, task=task)
    if status.state is JobState.DEAD:
        return await _replay(call, queue, task, body)
    if body.args is not None or body.queue is not None:
        text = f"args and queue are for a dead job; this one is {status.state}"
        raise Problem(HTTPStatus.CONFLICT, "conflict", text, state=status.state)
    answer = await call.app.jobs.run_now(job_id, queue=queue, task=task, by=call.by, reason=body.reason)
    return _moved(answer)


async def change_job(call: Call, query: Place, body: JobChange) -> Answer:
    """Change when a waiting job runs, or its priority."""
    job_id = call.path["id"]
    queue, task = await call.place(job_id, query.queue, query.task)
    where: dict[str, Any] = {"queue": queue, "task": task, "by": call.by, "reason": body.reason}
    if body.priority is not None:
        return _moved(await call.app.jobs.set_priority(job_id, body.priority, **where))
    if body.run_at is not None:
        check_future("run_at", body.run_at)
    return _moved(await call.app.jobs.reschedule(job_id, body.run_at, delay=body.delay, **where))


# Parts


async def _replay(call: Call, queue: str, task: str, body: RetryBody) -> Answer:
    job_id = call.path["id"]
    if body.queue is not None:
        call.require_queue(check_queue(body.queue))
    if body.args is not None:
        check_task(task)  # other arguments of a webhook would be signed
    dead = await call.dead_letters()
    letter = await dead.get(job_id, queue=queue, task=task)
    if letter is None:
        raise JobNotFound(f"no dead letter of job {job_id}: it was just replayed or deleted", job_id=job_id)
    answer = await dead.replay(letter, by=call.by, reason=body.reason, to_queue=body.queue, arguments=body.args)
    if answer.outcome is ReplayOutcome.REFUSED:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "refused", answer.why, job_id=job_id)
    if answer.outcome in (ReplayOutcome.ALIVE, ReplayOutcome.GONE):
        raise Problem(
            HTTPStatus.CONFLICT, "conflict", answer.why or "it was just replayed or deleted", job_id=job_id
        )
    return Answer(HTTPStatus.OK, _replayed(answer))


def _replayed(answer: ReplayAnswer) -> dict[str, Any]:
    """A replay in the form of other changes."""
    return {
        "id": answer.letter.id,
        "outcome": answer.outcome.value,
        "state": JobState.QUEUED.value,
        "detail": answer.why,
    }


def _moved(answer: MoveAnswer) -> Answer:
    if answer.outcome in (MoveOutcome.TOO_LATE, MoveOutcome.ENDED):
        raise _conflict(answer)
    return Answer(HTTPStatus.OK, answer.as_dict())


def _conflict(answer: CancelAnswer | MoveAnswer) -> Problem:
    text = f"job {answer.job_id}: {answer.detail or answer.outcome}"
    outcome, state = answer.outcome.value, answer.state
    return Problem(HTTPStatus.CONFLICT, "conflict", text, job_id=answer.job_id, outcome=outcome, state=state)


# Events


async def follow_events(call: Call, query: EventQuery) -> EventSourceResponse:
    """Follow events of jobs and workers as server-sent events.

    A client that connects again with `Last-Event-ID` gets what it has missed, as far as it is among the last 1,000
    events of this process; otherwise it gets one event `gap` first. Progress comes only if `kind` selects it.
    """
    return await call.services.feed.response(call.access, query, call.headers.get("last-event-id"), call.renew)
