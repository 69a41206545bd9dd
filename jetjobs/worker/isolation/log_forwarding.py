"""Forward log records of a child process to the log handlers of the worker."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from jetjobs.worker.isolation.channel import MAX_HEAD

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_FORWARDED = (
    "name",
    "levelno",
    "levelname",
    "pathname",
    "filename",
    "module",
    "lineno",
    "funcName",
    "created",
    "msecs",
)
_MAX_TEXT = MAX_HEAD // 16
"""Characters of a message that are forwarded. Even if JSON escapes all of them, they fit into a frame."""


def levels() -> dict[str, int]:
    """The levels of this process by logger, the root under "". A child uses them to send only wanted records."""
    known = logging.Logger.manager.loggerDict.items()
    named = {name: logger.level for name, logger in known if isinstance(logger, logging.Logger) and logger.level}
    return {**named, "": logging.getLogger().level}


class ForwardingHandler(logging.Handler):
    """Sends records to the worker. In a process that a task forked it writes to standard error instead, because
    the channel belongs to the child."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def install(self, set_levels: Mapping[str, int]) -> None:
        """Replace the handlers of the root logger and set the levels of the worker."""
        logging.getLogger().handlers[:] = [self]
        for name, level in set_levels.items():
            logging.getLogger(name or None).setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if os.getpid() == self._pid:
                self._send(self._data(record))
            elif logging.lastResort is not None:
                logging.lastResort.handle(record)
        except Exception:
            self.handleError(record)

    def _data(self, record: logging.LogRecord) -> dict[str, Any]:
        data = {key: getattr(record, key) for key in _FORWARDED}
        data["msg"] = record.getMessage()[:_MAX_TEXT]
        data["process"] = self._pid
        data["threadName"] = record.threadName
        if record.exc_info:
            text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            data["exc_text"] = text[-_MAX_TEXT:]
        extra = {str(k): _json(v) for k, v in vars(record).items() if k not in _STANDARD}
        if len(json.dumps(extra)) < _MAX_TEXT:
            data.update(extra)
        return data


def log_forwarded(data: Mapping[str, Any]) -> None:
    """In the worker: handle the record as if it had been logged here."""
    logging.getLogger().handle(logging.makeLogRecord(dict(data)))


def _json(value: Any) -> Any:
    try:
        json.dumps(value)
        return value
    except (TypeError, ValueError, RecursionError):
        return repr(value)
