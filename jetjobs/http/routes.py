"""The table of calls: dispatch, the OpenAPI document and the test of scopes are made from it."""

from __future__ import annotations

import typing
from collections.abc import Awaitable, Callable, Mapping
from functools import cached_property
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from jetjobs.http.calls import enqueue, jobs
from jetjobs.http.calls.call import Answer
from jetjobs.http.models import answers as a
from jetjobs.http.models.fields import Query
from jetjobs.model.views.access import READ

PREFIX = "/api/v1"
ENQUEUE = "enqueue"
"""The call checks `enqueue:TASK` itself."""


class Row:
    """One call. Its query and body are what the operation takes, its description is the docstring."""

    def __init__(
        self,
        method: str,
        path: str,
        scope: str,
        operation: Callable[..., Awaitable[Answer]],
        answers: Mapping[int, Any],
    ) -> None:
        self.method = method
        self.path = PREFIX + path
        self.scope = scope
        self.operation = operation
        self.answers = answers
        """The models of the answers by status; None without a body."""
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
    Row(
        "POST",
        "/jobs",
        ENQUEUE,
        enqueue.enqueue,
        {201: a.EnqueuedJob, 202: a.EnqueuedJob, 200: a.Job | a.EnqueuedJob},
    ),
    Row("POST", "/jobs:batch", ENQUEUE, enqueue.enqueue_batch, {201: a.BatchReport, 207: a.BatchReport}),
    Row("GET", "/jobs/{id}", READ, jobs.show_job, {200: a.Job, 304: None}),
)
