"""The terminal as a screen: its size, full-screen drawing and single keys."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

from jetjobs.cli.terminal.text import cut

ESCAPE = "\x1b"
RUBOUT = "\x7f"
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Current columns and rows of the terminal behind a stream; 80 by 24 when it has none."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24


class Screen:
    """Takes over the terminal of standard output. `on_key` is called with each character typed."""

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._before: list[Any] | None = None

    def __enter__(self) -> Self:
        with contextlib.suppress(termios.error, OSError, ValueError, NotImplementedError):
            keyboard = sys.stdin.fileno()
            before = termios.tcgetattr(keyboard)  # raises if stdin is not a terminal: keys are then unavailable
            tty.setcbreak(keyboard)
            self._before = before
            asyncio.get_running_loop().add_reader(keyboard, self._read)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            keyboard = sys.stdin.fileno()
            asyncio.get_running_loop().remove_reader(keyboard)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, self._before)
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and rows."""
        return terminal_size(sys.stdout)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the content of the screen with these lines, cut to its size."""
        columns, rows = self.size
        # One column less: clearing the rest of the line would erase a character in the last column.
        shown = [cut(line, columns - 1) + "\x1b[K" for line in lines[:rows]]
        self._write("\x1b[H" + "\r\n".join(shown) + "\x1b[J")

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
        text = data.decode(errors="ignore")
        if text.startswith(ESCAPE) and len(text) > 1:
            return  # an arrow or function key, which has no meaning here
        for key in text:
            self._on_key(key)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
