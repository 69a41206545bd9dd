"""Compare a job with the one that a test expects, and describe the differences. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jetjobs.define.options import EnqueueOptions
from jetjobs.define.router import Router
from jetjobs.define.task import Task, TaskCall
from jetjobs.model.durations import show_duration, to_duration
from jetjobs.model.errors import DeliveryError, InvalidArguments
from jetjobs.model.job import Job
from jetjobs.model.masking import MASK, Path, mask
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import key_token

DELAY_TOLERANCE_S = 2.0
"""Tolerance for delays: a due time is computed from an answer of the server, which takes time."""

MAX_SHOWN = 300
"""The most characters shown of a value."""

_PLAIN = (str, int, float, bool, bytes, type(None))
_MISSING = type("_Missing", (), {"__repr__": lambda self: "nothing"})()


class Wanted(NamedTuple):
    """What a test expects: a task (or any), some of its arguments, some options."""

    task: Task[Any, Any] | None
    args: Mapping[str, Any]
    options: EnqueueOptions

    def matches_task(self, name: str) -> bool:
        return self.task is None or self.task.name == name

    def __repr__(self) -> str:
        return f"<Wanted {self}>"

    def __str__(self) -> str:
        if self.task is None:
            return "any job"
        secrets = self.task.signature.secrets
        shown = [f"{name}={shown_argument(name, value, secrets)}" for name, value in self.args.items()]
        call = f"{self.task.name}({', '.join(shown) or '…'})"
        if not self.options:
            return call
        return f"{call} with {', '.join(f'{name}={short(value)}' for name, value in self.options.items())}"


def want(
    registry: Router,
    task: Task[Any, Any] | TaskCall[Any, Any] | str | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Wanted:
    """Validate what a test expects: the task is known, takes the arguments, and accepts their values."""
    if task is None:
        if args or kwargs:
            raise TypeError("arguments without a task: give the task too")
        return Wanted(None, {}, {})
    options: EnqueueOptions = {}
    if isinstance(task, TaskCall):
        options = task.options
        task = task.task
    elif isinstance(task, str):
        task = registry.find(task)
    registry.find(task.name)
    given = task.signature.by_name(args, kwargs)
    for name, value in given.items():
        _check_argument(task, name, value)
    return Wanted(task, given, options)


def _check_argument(task: Task[Any, Any], name: str, value: Any) -> None:
    """A misspelt name or an impossible value would let `refute_enqueued` pass in every case."""
    if name not in task.signature.names:
        known = ", ".join(task.signature.names) or "none"
        raise InvalidArguments(
            f"task {task.name!r} takes no argument {name!r}; it takes {known}",
            task=task.name,
            problems=[(name, "unknown")],
        )
    if not _is_plain(value):
        return  # it may be a matcher object: compare it unchanged
    try:
        task.signature.bind((), {name: value})
    except InvalidArguments as error:
        problems = [(where, text) for where, text in error.problems if where.partition(".")[0] == name]
        if problems:
            details = "; ".join(f"{where}: {text}" for where, text in problems)
            raise InvalidArguments(f"task {task.name!r}: {details}", task=task.name, problems=problems) from None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def effective_arguments(task: Task[Any, Any], body: bytes) -> dict[str, Any]:
    """The arguments as the task will receive them, with defaults for those that were not sent."""
    try:
        sent = task.signature.decode(body)
    except DeliveryError:
        return {}
    parameters = task.signature.parameters
    return {
        name: sent.get(name, parameters[name].default)
        for name in task.signature.names
        if name in sent or parameters[name].default is not parameters[name].empty
    }


def differences(wanted: Wanted, job: Job, arguments: Mapping[str, Any]) -> list[str]:
    """One line per difference; empty for a job that matches."""
    found = list(_option_differences(wanted.options, job))
    found += [line for name in wanted.args if (line := _argument_difference(wanted, name, arguments))]
    return found


def _argument_difference(wanted: Wanted, name: str, arguments: Mapping[str, Any]) -> str | None:
    task, value, actual = wanted.task, wanted.args[name], arguments.get(name, _MISSING)
    if _equal(value, actual):
        return None
    assert task is not None
    plain, found = _as_json(task, arguments, name, value), _as_json(task, arguments, name, actual)
    if _equal(plain, found):
        return None
    shown = [shown_argument(name, one, task.signature.secrets) for one in (plain, found)]
    if shown[0] == shown[1]:
        return f"{name}: differs in a part that is secret or truncated here"
    return f"{name}: wanted {shown[0]}, found {shown[1]}"


def _as_json(task: Task[Any, Any], arguments: Mapping[str, Any], name: str, value: Any) -> Any:
    """The value as it is sent, so that a model equals the dict it is serialised to."""
    try:
        body = task.signature.encode(task.signature.bind((), {**arguments, name: value}))
    except InvalidArguments:
        return value
    return json.loads(body)[name]


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array, for example, has no truth value
        return False


def shown_argument(name: str, value: Any, secrets: Iterable[Path]) -> str:
    """The value as text. A value that holds a secret is hidden entirely unless it is plain enough to mask."""
    inside = [path[1:] for path in secrets if path[:1] == (name,)]
    if not inside:
        return short(value)
    return short(mask(value, inside)) if isinstance(value, dict | list) and _is_plain(value) else MASK


def _line(what: str, wanted: Any, actual: Any) -> str:
    return f"{what}: wanted {short(wanted)}, found {short(actual)}"


def _option_differences(options: EnqueueOptions, job: Job) -> Iterator[str]:
    plain: dict[str, tuple[Any, Any]] = {
        "queue": (options.get("queue"), job.queue),
        "priority": (options.get("priority"), job.lane),
        "max_attempts": (options.get("max_attempts"), job.max_attempts),
        "job_id": (options.get("job_id"), job.uid),
    }
    for name, (wanted, actual) in plain.items():
        if name in options and wanted != actual:
            yield _line(name, wanted, actual)
    if "key" in options and key_token(options["key"]) != job.key:
        yield f"key: wanted {options['key']!r}, found {'another' if job.id != job.uid else 'none'}"
    if "retry" in options and options["retry"].to_header() != job.headers.get(h.RETRY_POLICY):
        yield _line("retry", options["retry"].to_header(), job.headers.get(h.RETRY_POLICY))
    for name, value in options.get("headers", {}).items():
        if job.headers.get(name) != value:
            yield _line(f"header {name}", value, job.headers.get(name))
    yield from _time_differences(options, job)


def _time_differences(options: EnqueueOptions, job: Job) -> Iterator[str]:
    if "delay" in options:
        wanted = to_duration("delay", options["delay"]).total_seconds()
        # After a retry, the due time no longer depends on the delay the job was enqueued with.
        actual = job.due_at - job.enqueued_at if job.due_at and job.attempt == 1 else None
        if actual is None or abs(actual - wanted) > DELAY_TOLERANCE_S:
            # Rounded, because the measured delay is slightly off: 7 days must not be shown as 6d23h.
            shown = "none" if actual is None else show_duration(max(0.0, round(actual, 1)))
            yield f"delay: wanted {show_duration(wanted)}, found {shown}"
    if "run_at" in options and abs(options["run_at"].timestamp() - job.due_at) > 0.001:
        yield _line("run_at", options["run_at"].timestamp(), job.due_at or None)
    if "deadline" in options and abs(options["deadline"].timestamp() - job.deadline) > 0.001:
        yield _line("deadline", options["deadline"].timestamp(), job.deadline or None)


def short(value: Any) -> str:
    """The value as text, truncated when it is long."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…"
