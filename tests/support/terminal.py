"""Run `jetjobs` on a pseudo-terminal: read its screen and press keys."""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes import clean_environment
from tests.support.terminal_screen import render

# Ctrl-C is a signal only on the controlling terminal: the child takes it, then runs jetjobs. The parent may ignore
# SIGHUP, so the default is restored: closing the terminal must have its usual effect.
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
)


class Terminal:
    """A process with a terminal of 80 columns as input and output; killed if it still runs at the end."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: dict[str, str],
        columns: int = 80,
        stdout: int | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        self.columns, self.rows = columns, 24
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # COLUMNS of the environment would override the width of the terminal.
        surroundings = {k: v for k, v in clean_environment(**env).items() if k not in ("COLUMNS", "LINES")}
        jetjobs = [sys.executable, "-m", "jetjobs", *arguments]
        self.popen = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, *jetjobs],
            cwd=cwd,
            env=surroundings,
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def read(self, timeout: float) -> bool:
        """Read what is available. False at the end."""
        if not select.select([self._master], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.text += self._decoder.decode(data)
        return bool(data)

    def wait_for(self, text: str, timeout: float = 30) -> None:
        give_up = time.monotonic() + timeout
        while text not in self.text:
            if not self.read(0.2) or time.monotonic() > give_up:
                raise AssertionError(f"no {text!r} in:\n{self.text}")

    def wait_for_screen(self, *texts: str, without: str | None = None, timeout: float = 30) -> list[str]:
        """Wait until the screen shows all texts, and not the other one. Returns its lines."""
        give_up = time.monotonic() + timeout
        while True:
            lines = self.screen
            shown = "\n".join(lines)
            if all(text in shown for text in texts) and (without is None or without not in shown):
                return lines
            if not self.read(0.2) or time.monotonic() > give_up:
                raise AssertionError(f"not {texts!r}, or {without!r}, on the screen:\n{shown}")

    def resize(self, columns: int, rows: int) -> None:
        """Change the size, as dragging the corner of a window does."""
        self.columns, self.rows = columns, rows
        self.text = ""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self, timeout: float = 30) -> int:
        """Read to the end and return the exit code."""
        give_up = time.monotonic() + timeout
        while self.read(0.2):
            if time.monotonic() > give_up:
                raise AssertionError(f"still running:\n{self.text}")
        return self.popen.wait(10)

    def hang_up(self, timeout: float = 30) -> int:
        """Close the terminal and return the exit code."""
        os.close(self._master)
        self._master = -1
        return self.popen.wait(timeout)

    @property
    def screen(self) -> list[str]:
        """What is on the screen now. Of a program that clears it first, also after a change of size."""
        return render(
            self.text.rpartition("\x1b[2J")[2] if "\x1b[2J" in self.text else "", self.columns, self.rows
        )

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.replace("\r\n", "\n").split("\n")]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)
        if self._master >= 0:
            with contextlib.suppress(OSError):
                os.close(self._master)
