"""The tasks that can be enqueued: those of the app, and those whose definition running workers publish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from jetjobs.app import JetJobs
from jetjobs.define.handle import JobHandle
from jetjobs.define.router import Router
from jetjobs.define.task import JobRequest, Task
from jetjobs.foreign_task import AnyJson, ForeignTask
from jetjobs.model.errors import InvalidArguments, MalformedJob, UnknownTask
from jetjobs.model.views.task_info import TaskDefinition
from jetjobs.model.wire.headers import SECRET
from jetjobs.model.wire.lenient_json import read_json
from jetjobs.model.wire.subjects import check_priority
from jetjobs.model.wire.validation import WEBHOOK_TASK

FRESH_S = 5.0
"""How long published definitions are used without reading them again."""
AGAIN_S = 1.0
"""After how long they are read again for a task that they lack."""


class TaskCatalog(Router):
    """Finds tasks by their name. A Router, so that replays and schedules check arguments with it."""

    def __init__(self, app: JetJobs) -> None:
        super().__init__(queue=app.default_queue)
        self._app = app
        self._made: dict[str, PublishedTask] = {}
        """By fingerprint: a validator is made once for each definition."""
        self._read_at = -FRESH_S
        self._reading = asyncio.Lock()

    async def resolve(self, name: str) -> Task[Any, Any]:
        """The task of that name or alias. UnknownTask if neither the app nor a running worker has it."""
        if (own := self._app.tasks.get(name)) is not None:
            return own
        await self.refresh(FRESH_S if name in self.tasks else AGAIN_S)
        try:
            return self.find(name)
        except UnknownTask as error:
            hint = error.hint or "start a worker that has the task; GET /api/v1/tasks lists the known ones"
            raise UnknownTask(f"no running worker knows a task {name!r}", hint=hint) from None

    def find(self, name: str) -> Task[Any, Any]:
        return self._app.find(name) if name == WEBHOOK_TASK else super().find(name)

    async def refresh(self, max_age_s: float = FRESH_S) -> TaskCatalog:
        """Read the definitions that workers publish, unless they are newer than that. Returns the catalog."""
        async with self._reading:
            if time.monotonic() - self._read_at >= max_age_s:
                infos = await self._app.workers.tasks()
                self._update([info.definition for info in infos if info.definition is not None])
                self._read_at = time.monotonic()
        return self

    def _update(self, definitions: Sequence[TaskDefinition]) -> None:
        made = {
            one.fingerprint: self._made.get(one.fingerprint) or PublishedTask(one, self) for one in definitions
        }
        published = {name: made[one.fingerprint] for one in definitions for name in (*one.aliases, one.name)}
        self._made, self.tasks = made, {**published, **self._app.tasks}

    async def send(self, request: JobRequest[Any]) -> JobHandle[Any]:
        return await self._app.send(request)

    def send_sync(self, request: JobRequest[Any]) -> JobHandle[Any]:
        return self._app.send_sync(request)


class PublishedTask(ForeignTask):
    """A task of a running worker. Its arguments are checked against the JSON schema of the worker."""

    def __init__(self, definition: TaskDefinition, router: Router) -> None:
        super().__init__(definition.name, router)
        self.queue, self.priority = definition.queue, check_priority(definition.priority)
        self.store_result = definition.store_result
        self.own_headers = {SECRET: ",".join(definition.secret)} if definition.secret else {}
        self.signature = SchemaSignature(definition)


class SchemaSignature(AnyJson):
    """Checks arguments against a JSON schema."""

    def __init__(self, definition: TaskDefinition) -> None:
        super().__init__(definition.name)
        schema = definition.schema
        self._validator = None if schema is None else _validator(schema)
        self._text = definition.signature
        properties = (schema or {}).get("properties", {})
        moment = properties.get("scheduled_time") if isinstance(properties, Mapping) else None
        self.takes_scheduled_time = isinstance(moment, Mapping) and moment.get("format") == "date-time"

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        # The time of a schedule's tick, with which arguments of schedules are checked.
        texts = {name: one.isoformat() if isinstance(one, datetime) else one for name, one in kwargs.items()}
        bound = super().bind(args, texts)
        if self._validator is None:
            return bound
        try:
            problems = [(_path(error), _message(error)) for error in self._validator.iter_errors(bound)]
        except Unresolvable:
            return bound  # a schema of another document, which is not fetched
        if problems:
            text = "; ".join(f"{place}: {why}" if place else why for place, why in problems[:5])
            invalid = InvalidArguments(f"task {self.task!r}: {text}", task=self.task, problems=problems)
            invalid.hint = f"the task is {self._text}"
            raise invalid
        return bound

    def decode(self, body: bytes) -> dict[str, Any]:
        try:
            arguments = read_json(body)
        except ValueError as error:
            raise MalformedJob(f"the body is not a JSON object: {error}") from None
        if not isinstance(arguments, dict):
            raise MalformedJob("the body is not a JSON object")
        return self.bind((), arguments)


def _validator(schema: Mapping[str, Any]) -> Draft202012Validator | None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return None  # not written by jetjobs
    return Draft202012Validator(schema, registry=Registry())  # without a way to fetch other documents


def _path(error: ValidationError) -> str:
    """Where the value is; for a missing or unknown argument, its name."""
    place = [str(part) for part in error.absolute_path]
    if error.validator in ("required", "additionalProperties"):
        place += list(_names(error))[:1]
    return ".".join(place)


def _names(error: ValidationError) -> Iterator[str]:
    given, schema = error.instance, error.schema
    if error.validator == "required":
        yield from (name for name in error.validator_value if name not in given and repr(name) in error.message)
    elif isinstance(schema, Mapping):
        yield from (name for name in given if name not in schema.get("properties", {}))


def _message(error: ValidationError) -> str:
    """What the schema demands. The message of jsonschema repeats the value, which may be secret."""
    match error.validator:
        case "required":
            return "is missing"
        case "additionalProperties":
            return "is not an argument of the task"
        case "type":
            return f"must be of type {error.validator_value}"
        case "anyOf" | "oneOf":
            return "fits none of the allowed types"
        case rule:
            return f"does not satisfy {rule} {error.validator_value!r:.80}"
