"""Run the command line in real processes and read their output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.forker import Forker

_forker = Forker()


def clean_environment(**extra: str) -> dict[str, str]:
    """This environment without settings of jetjobs and NATS. The namespace is `jobs` for apps of any name,
    unless JETJOBS_QUEUES__NAMESPACE is empty.

    Bytecode is not cached: Python would not notice that a test has rewritten a module within a second.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JETJOBS_", "NATS_"))}
    ours = {"NO_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1", "JETJOBS_QUEUES__NAMESPACE": "jobs", **extra}
    return {**kept, **{name: value for name, value in ours.items() if value}}


def run(
    arguments: Sequence[str],
    cwd: Path,
    timeout: float = 30,
    env: dict[str, str] | None = None,
    *,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run `jetjobs ARGUMENTS` in its own process, with its imports already done unless `fresh`."""
    surroundings = clean_environment(**(env or {}))
    if not fresh:
        return _forker.run(arguments, cwd, surroundings, timeout)
    return subprocess.run(
        [sys.executable, "-m", "jetjobs", *arguments],
        cwd=cwd,
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


class Process:
    """`jetjobs ARGUMENTS` running during the test; killed if it still runs at the end."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: dict[str, str] | None = None,
        program: Sequence[str] = ("-m", "jetjobs"),
    ) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, *program, *arguments],
            cwd=cwd,
            env=clean_environment(**(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def wait_for(self, text: str, count: int = 1, timeout: float = 20) -> str:
        """The `count`-th line that contains `text`. Blocks, so use it in threads or plain tests."""
        give_up = time.monotonic() + timeout
        with self._news:
            while len(found := [line for line in self.lines if text in line]) < count:
                if time.monotonic() > give_up or (self.popen.poll() is not None and not self._reader.is_alive()):
                    raise AssertionError(f"no {text!r} in:\n" + "\n".join(self.lines))
                self._news.wait(0.2)
            return found[count - 1]

    def send(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def end(self, number: signal.Signals = signal.SIGTERM, timeout: float = 20) -> int:
        """Send a signal, wait for the end, and return the exit code."""
        if self.popen.poll() is None:
            self.popen.send_signal(number)
        code = self.popen.wait(timeout)
        self._reader.join(5)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.popen.poll() is None:
            self.popen.kill()
        self.popen.wait(10)
        self._reader.join(5)
        assert self.popen.stdout is not None
        self.popen.stdout.close()
