"""Runs `jetjobs ARGUMENTS` in forks of one process that has imported everything: real processes, started quickly.

As a program it is that process. It reads requests from the socket on its standard input until that is closed.
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
    """Asks that process for commands. It is started with the first one and ends with us. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def run(
        self, arguments: Sequence[str], cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """The same as subprocess.run with captured output."""
        ours, theirs = socket.socketpair()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        with ours, open(out, "rb", 0) as stdout, open(err, "rb", 0) as stderr:
            try:
                self._ask(
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

    def _ask(self, request: dict[str, object], files: list[int]) -> None:
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
        raise AssertionError("the forking process is gone")
    return int(struct.unpack("!i", data)[0])


def _read_all(files: list[int], give_up: float) -> list[bytes]:
    """What is written to each until its end."""
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


# The process


def _serve(control: socket.socket) -> bool:
    """Fork for each request. True in the process that is to be the command; False when there are no more."""
    while True:
        header, files, _, _ = socket.recv_fds(control, _LENGTH.size, 4)
        if not header:
            return False
        body = control.recv(_LENGTH.unpack(header)[0], socket.MSG_WAITALL)
        if not os.fork():
            if _mind(control, files):
                _become(json.loads(body))
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


def _mind(control: socket.socket, files: list[int]) -> bool:
    """Fork once more. True in the command; the other one waits for it and says how it ended."""
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


def _become(request: dict[str, object]) -> None:
    """What `python -m jetjobs` finds when it begins."""
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
    del sys.path[0]  # this folder; the root takes its place
    sys.path.insert(0, str(Path(__file__).parents[2]))
    _import_everything()
    gc.freeze()
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if _serve(requests):
        from jetjobs.cli import main

        main()
