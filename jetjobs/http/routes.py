"""The table of calls: dispatch, the OpenAPI document and the test of scopes are made from it."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel
from starlette.responses import Response

from jetjobs.http.calls import dead, enqueue, jobs, queues, schedules
from jetjobs.http.calls.call import Answer
from jetjobs.http.models import admin_answers as b
from jetjobs.http.models import answers as a
from jetjobs.http.models.fields import Query
from jetjobs.model.views.access import ADMIN, OPERATE, READ

PREFIX = "/api/v1"
JSON = "application/json"
EVENTS = "text/event-stream"
ENQUEUE = "enqueue"
"""The call checks `enqueue:TASK` itself."""


class Row:
    """One call. Its query and body are what the operation takes, its description is the docstring."""

    def __init__(
        self,
        method: str,
        path: str,
        scope: str,
        operation: Callable[..., Awaitable[Answer | Response]],
        answers: Mapping[int, Any],
        *,
        media_type: str = JSON,
    ) -> None:
        self.method = method
        self.path = PREFIX + path
        self.scope = scope
        self.operation = operation
        self.answers = answers
        """The models of the answers by status; None without a body."""
        self.media_type = media_type
        hints = typing.get_type_hints(operation)
        self.query: type[BaseModel] = hints.get("query", Query)
        self.body: type[BaseModel] | None = hints.get("body")
        self.takes_query = "query" in hints

    @cached_property
    def name(self) -> str:
        return self.operation.__name__

    @cached_property
    def has_etag(self) -> bool:
        return HTTPStatus.NOT_MODIFIED in self.answers

    def __repr__(self) -> str:
        return f"<Row {self.method} {self.path}>"


TABLE: tuple[Row, ...] = (
    Row("POST", "/jobs", ENQUEUE, enqueue.enqueue, {201: a.EnqueuedJob, 202: a.EnqueuedJob, 200: a.Found}),
    Row("POST", "/jobs:batch", ENQUEUE, enqueue.enqueue_batch, {201: a.BatchReport, 207: a.BatchReport}),
    Row("GET", "/jobs/{id}", READ, jobs.show_job, {200: a.Job, 304: None}),
    Row("GET", "/jobs", READ, jobs.list_jobs, {200: a.JobList}),
    Row("DELETE", "/jobs/{id}", OPERATE, jobs.cancel_job, {200: a.Change, 202: a.Change}),
    Row("POST", "/jobs:cancel", OPERATE, jobs.cancel_jobs, {200: a.BulkChange | a.DryRun}),
    Row("POST", "/jobs/{id}/retry", OPERATE, jobs.retry_job, {200: a.Change}),
    Row("PATCH", "/jobs/{id}", OPERATE, jobs.change_job, {200: a.Change}),
    Row("GET", "/events", READ, jobs.follow_events, {200: a.Event | a.Gap}, media_type=EVENTS),
    Row("GET", "/queues", READ, queues.list_queues, {200: b.QueueList}),
    Row("GET", "/queues/{queue}", READ, queues.show_queue, {200: b.QueueDetails}),
    Row("POST", "/queues/{queue}/pause", OPERATE, queues.pause_queue, {200: b.QueueDetails}),
    Row("POST", "/queues/{queue}/resume", OPERATE, queues.resume_queue, {200: b.QueueResumed}),
    Row("POST", "/queues/{queue}/purge", ADMIN, queues.purge_queue, {200: b.QueuePurged}),
    Row("DELETE", "/queues/{queue}", ADMIN, queues.delete_queue, {200: b.QueueDeleted}),
    Row("GET", "/workers", READ, queues.list_workers, {200: b.WorkerList}),
    Row("GET", "/workers/{worker}", READ, queues.show_worker, {200: b.WorkerDetails}),
    Row("POST", "/workers/{worker}/quiet", OPERATE, queues.quiet_worker, {200: b.WorkerAnswer}),
    Row("POST", "/workers/{worker}/stop", ADMIN, queues.stop_worker, {200: b.WorkerAnswer}),
    Row("GET", "/schedules", READ, schedules.list_schedules, {200: b.ScheduleList}),
    Row("GET", "/schedules:next", READ, schedules.rule_times, {200: b.ScheduledTimes}),
    Row("GET", "/schedules/{schedule}", READ, schedules.show_schedule, {200: b.ScheduleDetails}),
    Row("PUT", "/schedules/{schedule}", OPERATE, schedules.put_schedule, {200: b.Schedule}),
    Row("DELETE", "/schedules/{schedule}", OPERATE, schedules.delete_schedule, {200: b.ScheduleDeleted}),
    Row("GET", "/schedules/{schedule}/next", READ, schedules.schedule_times, {200: b.ScheduledTimes}),
    Row("POST", "/schedules/{schedule}/pause", OPERATE, schedules.pause_schedule, {200: b.Schedule}),
    Row("POST", "/schedules/{schedule}/resume", OPERATE, schedules.resume_schedule, {200: b.Schedule}),
    Row("POST", "/schedules/{schedule}/run", OPERATE, schedules.run_schedule, {201: b.ScheduleRun}),
    Row("GET", "/tasks", READ, schedules.list_tasks, {200: b.TaskList}),
    Row("GET", "/tasks/{task}", READ, schedules.show_task, {200: b.TaskDetails}),
    Row("GET", "/dead", READ, dead.list_letters, {200: b.DeadLetterList}),
    Row("GET", "/dead:groups", READ, dead.group_letters, {200: b.DeadLetterGroups}),
    Row("GET", "/dead/{id}", READ, dead.show_letter, {200: b.DeadLetter}),
    Row("POST", "/dead:replay", OPERATE, dead.replay_letters, {200: b.Replayed | b.DeadLetterDryRun}),
    Row("POST", "/dead:delete", ADMIN, dead.delete_letters, {200: b.DeadLettersDeleted | b.DeadLetterDryRun}),
)
