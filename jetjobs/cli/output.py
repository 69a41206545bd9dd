"""What commands print: data to stdout, everything else to stderr, and the exit codes."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import sys
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetjobs.model.errors import JetJobsError

DONE, FAILED, USAGE, UNREACHABLE, APP_BROKEN, NOT_FOUND, REFUSED, TIMED_OUT, RECYCLED, INTERRUPTED = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    130,
)


class AppImportError(Exception):
    """The user's module raised while it was imported; `__cause__` is what it raised."""


class Output:
    """How this invocation prints."""

    def __init__(self, *, as_json: bool = False, colour: bool = True) -> None:
        self.as_json = as_json
        wanted = colour and not os.environ.get("NO_COLOR")
        self.colour = bool(os.environ.get("FORCE_COLOR")) or (wanted and sys.stdout.isatty())

    def data(self, text: str) -> None:
        print(text)

    def json(self, value: Any) -> None:
        print(json.dumps(value, default=str))

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def table(self, head: list[str], rows: list[list[str]], shrink: tuple[int, ...] = ()) -> None:
        """Aligned columns, no boxes. On a terminal the columns of `shrink` give way, in this order, until the
        lines fit; anywhere else nothing is cut."""
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        if shrink and sys.stdout.isatty():
            widths = fit(widths, head, shrink, shutil.get_terminal_size().columns)
            rows = [[shorten(cell, width) for cell, width in zip(row, widths, strict=True)] for row in rows]
        for number, row in enumerate([head, *rows]):
            line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            self.data(self.paint(line, "1") if number == 0 else line)

    def error(self, message: str, hint: str | None, code: int) -> None:
        if self.as_json:
            problem = {"error": {"code": code, "message": message, "hint": hint}}
            print(json.dumps(problem), file=sys.stderr)
            return
        print(f"error: {message}", file=sys.stderr)
        if hint:
            print(f"hint: {hint}", file=sys.stderr)


def fit(widths: list[int], head: list[str], shrink: tuple[int, ...], room: int) -> list[int]:
    """Narrower widths, for lines of at most `room`. A column keeps its heading and 8 characters at least.

    >>> fit([10, 40, 9], ["ID", "ERROR", "DIED"], (1,), 40)
    [10, 17, 9]
    """
    fitted = list(widths)
    for column in shrink:
        over = sum(fitted) + 2 * (len(fitted) - 1) - room
        least = min(fitted[column], max(len(head[column]), 8))
        fitted[column] = max(least, fitted[column] - max(0, over))
    return fitted


def shorten(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis.

    >>> shorten("exhausted", 6)
    'exhau…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def user_name() -> str:
    """Who runs this command, for the record."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"uid {os.getuid()}"


def exit_code(error: JetJobsError) -> int:
    """The documented code for an error."""
    from jetjobs.model import errors as e

    table: list[tuple[type[e.JetJobsError], int]] = [
        (e.TopologyMissing, REFUSED),
        (e.TopologyConflict, REFUSED),
        (e.BrokerUnavailable, UNREACHABLE),
        (e.AccessDenied, UNREACHABLE),
        (e.UnsupportedServer, UNREACHABLE),
        (e.UnknownTask, NOT_FOUND),
        (e.LetterNotFound, NOT_FOUND),
        (e.JobNotFound, NOT_FOUND),
        (e.JobAmbiguous, USAGE),
        (e.LetterAmbiguous, USAGE),
        (e.QueueNotFound, NOT_FOUND),
        (e.WorkerNotFound, NOT_FOUND),
        (e.WorkerSilent, TIMED_OUT),
        (e.ResultNotReady, TIMED_OUT),
        (e.InvalidArguments, USAGE),
        (e.ConfigError, USAGE),
        (e.DefinitionError, USAGE),
    ]
    return next((code for kind, code in table if isinstance(error, kind)), FAILED)


def user_traceback(error: BaseException) -> str:
    """The traceback without our own frames and the import machinery's."""
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
    summary = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = summary
    while part is not None:
        part.stack = traceback.StackSummary.from_list(
            [
                frame
                for frame in part.stack
                if not frame.filename.startswith((own, "<frozen importlib")) and "importlib" not in frame.filename
            ]
        )
        part = part.__cause__ or part.__context__
    return "".join(summary.format())
