"""Run `jetjobs ARGUMENTS` in forks of one process with all imports done: real processes that start quickly.

Run as a program, this module is that process. It reads requests from the socket on its standard input until the
socket is closed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

_LENGTH = struct.Struct("!I")


class Forker:
    """Sends commands to that process, which is started with the first one and ends with ours. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, arguments: Sequence[str], cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """As subprocess.run with captured output."""
        ours, theirs = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        with ours, open(out, "rb", 0) as stdout, open(err, "rb", 0) as stderr:
            try:
                self._send(
                    {"argv": list(arguments), "cwd": str(cwd), "env": env}, [0, out_end, err_end, theirs.fileno()]
                )
            finally:
                theirs.close()
                os.close(out_end)
                os.close(err_end)
            give_up = time.monotonic() + timeout
            pid = _number(ours, give_up)
            try:
                written = _read_all([stdout.fileno(), stderr.fileno()], give_up)
                code = _number(ours, give_up)
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(list(arguments), timeout) from None
        return subprocess.CompletedProcess(list(arguments), code, *(text.decode() for text in written))

    def _send(self, request: dict[str, object], files: list[int]) -> None:
        body = json.dumps(request).encode()
        with self._lock:
            if self._control is None:
                self._control, theirs = socket.socketpair()
                with theirs:
                    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
                    self._process = subprocess.Popen([sys.executable, __file__], stdin=theirs.fileno(), env=env)
                atexit.register(self._end)
            socket.send_fds(self._control, [_LENGTH.pack(len(body))], files)
            self._control.sendall(body)

    def _end(self) -> None:
        assert self._control is not None
        assert self._process is not None
        self._control.close()
        self._process.wait(10)


def _number(connection: socket.socket, give_up: float) -> int:
    connection.settimeout(max(0.001, give_up - time.monotonic()))
    data = connection.recv(4, socket.MSG_WAITALL)
    if len(data) < 4:
        raise AssertionError("the forking process has ended")
    return int(struct.unpack("!i", data)[0])


def _read_all(files: list[int], give_up: float) -> list[bytes]:
    """Read each file to its end."""
    written = {file: bytearray() for file in files}
    with selectors.DefaultSelector() as selector:
        for file in files:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, give_up - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if data := os.read(key.fd, 65536):
                    written[key.fd] += data
                else:
                    selector.unregister(key.fd)
    return [bytes(written[file]) for file in files]


# In the forking process


def _serve(control: socket.socket) -> bool:
    """Fork for each request. True in the process that becomes the command, False after the last request."""
    while True:
        header, files, _, _ = socket.recv_fds(control, _LENGTH.size, 4)
        if not header:
            return False
        body = control.recv(_LENGTH.unpack(header)[0], socket.MSG_WAITALL)
        if not os.fork():
            if _supervise(control, files):
                _prepare(json.loads(body))
                return True
            os._exit(0)
        for file in files:
            os.close(file)
        while _reap():
            pass


def _reap() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


def _supervise(control: socket.socket, files: list[int]) -> bool:
    """Fork once more. Returns True in the command; the other process waits for it and reports its exit code."""
    pid = os.fork()
    *standard, answer = files
    if not pid:
        control.close()
        for number, file in enumerate(standard):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        return True
    for file in standard:
        os.close(file)
    with socket.socket(fileno=answer) as connection:
        connection.sendall(struct.pack("!i", pid))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        connection.sendall(struct.pack("!i", code))
    return False


def _prepare(request: dict[str, object]) -> None:
    """Set up the process as `python -m jetjobs` finds it."""
    os.chdir(str(request["cwd"]))
    os.environ.clear()
    os.environ.update(dict(request["env"]))  # type: ignore[call-overload]
    time.tzset()
    main = sys.modules["jetjobs"].__file__
    sys.argv = [str(Path(str(main)).with_name("__main__.py")), *list(request["argv"])]  # type: ignore[call-overload]
    sys.path[0] = os.getcwd()


def _import_everything() -> None:
    package = importlib.import_module("jetjobs")
    for module in pkgutil.walk_packages(package.__path__, "jetjobs."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


if __name__ == "__main__":
    del sys.path[0]  # this folder; replaced by the root
    sys.path.insert(0, str(Path(__file__).parents[2]))
    _import_everything()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if _serve(requests):
        from jetjobs.cli import main

        main()
