"""Enqueue one job or a batch over HTTP."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from jetjobs.define.handle import JobHandle
from jetjobs.define.options import EnqueueOptions, checked_options
from jetjobs.define.task import JobRequest
from jetjobs.enqueue import Identity, queue_not_found
from jetjobs.http.calls.call import Answer, Call, End, missing_scope, read_wait, unprocessable
from jetjobs.http.models.requests import Batch, EnqueueQuery, NewJob
from jetjobs.http.problems import Problem, code_of, field_errors, problem_of
from jetjobs.http.producer import is_repeat
from jetjobs.model.errors import (
    EnqueueUnconfirmed,
    InvalidArguments,
    JobAmbiguous,
    JobNotFound,
    QueueNotFound,
    TopologyMissing,
    UnknownTask,
)
from jetjobs.model.job import FINAL, JobState
from jetjobs.model.views.access import READ
from jetjobs.model.wire.ids import request_id, request_run
from jetjobs.model.wire.validation import check_queue, check_task

KEEP_S = 3600
"""How long the record of a job with an `Idempotency-Key` is kept at least, so that a repeat finds it."""
MAX_IDEMPOTENCY_KEY = 255


async def enqueue(call: Call, query: EnqueueQuery, body: NewJob) -> Answer:
    """Enqueue a job.

    201 with the new job. A live job with the same `key`, or the job of the same `Idempotency-Key`: 200 with that
    job. With `wait`: 200 with the job when it has ended in time, otherwise 202.
    """
    wait_s = read_wait(call, query.wait)
    identity = _identity(call, body)
    try:
        request = await _request(call, body)
    except Problem as problem:
        # A repeat is answered with its job, even if its time has passed or its task is no longer known.
        repeated = None if identity is None or problem.status != 422 else await _repeated(call, identity)
        if repeated is None:
            raise
        handle = repeated
    else:
        handle = await _store(call, request, identity)
    end = await call.wait(handle, wait_s)
    known = handle.duplicate and call.access.may(READ)
    if end is not None or (known and (not wait_s or await _has_ended(handle))):
        return await job_answer(call, handle.id, handle.queue, handle.task, end)
    status = HTTPStatus.ACCEPTED if wait_s else HTTPStatus.OK if handle.duplicate else HTTPStatus.CREATED
    return Answer(status, await _enqueued(call, handle, body), _location(call, handle))


async def _has_ended(handle: JobHandle[Any]) -> bool:
    return (await handle.status()).state in FINAL


def _identity(call: Call, body: NewJob) -> Identity | None:
    """What makes a repeat of the request the same job; None without an `Idempotency-Key`."""
    key = call.headers.get("idempotency-key")
    if key is None:
        return None
    if body.key is not None or not (0 < len(key) <= MAX_IDEMPOTENCY_KEY and key.isascii() and key.isprintable()):
        raise _invalid_idempotency_key(body)
    content = json.dumps(body.model_dump(mode="json"), sort_keys=True).encode()
    return Identity(request_id(call.access.name, key), request_run(content), KEEP_S)


async def _repeated(call: Call, identity: Identity) -> JobHandle[Any] | None:
    """The job that this request has stored before."""
    try:
        handle = await call.app.job(identity.job_id)
    except (JobNotFound, JobAmbiguous):
        return None
    status = await handle.status()
    stored = call.access.sees(handle.queue) and is_repeat(status.run, status.replays, identity.run)
    return handle if stored else None


async def _store(call: Call, request: JobRequest[Any], identity: Identity | None) -> JobHandle[Any]:
    producer = call.services.producer(call.access.name)
    try:
        return await (producer.send(request) if identity is None else producer.send_once(request, identity))
    except QueueNotFound as error:
        raise unprocessable(error, "queue") from error
    except TopologyMissing as error:  # looking for the job, before it is stored
        queue = request.options.get("queue", request.task.queue)
        raise unprocessable(queue_not_found(queue, error), "queue") from error


def _invalid_idempotency_key(body: NewJob) -> Problem:
    text = f"invalid Idempotency-Key: use 1 to {MAX_IDEMPOTENCY_KEY} printable ASCII characters"
    if body.key is not None:
        text = "give an Idempotency-Key or a key, not both"
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_header", text)


async def enqueue_batch(call: Call, body: Batch) -> Answer:
    """Enqueue up to 1,000 jobs, with one answer for each.

    Plain jobs of one queue are stored together or not at all; jobs with a `key` one by one. 201 if all are stored,
    207 if some are not. If one of them is invalid, none is stored.
    """
    if "idempotency-key" in call.headers:
        raise Problem(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            "invalid_header",
            "a batch takes no Idempotency-Key",
            hint="give its jobs a key, or enqueue them one by one",
        )
    requests = [await _request(call, job, ("jobs", number)) for number, job in enumerate(body.jobs)]
    report = await call.services.producer(call.access.name).send_many(requests)
    errors = {refusal.index: refusal.error for refusal in report.refused}
    if len(errors) == len(requests):
        raise problem_of(report.refused[0].error)
    items = []
    for number, (request, entry) in enumerate(zip(requests, report.entries, strict=True)):
        error = errors.get(number)
        items.append(
            {
                "id": entry.job_id if entry else error.job_id if isinstance(error, EnqueueUnconfirmed) else None,
                "queue": request.options.get("queue", request.task.queue),
                "task": request.task.name,
                "duplicate": entry.duplicate if entry else False,
                "error": error and {"code": code_of(error), "detail": str(error), "hint": error.hint},
            }
        )
    duplicates = sum(bool(item["duplicate"]) for item in items)
    counts = {"stored": len(items) - len(errors) - duplicates, "duplicates": duplicates, "refused": len(errors)}
    return Answer(HTTPStatus.MULTI_STATUS if errors else HTTPStatus.CREATED, {**counts, "items": items})


async def job_answer(call: Call, job_id: str, queue: str, task: str, end: End | None) -> Answer:
    """200 with the job as `GET /jobs/{id}` shows it, with the whole result if it has just been awaited."""
    status = await call.app.jobs.get(job_id, queue=queue, task=task)
    job = status.as_dict()
    if end is not None and status.state is JobState.SUCCEEDED:
        job["result"] = end.result
    return Answer(HTTPStatus.OK, job)


# Parts


async def _request(call: Call, job: NewJob, place: tuple[str | int, ...] = ()) -> JobRequest[Any]:
    """The checked request. Problem 403 for a task or queue that the caller may not use, 422 for invalid values."""
    if not call.access.may_enqueue(job.task):
        raise missing_scope(call.access, f"enqueue:{job.task}")
    check_task(job.task)
    try:
        task = await call.services.catalog.resolve(job.task)
    except UnknownTask as error:
        raise unprocessable(error, *place, "task") from error
    call.require_queue(check_queue(job.queue or task.queue))
    for name, moment in (("run_at", job.run_at), ("deadline", job.deadline)):
        if moment is not None:
            check_future(name, moment, place)
    options: EnqueueOptions = checked_options(job.options())  # type: ignore[arg-type]
    try:
        return task.request(options, (), job.args)
    except InvalidArguments as error:
        problem = problem_of(error)
        if place:
            prefix = ".".join(map(str, place))
            problem.members["errors"] = [
                {**one, "field": f"{prefix}.{one['field']}"} for one in problem.members["errors"]
            ]
        raise problem from error


def check_future(name: str, moment: datetime, place: tuple[str | int, ...] = ()) -> None:
    """Problem 422 for a time that has passed: the caller has made a mistake, or is too late."""
    if moment >= datetime.now(UTC):
        return
    errors = field_errors([((*place, name), "is in the past")])
    text = f"invalid body: {name} is in the past"
    raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "invalid_body", text, errors=errors)


async def _enqueued(call: Call, handle: JobHandle[Any], body: NewJob) -> dict[str, Any]:
    due_at = body.run_at
    if body.delay is not None:
        due_at = datetime.now(UTC) + body.delay
    state: JobState | None = JobState.SCHEDULED if due_at is not None else JobState.QUEUED
    if handle.duplicate:
        status = await handle.status()
        state, due_at = status.state, status.due_at if status.state is JobState.SCHEDULED else None
    if due_at is None and state is JobState.QUEUED:
        due_at = await call.services.start_times.estimate(handle.queue)
    return {
        "id": handle.id,
        "queue": handle.queue,
        "task": handle.task,
        "duplicate": handle.duplicate,
        "state": state or JobState.SUCCEEDED,  # ended since, and its record is gone
        "estimated_start": None if due_at is None else due_at.isoformat(),
    }


def _location(call: Call, handle: JobHandle[Any]) -> Mapping[str, str]:
    return {"Location": f"{call.root}/api/v1/jobs/{handle.id}"}
