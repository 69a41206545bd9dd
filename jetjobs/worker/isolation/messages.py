"""Encode settings, contexts, signals and errors as plain data for the channel to a child. Nothing is pickled."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import SecretStr

from jetjobs.define.context import AttemptServices, Context
from jetjobs.define.task import Task
from jetjobs.model.decision import is_retryable
from jetjobs.model.error_classification import Classifier, classify
from jetjobs.model.errors import ChildRaised
from jetjobs.model.job import Job
from jetjobs.model.outcome import ErrorInfo, Reject, Retry, Signal, Snooze
from jetjobs.model.settings import Settings
from jetjobs.model.views.error_text import describe
from jetjobs.worker.isolation.channel import ProtocolError

CHILD_MAIN = "__mp_main__"
"""Module name of the main program in a child, as in multiprocessing: `__name__ == "__main__"` is false there."""


def settings_data(settings: Settings | None) -> dict[str, Any] | None:
    """The settings of the app with its passwords. The worker may have them from its command line."""
    return None if settings is None else _plain(settings.model_dump())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    return value.total_seconds() if isinstance(value, timedelta) else value


def context_data(context: Context) -> dict[str, Any]:
    """The context without the job's body, which is sent beside it."""
    job = context.job._replace(body=b"")._asdict()
    return {
        "job": {**job, "body": "", "headers": dict(context.job.headers)},
        "worker": context.worker,
        "fence": context.fence,
        "delivery": context.delivery,
        "remaining_s": context.remaining.total_seconds(),
    }


def context_from(data: Mapping[str, Any], body: bytes, services: AttemptServices | None = None) -> Context:
    """The same context in another process, with the services of that process."""
    job = Job(**{**data["job"], "body": body})
    deadline = time.monotonic() + data["remaining_s"]
    return Context(job, data["worker"], data["fence"], data["delivery"], deadline, services)


def error_data(
    error: BaseException, task: Task[Any, Any], classifiers: Mapping[type[BaseException], Classifier]
) -> dict[str, Any]:
    """In the child: what was raised, as text, and whether it may be retried."""
    limit = ""
    if isinstance(error, MemoryError) and task.memory_limit is not None:
        size = f"{task.memory_limit / 2**20:,.1f}".removesuffix(".0")
        error.add_note(limit := f"the memory_limit of task {task.name!r} is {size} MiB")
    info = describe(error)
    if limit:
        info = replace(info, text=f"{info.text}; {limit}" if info.text else limit)
    data: dict[str, Any] = {"type": info.type, "text": info.text, "trace": info.traceback}
    if isinstance(error, Retry):
        return {**data, "signal": "retry", "after_s": _seconds(error.after)}
    if isinstance(error, Snooze):
        until = None if error.until is None else error.until.timestamp()
        return {**data, "signal": "snooze", "after_s": _seconds(error.after), "until": until}
    if isinstance(error, Reject):
        return {**data, "signal": "reject"}
    verdict = classify(error, classifiers)
    return {**data, "transient": is_retryable(error, task.retry, verdict), "after_s": _seconds(verdict.after)}


def error_from(data: Mapping[str, Any]) -> ChildRaised | Signal:
    """In the worker: an error with the same text and meaning. Signals are restored as themselves."""
    try:
        info = ErrorInfo(data["type"], data["text"], data["trace"])
        signal = data.get("signal")
        if signal is None:
            return ChildRaised(
                f"{info.type}: {info.text}",
                child_error=info,
                transient=bool(data["transient"]),
                after=_after(data),
            )
        raised = _signal(signal, info.text, data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"unreadable error: {error}") from None
    raised.child_error = info
    return raised


def _seconds(after: timedelta | None) -> float | None:
    return None if after is None else after.total_seconds()


def _after(data: Mapping[str, Any]) -> timedelta | None:
    return None if data.get("after_s") is None else timedelta(seconds=data["after_s"])


def _signal(name: str, text: str, data: Mapping[str, Any]) -> Signal:
    after = _after(data)
    if name == "retry":
        return Retry(after, text)
    if name == "reject":
        return Reject(text)
    until = None if data["until"] is None else datetime.fromtimestamp(data["until"], UTC)
    return Snooze(after, until=until, reason=text)
