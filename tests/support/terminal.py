"""`jetjobs` on a terminal of its own: what it shows there, what it asks, and keys to answer with."""

from __future__ import annotations

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

# A terminal must be the controlling one before Ctrl-C is a signal; the child takes it, then becomes jetjobs.
# Whoever runs the tests may have SIGHUP ignored: here closing the terminal is to mean what it does elsewhere.
_TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.executable, sys.argv[1:])"
)


class Terminal:
    """A process whose input and output are a terminal of 80 columns; killed if the test leaves it behind."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: dict[str, str],
        columns: int = 80,
        stdout: int | None = None,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        # COLUMNS of the environment would be taken for the width.
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

    def _read(self, timeout: float) -> bool:
        """Whether there may be more."""
        if not select.select([self._master], [], [], timeout)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other side is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def wait_for(self, text: str, timeout: float = 30) -> None:
        give_up = time.monotonic() + timeout
        while text not in self.text:
            if not self._read(0.2) or time.monotonic() > give_up:
                raise AssertionError(f"no {text!r} in:\n{self.text}")

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def end(self, timeout: float = 30) -> int:
        """Read to the end; the exit code."""
        give_up = time.monotonic() + timeout
        while self._read(0.2):
            if time.monotonic() > give_up:
                raise AssertionError(f"still running:\n{self.text}")
        return self.popen.wait(10)

    def hang_up(self, timeout: float = 30) -> int:
        """Close the terminal; the exit code."""
        os.close(self._master)
        self._master = -1
        return self.popen.wait(timeout)

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
