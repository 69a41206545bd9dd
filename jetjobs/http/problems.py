"""Errors as `application/problem+json` (RFC 9457): one table from errors of jetjobs to status codes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from pydantic import ValidationError

from jetjobs.model import errors as e
from jetjobs.model.wire.lenient_json import write_json

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 1

STATUSES: tuple[tuple[type[e.JetJobsError], HTTPStatus], ...] = (
    (e.InvalidArguments, HTTPStatus.UNPROCESSABLE_ENTITY),
    (e.EnqueueUnconfirmed, HTTPStatus.GATEWAY_TIMEOUT),
    (e.JobConflict, HTTPStatus.UNPROCESSABLE_ENTITY),
    (e.FlowConflict, HTTPStatus.CONFLICT),
    (e.FlowNotFound, HTTPStatus.NOT_FOUND),
    (e.QueueNotFound, HTTPStatus.NOT_FOUND),
    (e.JobTooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (e.StorageFull, HTTPStatus.INSUFFICIENT_STORAGE),
    (e.AccessDenied, HTTPStatus.BAD_GATEWAY),
    (e.BrokerError, HTTPStatus.SERVICE_UNAVAILABLE),
    (e.JobNotFound, HTTPStatus.NOT_FOUND),
    (e.ScheduleNotFound, HTTPStatus.NOT_FOUND),
    (e.WorkerNotFound, HTTPStatus.NOT_FOUND),
    (e.TokenNotFound, HTTPStatus.NOT_FOUND),
    (e.TokenConflict, HTTPStatus.CONFLICT),
    (e.UnknownTask, HTTPStatus.NOT_FOUND),
    (e.JobAmbiguous, HTTPStatus.CONFLICT),
    (e.QueueInUse, HTTPStatus.CONFLICT),
    (e.ScheduleConflict, HTTPStatus.CONFLICT),
    (e.WorkerSilent, HTTPStatus.GATEWAY_TIMEOUT),
    (e.ConfigError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (e.DefinitionError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (e.MalformedJob, HTTPStatus.UNPROCESSABLE_ENTITY),
)
"""The first class that matches counts. Any other error is an internal one."""


class Problem(Exception):
    """An answer that is not the one asked for. `members` are further members of the document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status = int(status)
        self.code = code
        self.detail = detail
        self.hint = hint
        self.headers = dict(headers or {})
        self.members = members

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": "about:blank",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "hint": self.hint,
            **self.members,
        }

    def body(self) -> bytes:
        return write_json(self.as_dict()).encode()


def problem_of(error: e.JetJobsError) -> Problem:
    """The problem for an error of jetjobs. Its code is the name of the class: `queue_not_found`."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), None)
    members: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if isinstance(error, e.InvalidArguments):
        members["errors"] = field_errors((("args", *_parts(name)), text) for name, text in error.problems)
    if isinstance(error, e.EnqueueUnconfirmed | e.JobConflict | e.JobAmbiguous):
        members["job_id"] = error.job_id
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if status is None:
        status = HTTPStatus.INTERNAL_SERVER_ERROR
    return Problem(status, code_of(error), str(error), hint=error.hint, headers=headers, **members)


def code_of(error: e.JetJobsError) -> str:
    """The name of the class in words.

    >>> code_of(e.QueueNotFound("x"))
    'queue_not_found'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", type(error).__name__).lower()


def invalid_fields(error: ValidationError, what: str) -> Problem:
    """The problem for a body or query that does not fit its model. Values are not repeated: they may be secret."""
    details = error.errors(include_url=False, include_input=False, include_context=False)
    errors = field_errors((detail["loc"], str(detail["msg"])) for detail in details)
    first = errors[0]
    text = f"{first['field']}: {first['message']}" if first["field"] else first["message"]
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, f"invalid_{what}", f"invalid {what}: {text}", errors=errors)


def field_errors(problems: Iterable[tuple[Iterable[str | int], str]]) -> list[dict[str, str]]:
    return [{"field": ".".join(map(str, place)), "message": text} for place, text in problems]


def _parts(name: str) -> tuple[str, ...]:
    return (name,) if name else ()
