"""Log lines of a child: they go through its channel and come out of the worker's own handlers."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from jetjobs.worker.isolation.channel import MAX_HEAD

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_KEPT = (
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
_LONGEST = MAX_HEAD // 16
"""Characters of a line that are kept: as JSON, even the strangest of them fit into a frame."""


def levels() -> dict[str, int]:
    """The levels that are set here, by logger, the root's under "": a child need not send what nobody wants."""
    known = logging.Logger.manager.loggerDict.items()
    named = {name: logger.level for name, logger in known if isinstance(logger, logging.Logger) and logger.level}
    return {**named, "": logging.getLogger().level}


class Forward(logging.Handler):
    """Stands for the root's handlers of the worker. A copy that a task forked writes to standard error instead:
    the channel is not its own."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._send = send
        self._pid = os.getpid()

    def install(self, set_levels: Mapping[str, int]) -> None:
        """Take the place of the root's handlers, with the levels of the worker."""
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
        data = {key: getattr(record, key) for key in _KEPT}
        data["msg"] = record.getMessage()[:_LONGEST]
        data["process"] = self._pid
        data["threadName"] = record.threadName
        if record.exc_info:
            text = record.exc_text or logging.Formatter().formatException(record.exc_info)
            data["exc_text"] = text[-_LONGEST:]
        extra = {str(k): _json(v) for k, v in vars(record).items() if k not in _PLAIN}
        if len(json.dumps(extra)) < _LONGEST:
            data.update(extra)
        return data


def replay(data: Mapping[str, Any]) -> None:
    """In the worker: hand the line to the root's handlers, as if it had been logged here."""
    logging.getLogger().handle(logging.makeLogRecord(dict(data)))


def _json(value: Any) -> Any:
    try:
        json.dumps(value)
        return value
    except (TypeError, ValueError, RecursionError):
        return repr(value)
