"""Log lines: one for each event, formatted for a terminal or as JSON."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar

from jetjobs.model.durations import show_duration
from jetjobs.model.events import (
    ConnectionLost,
    ConnectionRestored,
    EnqueueFailed,
    Event,
    JobEnqueued,
    JobFinished,
    JobStarted,
    LaneTrouble,
    LeaseLostEvent,
    PermissionDenied,
    Redelivered,
    SettleFailed,
    ThreadStuck,
    WorkerChanged,
)

_log = logging.getLogger("jetjobs.worker")

# Attributes of every record; all others come from `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# Level and symbol of each outcome of an attempt.
_OUTCOMES = {
    "succeeded": (logging.INFO, "✓"),
    "retried": (logging.INFO, "↻"),
    "snoozed": (logging.INFO, "☾"),
    "parked": (logging.INFO, "‖"),
    "released": (logging.INFO, "↩"),
    "cancelled": (logging.INFO, "⊘"),
    "suspected": (logging.WARNING, "?"),
    "dead_lettered": (logging.ERROR, "✗"),
}
_OTHER = (logging.INFO, "·")
# Their colours on a terminal.
_CODES = {
    "succeeded": "32", "retried": "38;5;208", "snoozed": "34", "parked": "33", "cancelled": "33",
    "suspected": "33", "dead_lettered": "31",
}  # fmt: skip
_FAINT = "2"
_SHORT_ID = 10
# Control characters, line separators and characters that change the text direction. An error text that contains
# them could otherwise colour or clear the terminal, or fake a log line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# Fields that are the same on every line and are not shown on a terminal.
_HIDDEN = frozenset({"event", "worker", "worker_id", "app"})
# Fields of the job that a line is about. On a terminal its task and id are shown once.
_OF_JOB = frozenset({"job_id", "root_id", "task", "queue", "attempt"})
JobFields = Callable[[], Mapping[str, Any]]
# Level, event key and text of every other event. Its fields are logged with it.
_LINES: dict[type[Event], tuple[int, str, str]] = {
    JobStarted: (logging.DEBUG, "job.started", "job.started"),
    JobEnqueued: (logging.DEBUG, "job.enqueued", "job.enqueued"),
    EnqueueFailed: (logging.WARNING, "job.enqueue_failed", "a job could not be enqueued"),
    Redelivered: (logging.WARNING, "job.redelivered", "a job was delivered again"),
    LeaseLostEvent: (logging.WARNING, "job.lease_lost", "lease lost"),
    SettleFailed: (logging.ERROR, "job.settle_failed", "the outcome of a job could not be stored"),
    ConnectionLost: (logging.WARNING, "nats.lost", "connection lost"),
    ConnectionRestored: (logging.WARNING, "nats.restored", "connection restored"),
    PermissionDenied: (logging.WARNING, "nats.denied", "the user of this process lacks a permission"),
    LaneTrouble: (logging.WARNING, "lane.trouble", "jobs cannot be pulled from a lane"),
    ThreadStuck: (
        logging.WARNING,
        "worker.thread_stuck",
        "a thread is still running after its time limit: use time limits inside the task, or isolation",
    ),
}
_SETTLE_LINES = {
    "outcome": _LINES[SettleFailed],
    "record": (
        logging.ERROR,
        "job.record_dropped",
        "storage is full: the record of a successful job was not stored",
    ),
    "webhook": (
        logging.ERROR,
        "job.webhook_dropped",
        "the webhook of a job was not stored: a permission is missing",
    ),
}


def log_event(event: Event) -> None:
    """An Observer. Checks the level first: at 30,000 jobs a second, an unwanted line must cost nothing."""
    if type(event) is JobStarted and not _log.isEnabledFor(logging.DEBUG):
        return
    if isinstance(event, JobFinished):
        level, _ = _OUTCOMES.get(event.outcome, _OTHER)
        if _log.isEnabledFor(level):
            _log_finished(event, level)
    elif isinstance(event, PermissionDenied):
        if not event.repeated:
            _log_line(event, {"kind": event.kind, "subject": event.subject})
    elif isinstance(event, WorkerChanged):
        level = logging.WARNING if event.phase == "recycling" else logging.INFO
        _log.log(level, f"worker {event.phase}", extra={"event": f"worker.{event.phase}", "detail": event.detail})
    else:
        _log_line(event, event.as_dict())


def _log_line(event: Event, fields: Mapping[str, Any]) -> None:
    line = _SETTLE_LINES[event.kind] if isinstance(event, SettleFailed) else _LINES[type(event)]
    level, kind, text = line
    if _log.isEnabledFor(level):
        _log.log(level, text, extra={"event": kind, **fields})


def _log_finished(event: JobFinished, level: int) -> None:
    extra: dict[str, Any] = {
        "event": f"job.{event.outcome}",
        "queue": event.queue,
        "task": event.task,
        "job_id": event.job_id,
        "root_id": event.root_id or event.job_id,
        "attempt": event.attempt,
        "delivery": event.delivery,
        "stream_seq": event.sequence,
        "outcome": event.outcome,
        "run_s": round(event.run_s, 6),
        "wait_s": round(event.wait_s, 6),
    }
    if not event.delivery:
        extra |= {"event": "job.lost"}
    if event.max_attempts:
        extra["max_attempts"] = event.max_attempts
    if event.reason:
        extra["reason"] = event.reason
    if event.outcome in ("retried", "snoozed", "parked"):
        extra["retry_in_s"] = round(event.retry_in_s, 3)
    if event.error is not None:
        extra["error_type"], extra["error"] = event.error.type, event.error.text
        if event.error.traceback:
            extra["traceback"] = event.error.traceback
    _log.log(level, f"job {event.outcome.replace('_', '-')}", extra=extra)


class JsonFormatter(logging.Formatter):
    """One JSON object for each line, including everything from `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        line.update((f"extra_{k}" if k in line else k, v) for k, v in extra.items())
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:  # forwarded from a child process, without the exception itself
            line["exception"] = record.exc_text
        try:
            return json.dumps(line, default=str, allow_nan=False)
        except Exception:
            # A key that is not a string, a cycle, NaN, a `__str__` that raises: the line must be logged anyway.
            return json.dumps({str(k): v if isinstance(v, str | int) else _safe_repr(v) for k, v in line.items()})


def _safe_repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    """Indent all lines but the first, so that none looks like a log line of its own."""
    return "\n  ".join(map(_escaped, text.split("\n")))


class ConsoleFormatter(logging.Formatter):
    """Short lines for people. `colour` paints them; `short` shows only the end of ids, which commands accept."""

    _LEVELS: ClassVar = {logging.WARNING: "33", logging.ERROR: "31", logging.CRITICAL: "31"}

    def __init__(self, colour: bool, *, short: bool = False) -> None:
        super().__init__()
        self._colour = colour
        self._short = short

    def format(self, record: logging.LogRecord) -> str:
        clock = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        line = f"{self._paint(clock, _FAINT)} {self._text(record)}"
        trace = self.formatException(record.exc_info) if record.exc_info else record.exc_text
        if not trace and record.name == _log.name:
            trace = getattr(record, "traceback", None)
        if trace:
            shown = _indented(trace).replace("\n  \n", "\n\n")
            line += "\n" + "\n".join(self._paint(part, _FAINT) for part in f"  {shown}".split("\n"))
        return line

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code and text else text

    def _text(self, record: logging.LogRecord) -> str:
        extra = {k: v for k, v in vars(record).items() if k not in _STANDARD}
        outcome = extra.get("outcome")
        if record.name == _log.name and outcome is not None:
            return self._finished_line(outcome, extra)
        job = self._job(extra)
        hidden = _HIDDEN | _OF_JOB if job else _HIDDEN
        fields = " ".join(f"{k}={v}" for k, v in extra.items() if k not in hidden and v not in ("", None))
        name = "" if record.name.startswith("jetjobs") else f"{record.name}: "
        code = self._LEVELS.get(record.levelno, "")
        level = self._paint(f"{record.levelname.lower()}: ", code) if record.levelno >= logging.WARNING else ""
        text = f"{level}{_escaped(name)}{_indented(record.getMessage())}"
        return "  ".join(part for part in (text, _escaped(fields), self._paint(job, _FAINT)) if part)

    def _id(self, extra: Mapping[str, Any]) -> str:
        job_id = _escaped(str(extra["job_id"]))
        return job_id[-_SHORT_ID:] if self._short else job_id

    def _job(self, extra: Mapping[str, Any]) -> str:
        """Task and id of the job that a line is about, each once, with the attempt if it is not the first."""
        if not extra.get("job_id") or not extra.get("task"):
            return ""
        attempt = extra.get("attempt", 1)
        again = f" attempt {_escaped(str(attempt))}" if attempt not in (0, 1) else ""
        return f"{_escaped(str(extra['task']))} {self._id(extra)}{again}"

    def _finished_line(self, outcome: str, extra: Mapping[str, Any]) -> str:
        """Nothing in this line may be taken for something else: the time that an attempt took is `in` for one that
        succeeded and `after` for any other, and the time until the next attempt says what happens then."""
        code, run_time = _CODES.get(outcome, ""), show_duration(extra["run_s"])
        word = {"retried": "failed"}.get(outcome, outcome.replace("_", "-"))
        line = " ".join(
            [
                self._paint(_OUTCOMES.get(outcome, _OTHER)[1], code),
                _escaped(str(extra["task"])),
                self._paint(self._id(extra), _FAINT),
                self._paint(_escaped(word), code),
                f"{'in' if outcome == 'succeeded' else 'after'} {run_time}",
            ]
        )
        if extra["attempt"] > 1 or outcome == "retried":
            limit = f" of {extra['max_attempts']}" if "max_attempts" in extra else ""
            line += f" (attempt {extra['attempt']}{limit})"
        if outcome in ("retried", "snoozed", "parked"):
            line += f", {'retry' if outcome == 'retried' else 'next try'} in {show_duration(extra['retry_in_s'])}"
        if extra.get("reason"):
            line += _escaped(f" [{extra['reason']}]")
        if extra.get("error_type"):
            # The traceback below has the whole text.
            text = extra["error"].partition("\n")[0] if "traceback" in extra else extra["error"]
            error = f"{extra['error_type']}: {text}" if text else str(extra["error_type"])
            line += ": " + self._paint(_escaped(error), code)
        return line


def set_up(
    level: str,
    style: str,
    fields: JobFields,
    origin: Mapping[str, str] | None = None,
    *,
    colour: bool | None = None,
) -> None:
    """Log to standard error.

    `fields` returns the fields of the running job for lines that user code logs. `origin` names the app and the
    worker and is added to every line. Lines for people are coloured on a terminal, unless `colour` says otherwise.
    """
    common = dict(origin or {})
    handler = logging.StreamHandler(sys.stderr)
    terminal = sys.stderr.isatty()
    as_json = style == "json" or (style == "auto" and not terminal)
    handler.setFormatter(
        JsonFormatter() if as_json else ConsoleFormatter(terminal if colour is None else colour, short=terminal)
    )

    def add_job(record: logging.LogRecord) -> bool:
        if not hasattr(record, "job_id"):
            vars(record).update(fields())
        for name, value in common.items():
            vars(record).setdefault(name, value)
        return True

    handler.addFilter(add_job)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("jetjobs").setLevel(level.upper())
    logging.getLogger().setLevel(level.upper() if level != "debug" else logging.INFO)
