"""Run command lines in one folder, against one server."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import Process, run
from tests.support.terminal import Terminal


class Shell:
    """Runs `jetjobs ARGUMENTS` and checks the exit code. A traceback is always a bug."""

    def __init__(self, folder: Path, url: str, group: Sequence[str] = ()) -> None:
        self.folder, self.url, self._group = folder, url, group
        self.env = {"NATS_URL": url}

    def of(self, group: str) -> Shell:
        """A shell for the commands of a group: `of("jobs")("list")` runs `jetjobs jobs list`."""
        return Shell(self.folder, self.url, [group])

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run([*self._group, *arguments], self.folder, 90, self.env)
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code).stdout)

    def error(self, *arguments: str, code: int) -> str:
        """The error line of a command that fails."""
        return error_of(self(*arguments, code=code))

    def until(self, *arguments: str, where: Callable[[Any], bool]) -> Any:
        """Repeat the command until `where` accepts its output: the registry is updated shortly after the log."""
        give_up = time.monotonic() + 60
        while not where(found := self.json(*arguments)):
            assert time.monotonic() < give_up, found
        return found

    def process(self, *arguments: str) -> Process:
        return Process(arguments, self.folder, self.env)

    def terminal(self, *arguments: str, columns: int = 80) -> Terminal:
        return Terminal(arguments, self.folder, self.env, columns)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    return next(line for line in done.stderr.splitlines() if line.startswith("error: "))
