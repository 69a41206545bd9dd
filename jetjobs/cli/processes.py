"""`--processes N`: run N workers as child processes behind one port, restart one that dies, stop them together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType

from jetjobs.cli.hangup import heeds_hangup
from jetjobs.cli.links import VARIABLE, Gathering
from jetjobs.cli.output import APP_BROKEN, DONE, RECYCLED, REFUSED, UNREACHABLE, USAGE
from jetjobs.devserver import die_with_parent
from jetjobs.model.settings import Settings
from jetjobs.observe.health import Health
from jetjobs.observe.pages import PageCollector

_FINAL = frozenset({USAGE, APP_BROKEN, REFUSED})
"""A child that ends so would end so again: stop all and say the same."""
_STEADY_S = 5.0
"""A child that lived this long was up and running: it is restarted at once."""
_PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)


class _Child:
    def __init__(self, arguments: Sequence[str], number: int, gathering: Gathering | None = None) -> None:
        self._arguments = arguments
        self._gathering = gathering
        self.number = number
        self.failures = 0
        self.start_at = 0.0
        self.process: subprocess.Popen[bytes] | None = None
        self.started = 0.0
        self.signalled = 0

    def start(self) -> None:
        self.started = time.monotonic()
        self.signalled = 0
        environment = {**os.environ, "JETJOBS_CHILD": str(self.number)}
        link = self._gathering.add(self.number) if self._gathering is not None else None
        if link is not None:
            environment[VARIABLE] = str(link.theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jetjobs", *self._arguments],
            env=environment,
            pass_fds=() if link is None else (link.theirs.fileno(),),
            # A session of its own: the terminal's Ctrl-C reaches it through us, once.
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
        if link is not None:
            link.theirs.close()

    def ended(self) -> None:
        self.process = None
        if self._gathering is not None:
            self._gathering.remove(self.number)

    def pass_on(self, signals: int) -> None:
        """Send the child as many signals as we have had: those that came while it was being started, too."""
        while self.process is not None and self.signalled < signals and self.process.poll() is None:
            self.signalled += 1
            self.process.send_signal(signal.SIGTERM if self.signalled < 3 else signal.SIGKILL)


def supervise(arguments: Sequence[str], count: int, settings: Settings) -> int:
    """Run `count` children with the same command line until they are done or we are told to stop."""
    with _serving(settings.worker.http, count) as gathering:
        return _supervise([_Child(arguments, number, gathering) for number in range(1, count + 1)])


@contextlib.contextmanager
def _serving(address: str, count: int) -> Iterator[Gathering | None]:
    """One port for all children; ConfigError when it cannot be had."""
    if address == "off":
        yield None
        return
    gathering = Gathering(count)
    health = Health(PageCollector(gathering.page).registry, gathering.ready, gathering.silent_s)
    health.start(address)
    try:
        yield gathering
    finally:
        health.stop()


def _supervise(children: Sequence[_Child]) -> int:
    signals = 0
    woken = threading.Event()

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal signals
        # A hangup may come twice, from shell and kernel, and is meant once.
        signals = max(signals, 1) if number == signal.SIGHUP else signals + 1
        woken.set()

    for number in (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if heeds_hangup() else ())):
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
    """Plan a restart unless the child is done. What it adds to our own exit code is returned."""
    child.ended()
    if stopping and code == -signal.SIGTERM:
        return DONE  # it was still starting: a worker that has begun does not die of this signal
    if stopping or code == DONE:
        return max(code, 1) if code not in (DONE, RECYCLED) else DONE
    if code == RECYCLED:
        print(f"worker {child.number} recycles itself; restarting", file=sys.stderr)
        child.failures, child.start_at = 0, time.monotonic()
        return DONE
    if code in _FINAL:
        return code
    lived = time.monotonic() - child.started
    child.failures = 0 if lived >= _STEADY_S else child.failures + 1
    if code == UNREACHABLE and child.failures == 1 and lived < _STEADY_S:
        print(f"worker {child.number} cannot reach NATS; trying again", file=sys.stderr)
    pause = _PAUSES_S[min(child.failures, len(_PAUSES_S)) - 1] if child.failures else 0.0
    cause = f"signal {-code}" if code < 0 else f"exit code {code}"
    print(f"worker {child.number} died ({cause}); restarting in {pause:g} s", file=sys.stderr)
    child.start_at = time.monotonic() + pause
    return DONE
