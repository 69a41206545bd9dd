"""The OpenAPI 3.1 document of the API, made from the table of calls and its models. As a program, it prints it."""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from jetjobs.http.models.answers import ProblemDetails
from jetjobs.http.problems import MEDIA_TYPE
from jetjobs.http.routes import ENQUEUE, EVENTS, PREFIX, TABLE, Row

VERSION = "1"
_REFERENCE = "#/components/schemas/{model}"
_TAGS = {
    "jobs": "Enqueue jobs; show, list, cancel, retry and move them.",
    "events": "Events of jobs and workers as they happen.",
    "queues": "Queues with their counts; pause, resume, purge and delete them.",
    "workers": "Running workers; quiet and stop them.",
    "schedules": "Schedules; change, pause, resume and run them.",
    "tasks": "The tasks that running workers know.",
    "dead": "Dead letters; replay and delete them.",
}
_DESCRIPTION = (
    "Jobs on NATS JetStream over HTTP. Errors are problem details (RFC 9457) with a stable `code` and a `hint`. "
    "Lists are pages: a `cursor` that is not null continues them with the same filters. A token sees only jobs of "
    "its queues; any other job does not exist for it."
)
_WAIT = ("Prefer", "`wait=10` waits that many seconds for the end of the job, at most 60.", "^wait=[0-9]{1,3}$")
_HEADERS: dict[str, list[tuple[str, str, str | None]]] = {
    "enqueue": [
        ("Idempotency-Key", "Makes the request safe to repeat: the same key is the same job.", "^[ -~]{1,255}$"),
        _WAIT,
    ],
    "show_job": [_WAIT, ("If-None-Match", "Answer 304 if the job still has this ETag.", None)],
    "follow_events": [("Last-Event-ID", "Send the events after this one first.", None)],
}
_NAMES = {"id": r"^[A-Za-z0-9_-]{1,128}$", "worker": r"^[A-Za-z0-9_.-]{1,200}$"}
_TOKEN = r"^[A-Za-z0-9_-]{1,64}$"
_OF_ALL = (401, 403, 422, 429, 500, 502, 503)
_OF_BODIES = (400, 408, 413, 415)
_OF_CHANGES = (404, 409, 504, 507)


class _Untitled(GenerateJsonSchema):
    """Without titles, which only repeat the names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@cache
def document(root_path: str = "") -> dict[str, Any]:
    """The document, for an API that is mounted under this path."""
    models, schemas = _schemas()
    paths: dict[str, Any] = {}
    for row in TABLE:
        paths.setdefault(row.path, {})[row.method.lower()] = _operation(row, models)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jetjobs",
            "version": VERSION,
            "description": _DESCRIPTION,
            "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{"token": []}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                "Problem": {
                    "description": "A problem.",
                    "content": {MEDIA_TYPE: {"schema": {"$ref": _REFERENCE.format(model="ProblemDetails")}}},
                }
            },
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A token of `jetjobs http token new`. On loopback, calls need none by default.",
                }
            },
        },
    }


def summary_of(row: Row) -> str:
    return (inspect.getdoc(row.operation) or "").partition("\n")[0]


def description_of(row: Row) -> str:
    """The rest of the docstring, as paragraphs."""
    rest = (inspect.getdoc(row.operation) or "").partition("\n")[2].strip()
    scope = "`enqueue:TASK`" if row.scope == ENQUEUE else f"`{row.scope}`"
    return "\n\n".join(
        [*(" ".join(one.split()) for one in rest.split("\n\n") if one), f"Needs the scope {scope}."]
    )


def tag_of(row: Row) -> str:
    return re.split("[/:]", row.path.removeprefix(f"{PREFIX}/"))[0]


def _schemas() -> tuple[dict[Any, Any], dict[str, Any]]:
    """The schema of each model in the table, by what uses it, and the definitions that they refer to."""
    wanted: list[tuple[Any, Any, TypeAdapter[Any]]] = [
        ("problem", "serialization", TypeAdapter(ProblemDetails)),
    ]
    for row in TABLE:
        wanted.append(((row, "query"), "validation", TypeAdapter(row.query)))
        if row.body is not None:
            wanted.append(((row, "body"), "validation", TypeAdapter(row.body)))
        for status, model in row.answers.items():
            if model is not None:
                wanted.append(((row, status), "serialization", TypeAdapter(model)))
    schemas, definitions = TypeAdapter.json_schemas(wanted, ref_template=_REFERENCE, schema_generator=_Untitled)
    queries = {row.query.__name__ for row in TABLE}
    found = definitions.get("$defs", {})
    return (
        {key: _resolved(schema, found) if key[1] == "query" else schema for (key, _), schema in schemas.items()},
        {name: schema for name, schema in found.items() if name not in queries},
    )


def _resolved(schema: Any, definitions: dict[str, Any]) -> Any:
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    return definitions.get(name, schema)


def _operation(row: Row, models: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": row.name,
        "summary": summary_of(row).rstrip("."),
        "description": description_of(row),
        "tags": [tag_of(row)],
        "parameters": [*_path_parameters(row), *_query_parameters(models[row, "query"]), *_headers(row)],
        "responses": _responses(row, models),
    }
    if row.body is not None:
        required = not _is_valid(row.body, {})
        content = {"application/json": {"schema": models[row, "body"]}}
        operation["requestBody"] = {"required": required, "content": content}
    return operation


def _is_valid(model: type[BaseModel], value: Any) -> bool:
    try:
        model.model_validate(value)
    except ValidationError:
        return False
    return True


def _event_of(schema: dict[str, Any]) -> dict[str, Any]:
    """One event of a stream, whose data is JSON."""
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    texts = {name: {"type": "string"} for name in ("id", "event")}
    return {"type": "object", "required": ["data"], "properties": {**texts, "data": data}}


def _path_parameters(row: Row) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": _NAMES.get(name, _TOKEN)},
        }
        for name in re.findall(r"\{(\w+)\}", row.path)
    ]


def _query_parameters(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, one in schema.get("properties", {}).items():
        shown = {key: value for key, value in one.items() if key not in ("description", "title", "default")}
        given = {"name": name, "in": "query", "required": False, "schema": _without_null(shown)}
        found.append(given | ({"description": one["description"]} if "description" in one else {}))
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a URL is absent, not null."""
    kinds = [one for one in schema.get("anyOf", []) if one != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    if len(kinds) == 1:
        return {**kinds[0], **rest}
    return {**rest, "anyOf": kinds} if kinds else schema


def _headers(row: Row) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "description": text,
            "schema": {"type": "string"} | ({"pattern": pattern} if pattern else {}),
        }
        for name, text, pattern in _HEADERS.get(row.name, [])
    ]


def _responses(row: Row, models: dict[Any, Any]) -> dict[str, Any]:
    problem = {"$ref": "#/components/responses/Problem"}
    codes = set(_OF_ALL)
    codes |= set(_OF_BODIES) if row.body is not None else set()
    codes |= {404} if "{" in row.path or row.takes_query else set()
    codes |= set(_OF_CHANGES) if row.scope != "read" else set()
    found: dict[str, Any] = {str(code): problem for code in sorted(codes)}
    for status, model in sorted(row.answers.items()):
        answer: dict[str, Any] = {"description": HTTPStatus(status).phrase}
        if model is not None:
            schema = models[row, status]
            answer["content"] = {
                row.media_type: {"schema": _event_of(schema) if row.media_type == EVENTS else schema}
            }
        if status == HTTPStatus.CREATED and row.method == "POST" and row.name != "enqueue_batch":
            answer["headers"] = {
                "Location": {"schema": {"type": "string"}, "description": "Where the job is shown."}
            }
        if row.has_etag:
            answer["headers"] = {"ETag": {"schema": {"type": "string"}, "description": "Changes with the job."}}
        found[str(status)] = answer
    return {**dict(sorted(found.items())), "default": problem}


if __name__ == "__main__":
    print(json.dumps(document(), indent=1, ensure_ascii=False))
