"""The terminal as a screen: its size, full-screen drawing and single keys."""

from __future__ import annotations

import codecs
import collections
import contextlib
import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from jetjobs.cli.process.signals import stop_signals

if TYPE_CHECKING:
    import asyncio

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
    """Takes over the terminal of standard output, until the block ends or a signal ends the process.

    What others print in the meantime would destroy the picture: it is printed afterwards.
    """

    def __init__(self) -> None:
        self._out = sys.stdout
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._held: list[_Held] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
        self._early = b""
        self._unread = ""
        self._on_key: Callable[[str], None] = lambda key: None
        self._finish: asyncio.TimerHandle | None = None
        self._drawn: list[str] = []
        self._size = (0, 0)
        self.reads = 0
        """How often keys were read. Several keys of one read were pasted, or typed without looking."""

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # not in the main thread
            for number in stop_signals():
                if number != signal.SIGINT:
                    self._handlers[number] = signal.signal(number, self._end)
            # Ctrl-Z would leave the shell on this screen.
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        with contextlib.suppress(termios.error, OSError, ValueError):
            # Raises if stdin is not a terminal: keys are then unavailable.
            self._before = termios.tcgetattr(sys.stdin.fileno())
            tty.setcbreak(sys.stdin.fileno(), termios.TCSADRAIN)  # keeps what was typed before
        self._held = [_Held(name) for name in ("stdout", "stderr") if getattr(sys, name).isatty()]
        self._write(_ENTER)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore(termios.TCSADRAIN)
        for number, handler in self._handlers.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        for held in self._held:
            held.release()

    def _restore(self, when: int) -> None:
        if self._before is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(sys.stdin.fileno(), when, self._before)
        # Not through the stream: a signal may have interrupted it while it writes.
        os.write(self._out.fileno(), _LEAVE.encode())

    def _end(self, number: int, _: object) -> None:
        """Restore the terminal and let the signal end the process, as it ends other commands."""
        signal.signal(number, signal.SIG_DFL)
        with contextlib.suppress(OSError):  # the terminal may be gone
            self._restore(termios.TCSANOW)  # Ctrl-S may hold back the output
        os.kill(os.getpid(), number)

    @contextlib.contextmanager
    def quit_key(self) -> Iterator[None]:
        """Raise KeyboardInterrupt when `q` is pressed while the block runs, which needs no event loop. Other keys
        are kept."""
        if self._before is None:
            yield
            return
        stopped, stop = os.pipe()
        waiting = threading.Thread(target=self._wait_for_quit, args=[stopped], daemon=True)
        waiting.start()
        try:
            yield
        finally:
            os.close(stop)
            waiting.join()
            os.close(stopped)
        if self.quit_pressed:
            raise KeyboardInterrupt

    @property
    def quit_pressed(self) -> bool:
        """Whether `q` was pressed before the screen had an event loop."""
        keys = split_keys(self._early.decode(errors="ignore"))
        return "q" in keys and "/" not in keys[: keys.index("q")]  # not text of a filter

    def _wait_for_quit(self, stopped: int) -> None:
        keyboard = sys.stdin.fileno()
        while not self.quit_pressed:
            if stopped in select.select([keyboard, stopped], [], [])[0]:
                return
            try:
                data = os.read(keyboard, 1024)
            except OSError:
                data = b""
            if not data:  # the terminal was closed
                return
            self._early += data
        # A signal also interrupts a system call in which the import of the app waits.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    @contextlib.contextmanager
    def listening(self, on_key: Callable[[str], None], on_resize: Callable[[], None]) -> Iterator[None]:
        """While the block runs on an event loop, call `on_key` with each key, and `on_resize` when the size has
        changed."""
        import asyncio  # here, so that the first frame does not wait for it

        loop = asyncio.get_running_loop()
        self._on_key = on_key
        if self._early:
            self._receive(self._early, loop)
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):  # not in the main thread
            loop.add_signal_handler(signal.SIGWINCH, on_resize)
        if self._before is not None:
            with contextlib.suppress(NotImplementedError):
                loop.add_reader(sys.stdin.fileno(), self._read, loop)
        try:
            yield
        finally:
            with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                loop.remove_signal_handler(signal.SIGWINCH)
            if self._finish is not None:
                self._finish.cancel()
            if self._before is not None:
                with contextlib.suppress(NotImplementedError):
                    loop.remove_reader(sys.stdin.fileno())

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and rows."""
        return terminal_size(self._out)

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

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            data = os.read(sys.stdin.fileno(), 1024)
        except OSError:
            data = b""
        if not data:  # the terminal was closed
            loop.remove_reader(sys.stdin.fileno())
            return
        self._receive(data, loop)

    def _receive(self, data: bytes, loop: asyncio.AbstractEventLoop) -> None:
        self.reads += 1
        if self._finish is not None:
            self._finish.cancel()
            self._finish = None
        text = self._unread + self._decoder.decode(data)
        unfinished = _UNFINISHED.search(text)
        at = len(text) if unfinished is None else unfinished.start()
        self._unread = text[at:]
        if self._unread:
            self._finish = loop.call_later(_FINISH_S, self._flush)
        for key in split_keys(text[:at]):
            self._on_key(key)

    def _flush(self) -> None:
        """What looked like the beginning of a sequence were keys."""
        self._finish, text, self._unread = None, self._unread, ""
        for key in split_keys(text):
            self._on_key(key)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


class _Held:
    """Replaces a standard stream and keeps what is written to it, the last part of it if that is much."""

    def __init__(self, name: str) -> None:
        self._name, self._stream = name, getattr(sys, name)
        self._kept: collections.deque[str] | None = collections.deque(maxlen=1000)
        setattr(sys, name, self)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        # A log handler of the app may keep this object.
        write = self._stream.write if self._kept is None else self._kept.append
        write(text)
        return len(text)

    def release(self) -> None:
        """Print what was kept, and put the stream back in its place."""
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._stream)
        kept, self._kept = self._kept or (), None
        self._stream.writelines(kept)
