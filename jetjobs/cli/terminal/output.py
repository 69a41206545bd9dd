"""What commands print: data to standard output, everything else to standard error.

Everything printed for people passes through `printable` here.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import textwrap
import traceback
from datetime import datetime
from typing import Any, TextIO

from jetjobs.cli.exit_codes import FAILED, READER_GONE
from jetjobs.cli.terminal.palette import FAINT, code_of
from jetjobs.cli.terminal.table import Look, aligned, drawn, drop, fit, natural_widths, printable_rows
from jetjobs.cli.terminal.text import LONG_NAME, one_line, printable, short_id
from jetjobs.model.views.error_text import format_traceback
from jetjobs.model.wire.lenient_json import write_json

MAX_FACT = 2_000
"""Characters of one value that a terminal gets. Elsewhere nothing is cut."""
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Output:
    """How this invocation prints. `lines` implies `as_json`, with each item of a list on its own line."""

    def __init__(
        self, *, as_json: bool = False, lines: bool = False, quiet: bool = False, colour: bool = True
    ) -> None:
        self.as_json = as_json or lines
        self.lines = lines
        self.quiet = quiet and not self.as_json
        self.may_colour = colour
        self.colour = self.coloured(sys.stdout)

    def coloured(self, stream: TextIO) -> bool:
        """Whether text for this stream is coloured."""
        return self.may_colour and _colour_wanted(stream)

    def data(self, text: str, *, painted: bool = False) -> None:
        """`painted`: the text contains what `paint` returned and is safe to print as it is."""
        print(text if painted else printable(text))

    def json(self, value: Any) -> None:
        """Print one document, or with `lines` each item of a list on its own line."""
        listed = self.lines and isinstance(value, dict) and isinstance(value.get("items"), list)
        for one in value["items"] if listed else [value]:
            print(write_json(one, default=_plain))

    def note(self, text: str, *, painted: bool = False) -> None:
        print(text if painted else printable(text), file=sys.stderr)

    def paint(self, text: str, style: str) -> str:
        """The text in a style of the palette."""
        text = printable(text)
        return f"\x1b[{code_of(style)}m{text}\x1b[0m" if self.colour and style else text

    def fact(self, label: str, value: str, style: str = "", width: int = 13) -> None:
        """Print a label and a value on one line. On a terminal the value is wrapped, and cut if it is long."""
        value = value if value.isprintable() else one_line(value, None)
        if not sys.stdout.isatty():
            self.data(self.paint(f"{label:<{width}}", FAINT) + self.paint(value, style), painted=True)
            return
        if len(value) > MAX_FACT:
            value = f"{value[:MAX_FACT]}… ({len(value):,} characters; --json prints all)"
        room = max(20, shutil.get_terminal_size().columns - width)
        for line in textwrap.wrap(value, room, break_on_hyphens=False) or [""]:
            self.data(self.paint(f"{label:<{width}}", FAINT) + self.paint(line, style), painted=True)
            label = ""

    def table(
        self,
        head: list[str],
        rows: list[list[str]],
        shrink: tuple[int, ...] = (),
        name: int | None = 0,
        least: int = LONG_NAME,
        look: Look = Look(),  # noqa: B008 - a tuple
    ) -> None:
        """Print aligned columns without boxes; with `--quiet`, only the column `name`.

        On a terminal, lines are made to fit: first the columns of `shrink` are narrowed in this order, then the
        first column down to `least` or half of the line, then columns are dropped from the right. Elsewhere
        nothing is cut, ids included.
        """
        rows = printable_rows(rows)
        if self.quiet and name is not None:
            for row in rows:
                self.data(row[name])
            return
        room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        if not room and not self.colour:
            for line in aligned([head, *rows], natural_widths(head, rows), look.right):
                self.data(line, painted=True)
            return
        from rich.cells import cell_len

        if room and look.ids is not None:
            for row in rows:
                row[look.ids] = short_id(row[look.ids])
        shown = head[:-1] if room and look.below is not None else head
        widths = natural_widths(shown, rows, cell_len)
        if room:
            widths = drop(fit(widths, shown, shrink, room), room, least)
        self.data(drawn([head, *rows], widths, look, room, colour=self.colour), painted=True)

    def error(self, message: str, hint: str | None, code: int) -> None:
        if self.as_json:
            problem = {"error": {"code": code, "message": message, "hint": hint}}
            print(json.dumps(problem), file=sys.stderr)
            return
        self.note(f"error: {message}")
        if hint:
            self.note(f"hint: {hint}")


def flushed(code: int) -> int:
    """Flush standard output and return the exit code; READER_GONE if the reader closed it, as `head` does."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()
        return READER_GONE
    except OSError as error:
        return unwritable(error)
    return code


def unwritable(error: OSError) -> int:
    """The exit code when standard output cannot be written, as on a full disk. Raises any other error."""
    if error.errno not in _UNWRITABLE:
        raise error
    _discard_output()
    Output().error(f"cannot write the output: {error.strerror}", None, FAILED)
    return FAILED


def user_traceback(error: BaseException) -> str:
    """The traceback without frames of jetjobs and of the import machinery."""
    return format_traceback(error) or "".join(traceback.format_exception_only(error))


def _discard_output() -> None:
    """Send the rest of the buffer to /dev/null; otherwise Python reports the failure again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _plain(value: Any) -> str:
    return str(value.isoformat() if isinstance(value, datetime) else value)


def _colour_wanted(stream: TextIO) -> bool:
    if os.environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
