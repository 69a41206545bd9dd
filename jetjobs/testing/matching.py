"""Whether a job is the wanted one, and in what it differs. Pure: `enqueued.py` reads the jobs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from jetjobs.define.options import EnqueueOptions
from jetjobs.define.router import Router
from jetjobs.define.task import Task, TaskCall
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import DeliveryError, InvalidArguments
from jetjobs.model.job import Job
from jetjobs.model.masking import MASK, Path, mask
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.ids import key_token

DELAY_TOLERANCE_S = 2.0
"""A delay is reckoned from a server's answer, and that takes a moment."""

MOST_SHOWN = 300
"""Characters of a value."""

_PLAIN = (str, int, float, bool, bytes, type(None))
_MISSING = type("_Missing", (), {"__repr__": lambda self: "nothing"})()


class Wanted(NamedTuple):
    """What a test asks for: a task or any, some of its arguments, some options."""

    task: Task[Any, Any] | None
    args: Mapping[str, Any]
    options: EnqueueOptions

    def fits_task(self, name: str) -> bool:
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
    """Refuses what no job can be: an unknown task, an argument the task does not take, a value of another type."""
    if task is None:
        if args or kwargs:
            raise TypeError("arguments are those of a task: name the task too")
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
    """A misspelt name or a value that cannot be would let a refutation pass for ever."""
    if name not in task.signature.names:
        known = ", ".join(task.signature.names) or "none"
        raise InvalidArguments(
            f"task {task.name!r} takes no argument {name!r}; it takes {known}",
            task=task.name,
            problems=[(name, "unknown")],
        )
    if not _is_plain(value):
        return  # a matcher, perhaps: it is compared as it is
    try:
        task.signature.bind((), {name: value})
    except InvalidArguments as error:
        problems = [(where, text) for where, text in error.problems if where.split(".")[0] == name]
        if problems:
            told = "; ".join(f"{where}: {text}" for where, text in problems)
            raise InvalidArguments(f"task {task.name!r}: {told}", task=task.name, problems=problems) from None


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def effective_arguments(task: Task[Any, Any], body: bytes) -> dict[str, Any]:
    """The arguments as the task will get them: defaults stand in for what was not sent."""
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
    """A line for each thing that is not as wanted; none for a job that fits."""
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
        return f"{name}: not as wanted, in a part that is secret or cut off here"
    return f"{name}: wanted {shown[0]}, found {shown[1]}"


def _as_json(task: Task[Any, Any], arguments: Mapping[str, Any], name: str, value: Any) -> Any:
    """The value in the form in which it travels, so that a model equals the dict it is sent as."""
    try:
        body = task.signature.encode(task.signature.bind((), {**arguments, name: value}))
    except InvalidArguments:
        return value
    return json.loads(body)[name]


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array, for one, does not say yes or no
        return False


def shown_argument(name: str, value: Any, secrets: Iterable[Path]) -> str:
    """The value for people. One with a secret anywhere is not shown, unless it is plain enough to mask that."""
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
        wanted = options["delay"].total_seconds()
        # After a retry the due time says nothing of the delay it was enqueued with.
        actual = job.due_at - job.enqueued_at if job.due_at and job.attempt == 1 else None
        if actual is None or abs(actual - wanted) > DELAY_TOLERANCE_S:
            # Rounded: it is found a little shorter or longer than it was given, and 7 days must not be 6d23h.
            shown = "none" if actual is None else show_duration(max(0.0, round(actual, 1)))
            yield f"delay: wanted {show_duration(wanted)}, found {shown}"
    if "run_at" in options and abs(options["run_at"].timestamp() - job.due_at) > 0.001:
        yield _line("run_at", options["run_at"].timestamp(), job.due_at or None)
    if "deadline" in options and abs(options["deadline"].timestamp() - job.deadline) > 0.001:
        yield _line("deadline", options["deadline"].timestamp(), job.deadline or None)


def short(value: Any) -> str:
    """The value for people, cut where it is long."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
