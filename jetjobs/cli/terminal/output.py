"""What commands print: data to stdout, everything else to stderr, and the exit codes.

Whatever is printed for people passes through `printable` here: names, errors and records are of others' making,
and none of them may steer the terminal.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import traceback
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jetjobs.model.wire.lenient_json import write_json

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
READER_GONE = 141
"""What the shell says of a program that SIGPIPE has ended."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


LONG_NAME = 36
"""A name may keep so many columns of a terminal: an id that jetjobs has made, and some."""


class AppImportError(Exception):
    """The user's module raised while it was imported; `__cause__` is what it raised."""


class Output:
    """How this invocation prints. `as_json` also holds for `lines`, where each item of a list has its own line."""

    def __init__(
        self, *, as_json: bool = False, lines: bool = False, quiet: bool = False, colour: bool = True
    ) -> None:
        self.as_json = as_json or lines
        self.lines = lines
        self.quiet = quiet and not self.as_json
        self.colour = colour and _colour_wanted()

    def data(self, text: str, *, painted: bool = False) -> None:
        """`painted`: it holds what `paint` made, and the rest of it is printable already."""
        print(text if painted else printable(text))

    def json(self, value: Any) -> None:
        """One document, or with `lines` the items of a list, each on its line."""
        listed = self.lines and isinstance(value, dict) and isinstance(value.get("items"), list)
        for one in value["items"] if listed else [value]:
            print(write_json(one, default=_plain))

    def note(self, text: str, *, painted: bool = False) -> None:
        print(text if painted else printable(text), file=sys.stderr)

    def paint(self, text: str, code: str) -> str:
        text = printable(text)
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text

    def table(
        self,
        head: list[str],
        rows: list[list[str]],
        shrink: tuple[int, ...] = (),
        name: int | None = 0,
        least: int = LONG_NAME,
    ) -> None:
        """Aligned columns, no boxes. On a terminal the columns of `shrink` give way, in this order, then the first
        one down to `least` or half of the line, then columns are dropped from the right, until the lines fit;
        anywhere else nothing is cut. With `--quiet` only the column `name` is printed."""
        rows = [[cell if cell.isprintable() else one_line(cell, None) for cell in row] for row in rows]
        if self.quiet and name is not None:
            for row in rows:
                self.data(row[name])
            return
        widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
        if sys.stdout.isatty():
            room = shutil.get_terminal_size().columns
            widths = drop(fit(widths, head, shrink, room), room, least)
        for number, row in enumerate([head, *rows]):
            cells = zip(row, widths, strict=False)  # what has no width is not shown
            line = "  ".join(shorten(cell, width).ljust(width) for cell, width in cells).rstrip()
            self.data(self.paint(line, "1") if number == 0 else line, painted=True)

    def error(self, message: str, hint: str | None, code: int) -> None:
        if self.as_json:
            problem = {"error": {"code": code, "message": message, "hint": hint}}
            print(json.dumps(problem), file=sys.stderr)
            return
        self.note(f"error: {message}")
        if hint:
            self.note(f"hint: {hint}")


def printable(text: str) -> str:
    """Without what would steer the terminal: an error's text may hold anything.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else repr(c)[1:-1] for c in text)


def one_line(text: str, most: int | None = 200) -> str:
    """Cut to so many characters, without line breaks."""
    return printable(" ".join(text[: 5 * most if most else None].split())[:most])


def json_line(value: Any) -> str:
    """A value as JSON for people: readable letters as they are, and still JSON.

    >>> json_line("é\\x9b2J")
    '"é\\\\u009b2J"'
    """
    text = write_json(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


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


def drop(widths: list[int], room: int, least: int = LONG_NAME) -> list[int]:
    """The widths of the columns that stay: the last ones go until the others fit. The second is cut to what is
    left while it may keep 5 characters, for a name alone says little. The first gives way down to `least` or
    half of the line, and has what room there is in the end.

    >>> drop([32, 9, 7, 5], 80), drop([32, 9, 7, 5], 50), drop([32, 9, 7, 5], 40), drop([32, 9], 36)
    ([32, 9, 7, 5], [32, 9], [32, 6], [32])
    >>> drop([63, 6, 8, 20], 40, 20)
    [22, 6, 8]
    """
    kept = list(widths)
    over = sum(kept) + 2 * (len(kept) - 1) - room
    if over > 0:  # one long name must not cost all the other columns
        kept[0] = max(min(kept[0], LONG_NAME, max(least, room // 2)), kept[0] - over)
    while len(kept) > 1 and sum(kept) + 2 * (len(kept) - 1) > room:
        if len(kept) == 2 and room - kept[0] - 2 >= 5:
            return [kept[0], room - kept[0] - 2]
        kept.pop()
    if len(kept) == 1:
        return [min(widths[0], max(room, 8))]
    kept[0] = min(widths[0], kept[0] + room - sum(kept) - 2 * (len(kept) - 1))
    return kept


def _plain(value: Any) -> str:
    return str(value.isoformat() if isinstance(value, datetime) else value)


def _colour_wanted() -> bool:
    if os.environ.get("FORCE_COLOR"):
        return True
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and sys.stdout.isatty()


def shorten(text: str, width: int) -> str:
    """The text, or its beginning and an ellipsis.

    >>> shorten("exhausted", 6)
    'exhau…'
    """
    return text if len(text) <= width else text[: width - 1] + "…"


def flushed(code: int) -> int:
    """The exit code, once everything is written; READER_GONE when nobody reads it, as behind `| head`."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _write_no_more()
        return READER_GONE
    except OSError as error:
        return unwritable(error)
    return code


def unwritable(error: OSError) -> int:
    """The exit code when standard output cannot be written to, as on a full disk. Raises any other error."""
    if error.errno not in _UNWRITABLE:
        raise error
    _write_no_more()
    Output().error(f"the output cannot be written: {error.strerror}", None, FAILED)
    return FAILED


def _write_no_more() -> None:
    """What is left in the buffer goes nowhere; else Python would complain of it as it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        (e.JobNotFound, NOT_FOUND),
        (e.JobAmbiguous, USAGE),
        (e.QueueNotFound, NOT_FOUND),
        (e.WorkerNotFound, NOT_FOUND),
        (e.ScheduleNotFound, NOT_FOUND),
        (e.ScheduleConflict, REFUSED),
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
