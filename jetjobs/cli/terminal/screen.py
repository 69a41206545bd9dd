"""The terminal as a screen: its size, full-screen drawing and single keys."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self, TextIO

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE = "\x1b[?25h\x1b[?1049l"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O[ -~])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?$")
_FINISH_S = 0.05
"""How long the rest of an escape sequence may take: over a slow link it arrives in parts."""
_NAMES = {
    "\r": "enter", "\n": "enter", "\x1b": "escape", "\x7f": "backspace", "\b": "backspace", "\t": "tab",
    "[A": "up", "[B": "down", "[C": "right", "[D": "left", "[H": "home", "[F": "end",
    "[1~": "home", "[7~": "home", "[4~": "end", "[8~": "end", "[5~": "page up", "[6~": "page down",
}  # fmt: skip


def terminal_size(stream: TextIO) -> tuple[int, int]:
    """Current columns and rows of the terminal behind a stream; 80 by 24 when it has none."""
    try:
        size = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 80, 24
    return size.columns or 80, size.lines or 24


def split_keys(text: str) -> list[str]:
    """The keys in what a terminal sent: characters, and names such as `up`. Unknown sequences are left out.

    >>> split_keys("a\\x1b[A\\x1bOB\\x1b[99~\\r\\x1b")
    ['a', 'up', 'down', 'enter', 'escape']
    """
    keys, at = [], 0
    while at < len(text):
        found = _SEQUENCE.match(text, at)
        if found is None:
            keys.append(_NAMES.get(text[at], text[at]))
            at += 1
            continue
        name = _NAMES.get(found[0][1:].replace("O", "[", 1))
        keys += [name] if name is not None else []
        at = found.end()
    return keys


class Screen:
    """Takes over the terminal of standard output. `on_key` is called with each key, `on_resize` when its size has
    changed."""

    def __init__(self, on_key: Callable[[str], None], on_resize: Callable[[], None] = lambda: None) -> None:
        self._on_key = on_key
        self._on_resize = on_resize
        self._before: list[Any] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._unread = ""
        self._on_suspend: Any = None
        self._finish: asyncio.TimerHandle | None = None
        self._drawn: list[str] = []
        self._size = (0, 0)
        self.reads = 0
        """How often keys were read. Several keys of one read were pasted, or typed without looking."""

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(termios.error, OSError, ValueError, NotImplementedError):
            keyboard = sys.stdin.fileno()
            before = termios.tcgetattr(keyboard)  # raises if stdin is not a terminal: keys are then unavailable
            tty.setcbreak(keyboard)
            self._before = before
            loop.add_reader(keyboard, self._read)
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
            # Ctrl-Z would leave the shell on this screen.
            self._on_suspend = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.remove_signal_handler(signal.SIGWINCH)
            signal.signal(signal.SIGTSTP, self._on_suspend or signal.SIG_DFL)
        if self._finish is not None:
            self._finish.cancel()
        if self._before is not None:
            keyboard = sys.stdin.fileno()
            loop.remove_reader(keyboard)
            with contextlib.suppress(termios.error):
                termios.tcsetattr(keyboard, termios.TCSADRAIN, self._before)
        self._write(_LEAVE)

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and rows."""
        return terminal_size(sys.stdout)

    def draw(self, lines: Sequence[str]) -> None:
        """Replace the content of the screen with these lines, which fit it. Only lines that differ are written."""
        size = self.size
        start = ""
        if size != self._size:
            start, self._size, self._drawn = "\x1b[2J", size, []
        changed = []
        for number, line in enumerate(lines[: size[1]]):
            if number >= len(self._drawn) or self._drawn[number] != line:
                # Cleared first: after a character in the last column, clearing would erase that character.
                changed.append(f"\x1b[{number + 1};1H\x1b[2K{line}")
        self._drawn = list(lines)
        if start or changed:
            self._write(start + "".join(changed))

    def _read(self) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            return
        self.reads += 1
        if self._finish is not None:
            self._finish.cancel()
            self._finish = None
        text = self._unread + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        at = len(text) if unfinished is None else unfinished.start()
        self._unread = text[at:]
        if self._unread:
            self._finish = asyncio.get_running_loop().call_later(_FINISH_S, self._flush)
        for key in split_keys(text[:at]):
            self._on_key(key)

    def _flush(self) -> None:
        """What looked like the beginning of a sequence were keys."""
        self._finish, text, self._unread = None, self._unread, ""
        for key in split_keys(text):
            self._on_key(key)

    def _write(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()
