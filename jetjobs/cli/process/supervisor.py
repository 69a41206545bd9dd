"""`--processes N`: run N workers as child processes behind one port, restart those that die, stop all together.

Each child serves its metrics and health on a loopback socket that it inherits. The supervisor's port combines
them, with the label `process` (ADR 33).
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from jetjobs.cli.exit_codes import APP_BROKEN, DONE, RECYCLED, REFUSED, UNREACHABLE, USAGE
from jetjobs.cli.process.signals import stop_signals
from jetjobs.dev_server import die_with_parent
from jetjobs.model.settings import Settings
from jetjobs.observe.health import BLOCKED_AFTER_S, LISTENING, Health, JoinedPages

ANSWER_TIMEOUT_S = 2.0
"""How long to wait for a child's answer. The page leaves out a child that does not answer."""
_FINAL = frozenset({USAGE, APP_BROKEN, REFUSED})
"""A restarted child would exit with the same code again: stop all children and exit with it."""
_STEADY_S = 5.0
"""A child that ran for this long had started successfully: it is restarted at once."""
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class _Child:
    def __init__(self, arguments: Sequence[str], number: int, port: socket.socket | None = None) -> None:
        self._arguments = arguments
        self._port = port
        self.number = number
        self.failures = 0
        self.start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.signalled = 0
        self._alive_at = 0.0
        """When it last answered a probe; 0 before its first answer."""

    def start(self) -> None:
        self.started = time.monotonic()
        self.signalled = 0
        self._alive_at = 0.0
        environment = {**os.environ, "JETJOBS_CHILD": str(self.number)}
        if self._port is not None:
            environment[LISTENING] = str(self._port.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jetjobs", *self._arguments],
            env=environment,
            pass_fds=() if self._port is None else (self._port.fileno(),),
            # A session of its own, so that the terminal's Ctrl-C reaches it once, through the supervisor.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )

    def pass_on(self, signals: int) -> None:
        """Send the child as many signals as the supervisor got, also those that came while it was starting."""
        while self.process is not None and self.signalled < signals and self.process.poll() is None:
            self.signalled += 1
            self.process.send_signal(signal.SIGTERM if self.signalled < 3 else signal.SIGKILL)

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of the child's answer; status 0 if it does not answer in time."""
        if self.process is None or self._port is None:
            return 0, ""
        host, port = self._port.getsockname()
        connection = http.client.HTTPConnection(host, port, timeout=ANSWER_TIMEOUT_S)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        return 0, ""

    def silent_s(self) -> float:
        """For how long its event loop has been blocked, as far as known; 0 before its first answer."""
        status, _ = self.get("/livez")
        if not status:
            return time.monotonic() - self._alive_at if self._alive_at else 0.0
        self._alive_at = time.monotonic()
        return 0.0 if status == 200 else BLOCKED_AFTER_S


class _AllChildren:
    """Health and metrics of all children combined. Called from the threads of the HTTP port."""

    def __init__(self, children: Sequence[_Child]) -> None:
        self._children = children
        self._pool = ThreadPoolExecutor(2 * len(children), "jetjobs-processes")

    def pages(self) -> Iterable[tuple[int, str]]:
        for child, (_, text) in zip(self._children, self._get_all("/metrics"), strict=True):
            yield child.number, text

    def problem(self) -> str:
        answers = zip(self._children, self._get_all("/readyz"), strict=True)
        return "; ".join(
            f"process {child.number}: {text.strip().removeprefix('not ready: ') or 'no answer'}"
            for child, (status, text) in answers
            if status != 200
        )

    def silent_s(self) -> float:
        return max(self._pool.map(_Child.silent_s, self._children))

    def _get_all(self, path: str) -> Iterable[tuple[int, str]]:
        return self._pool.map(lambda child: child.get(path), self._children)


def supervise(arguments: Sequence[str], count: int, settings: Settings) -> int:
    """Run `count` children with the same command line until they exit or a signal stops them."""
    address = settings.worker.http
    if address == "off":
        return _supervise([_Child(arguments, number) for number in range(count)])
    with contextlib.ExitStack() as stack:
        ports = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        children = [_Child(arguments, number, port) for number, port in enumerate(ports)]
        with _serving(address, children):
            return _supervise(children)


@contextlib.contextmanager
def _serving(address: str, children: Sequence[_Child]) -> Iterator[str]:
    """Serve one port for all children; ConfigError if it cannot be opened."""
    combined = _AllChildren(children)
    health = Health(JoinedPages(combined.pages).registry, combined.problem, combined.silent_s)
    address = health.start(address)
    try:
        yield address
    finally:
        health.stop()


def _supervise(children: Sequence[_Child]) -> int:
    signals = 0
    woken = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        # Shell and kernel may both send a hangup: it counts once.
        signals = max(signals, 1) if number == signal.SIGHUP else signals + 1
        woken.set()

    for number in stop_signals():
        signal.signal(number, on_signal)
    for child in children:
        if not signals:
            child.start()
    worst = DONE
    while any(child.process is not None or child.start_at for child in children):
        woken.wait(0.1)
        woken.clear()
        for child in children:
            child.pass_on(signals)
            code = child.process.poll() if child.process is not None else None
            if code is not None:
                worst = max(worst, _ended(child, code, stopping=signals > 0))
                if code in _FINAL and not signals:
                    on_signal(signal.SIGTERM, None)
            elif child.process is None and child.start_at and not signals and time.monotonic() >= child.start_at:
                child.start_at = 0.0
                child.start()
            elif signals:
                child.start_at = 0.0
    return worst


def _ended(child: _Child, code: int, *, stopping: bool) -> int:
    """Plan a restart unless the child is done. Returns what it contributes to the supervisor's exit code."""
    child.process = None
    if stopping and code == -signal.SIGTERM:
        return DONE  # it was still starting: a running worker handles this signal
    if stopping or code == DONE:
        return max(code, 1) if code not in (DONE, RECYCLED) else DONE
    if code == RECYCLED:
        print(f"worker {child.number} is recycling; restarting", file=sys.stderr)
        child.failures, child.start_at = 0, time.monotonic()
        return DONE
    if code in _FINAL:
        return code
    lived = time.monotonic() - child.started
    child.failures = 0 if lived >= _STEADY_S else child.failures + 1
    if code == UNREACHABLE and child.failures == 1 and lived < _STEADY_S:
        print(f"worker {child.number} cannot reach NATS; retrying", file=sys.stderr)
    pause = _PAUSES_S[min(child.failures, len(_PAUSES_S)) - 1] if child.failures else 0.0
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    print(f"worker {child.number} died ({cause}); restarting in {pause:g} s", file=sys.stderr)
    child.start_at = time.monotonic() + pause
    return DONE
