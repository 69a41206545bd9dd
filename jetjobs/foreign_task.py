"""Tasks of other services, known by their name only: their arguments are any JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from jetjobs.define.options import EnqueueOptions, check_type, checked_options
from jetjobs.define.result_type import ResultType
from jetjobs.define.router import Router
from jetjobs.define.signature import Signature
from jetjobs.define.task import JobRequest, Task
from jetjobs.model.errors import DefinitionError, InvalidArguments
from jetjobs.model.wire.validation import check_task, check_token, has_wire_form

_KNOWN = frozenset(EnqueueOptions.__annotations__)


class ForeignTask(Task[..., Any]):
    """A task that another app declares. It can be enqueued and nothing else."""

    def __init__(self, name: str, router: Router) -> None:
        self.name = check_token("task", name)
        self.queue = router.default_queue
        self.priority = "normal"
        self.store_result = True
        self.own_headers = {}
        self.signature = AnyJson(name)
        self.send = router.send
        self.send_sync = router.send_sync


class AnyJson(Signature):
    """Accepts every JSON object."""

    def __init__(self, task: str) -> None:
        self.task = task
        self.injected = frozenset()
        self.takes_scheduled_time = False
        self.result = ResultType(task, Any)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found = _problem(dict(kwargs), "")
        except RecursionError:
            found = "", "the arguments are nested too deeply, or contain themselves"
        if found is not None:
            raise self._refused(*found)
        return dict(kwargs)

    def encode(self, arguments: dict[str, Any]) -> bytes:
        try:
            return json.dumps(arguments, separators=(",", ":"), ensure_ascii=False).encode()
        except ValueError as error:  # an integer with thousands of digits
            raise self._refused("", str(error)) from None

    def _refused(self, path: str, reason: str) -> InvalidArguments:
        text = f"{path}: {reason}" if path else reason
        return InvalidArguments(f"task {self.task!r}: {text}", task=self.task, problems=[(path, reason)])


def request_by_name(router: Router, name: str, args: Any, options: EnqueueOptions) -> JobRequest[Any]:
    """A request for the task of that name: one of the router's, else a foreign one in the router's queue."""
    if not isinstance(name, str):
        hint = "call enqueue of a task itself: task.enqueue(...)" if isinstance(name, Task) else None
        raise DefinitionError(f"the first argument must be the name of a task, not {name!r:.80}", hint=hint)
    check_task(name)
    if unknown := sorted(options.keys() - _KNOWN):
        raise DefinitionError(
            f"unknown option {unknown[0]!r}",
            hint=f"arguments of the task go into a dict: app.enqueue({name!r}, {{{unknown[0]!r}: ...}})",
        )
    args = {} if args is None else args
    check_type("args", args, Mapping)
    task = router.tasks.get(name) or ForeignTask(name, router)
    return task.request(checked_options(options), (), args)


def _problem(value: Any, path: str) -> tuple[str, str] | None:
    """The first value without a JSON form: its path and the reason."""
    if value is None or isinstance(value, bool | int):
        return None
    if isinstance(value, str):
        return None if has_wire_form(value) else (path, "has an unpaired surrogate, which UTF-8 cannot encode")
    if isinstance(value, float):
        return None if math.isfinite(value) else (path, f"{value!r} has no JSON form")
    inner = f"{path}." if path else ""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{inner}{key!r:.40}", "keys must be text"
            if found := _problem(key, f"{inner}{key!r:.40}") or _problem(item, f"{inner}{key}"):
                return found
        return None
    if isinstance(value, list | tuple):
        return next(filter(None, (_problem(item, f"{inner}{i}") for i, item in enumerate(value))), None)
    return path, f"a {type(value).__name__} has no JSON form: use text, numbers, lists and dicts"
