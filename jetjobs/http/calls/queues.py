"""Queues and workers over HTTP: list, show and change them."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from jetjobs.http.calls.call import Answer, Call
from jetjobs.http.models.admin_requests import DeleteQuery, PauseBody, PurgeBody, ReasonBody, StopBody, WorkerQuery
from jetjobs.http.problems import Problem
from jetjobs.model.errors import QueueNotFound, WorkerNotFound
from jetjobs.model.views.worker_info import WorkerRecord


async def list_queues(call: Call) -> Answer:
    """List all queues with their counts and rates."""
    found = await call.app.queues.list()
    items = [queue.summary() for queue in found if call.access.sees(queue.queue)]
    return Answer(HTTPStatus.OK, {"items": items, "cursor": None})


async def show_queue(call: Call) -> Answer:
    """Show one queue with its lanes and its pause."""
    return Answer(HTTPStatus.OK, (await call.app.queues.get(_queue(call))).as_dict())


async def pause_queue(call: Call, body: PauseBody) -> Answer:
    """Start no jobs of a queue, for a time or until it is resumed. Running jobs finish."""
    found = await call.app.queues.pause(_queue(call), for_=body.for_, reason=body.reason, by=call.by)
    return Answer(HTTPStatus.OK, found.as_dict())


async def resume_queue(call: Call, body: ReasonBody) -> Answer:
    """Start jobs of a paused queue again."""
    queue = _queue(call)
    resumed = await call.app.queues.resume(queue, by=call.by, reason=body.reason)
    return Answer(HTTPStatus.OK, {"queue": queue, "resumed": resumed})


async def purge_queue(call: Call, body: PurgeBody) -> Answer:
    """Permanently delete the waiting jobs of a queue. Running jobs and dead letters stay."""
    queue = _queue(call)
    purged = await call.app.queues.purge(queue, scheduled=body.scheduled, by=call.by, reason=body.reason)
    return Answer(HTTPStatus.OK, {"queue": queue, **purged.as_dict()})


async def delete_queue(call: Call, query: DeleteQuery) -> Answer:
    """Permanently delete a queue that is no longer used.

    409 while it holds jobs or dead letters, or workers or schedules use it; `force` deletes it with them.
    """
    queue = _queue(call)
    found = await call.app.queues.delete(queue, force=query.force, by=call.by, reason=query.reason)
    jobs = found.queued + found.running + found.scheduled + found.retrying
    return Answer(HTTPStatus.OK, {"queue": queue, "jobs": jobs, "dead": found.dead})


def _queue(call: Call) -> str:
    return call.check_visible(call.path["queue"])


# Workers


async def list_workers(call: Call, query: WorkerQuery) -> Answer:
    """List running workers."""
    found = await call.app.workers.list(query.queue)
    if query.queue is not None:
        call.check_visible(query.queue)
        if not found and query.queue not in await call.app.queues.names():
            raise QueueNotFound(f"queue {query.queue!r} does not exist")
    items = [record.summary() for record in found if _is_visible(call, record)]
    return Answer(HTTPStatus.OK, {"items": items, "cursor": None})


async def show_worker(call: Call) -> Answer:
    """Show one worker: its slots, tasks and running jobs."""
    record = (await _worker(call)).as_dict()
    record["running"] = [job for job in record["running"] if call.access.sees(job["queue"])]
    return Answer(HTTPStatus.OK, record)


async def quiet_worker(call: Call, body: ReasonBody) -> Answer:
    """Let a worker take no new jobs. It finishes its running jobs and stays until it is stopped."""
    record = await _own_worker(call)
    return _answered(record, await call.app.workers.quiet(record.key, by=call.by, reason=body.reason))


async def stop_worker(call: Call, body: StopBody) -> Answer:
    """Stop a worker gracefully, or at once with `now`. A process supervisor may start it again."""
    record = await _own_worker(call)
    answer = await call.app.workers.stop(record.key, now=body.now, by=call.by, reason=body.reason)
    return _answered(record, answer)


def _is_visible(call: Call, record: WorkerRecord) -> bool:
    return call.access.queues is None or not call.access.queues.isdisjoint(record.queues)


async def _worker(call: Call) -> WorkerRecord:
    name = call.path["worker"]
    record = await call.app.workers.get(name)
    if not _is_visible(call, record):
        raise WorkerNotFound(f"no running worker {name!r}", hint="GET /api/v1/workers lists them")
    return record


async def _own_worker(call: Call) -> WorkerRecord:
    """The worker, if all its queues are the caller's: a change of it concerns all of them."""
    record = await _worker(call)
    for queue in sorted(record.queues):
        call.require_queue(queue)
    return record


def _answered(record: WorkerRecord, answer: dict[str, Any]) -> Answer:
    if not answer.get("ok"):
        text = f"worker {record.key}: {answer.get('error', 'no reason given')}"
        raise Problem(HTTPStatus.BAD_GATEWAY, "worker_refused", text)
    return Answer(HTTPStatus.OK, {"worker": record.key, "ok": True, "phase": str(answer.get("phase", ""))})
