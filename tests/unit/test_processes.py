"""The supervisor: restarts of child processes, and their health and metrics on one port."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import cast

import pytest

from jetjobs.cli.exit_codes import APP_BROKEN, DONE, FAILED, RECYCLED, REFUSED, UNREACHABLE, USAGE
from jetjobs.cli.process import supervisor as processes
from jetjobs.cli.process.supervisor import _PAUSES_S, _Child, _ended, _serving
from jetjobs.model.events import JobFinished
from jetjobs.observe.health import Health
from jetjobs.observe.metrics import Metrics
from tests.support.pages import Port


@pytest.fixture
def child() -> _Child:
    """A child that has just started."""
    made = _Child(["worker"], 1)
    made.started = time.monotonic()
    return made


def pause_of(child: _Child) -> float:
    return child.start_at - time.monotonic()


def test_a_child_that_is_done_is_not_restarted(child: _Child) -> None:
    assert _ended(child, DONE, stopping=False) == DONE
    assert child.process is None
    assert child.start_at == 0.0


@pytest.mark.parametrize("code", [USAGE, APP_BROKEN, REFUSED])
def test_an_end_that_would_repeat_itself_is_ours_too(code: int, child: _Child) -> None:
    assert _ended(child, code, stopping=False) == code
    assert child.start_at == 0.0


@pytest.mark.parametrize("code", [FAILED, UNREACHABLE, -9, -11, 137])
def test_a_child_that_died_is_restarted(code: int, child: _Child, capsys: pytest.CaptureFixture[str]) -> None:
    assert _ended(child, code, stopping=False) == DONE
    assert child.start_at > time.monotonic() - 1
    shown = capsys.readouterr().err
    assert "worker 1 died" in shown
    assert (f"signal {-code}" if code < 0 else f"exit code {code}") in shown


def test_restarts_of_a_child_that_keeps_dying_come_further_and_further_apart(child: _Child) -> None:
    pauses = []
    for _ in range(7):
        child.started = time.monotonic()
        _ended(child, FAILED, stopping=False)
        pauses.append(pause_of(child))
    expected = [*_PAUSES_S, _PAUSES_S[-1], _PAUSES_S[-1]]
    assert pauses == pytest.approx(expected[:7], abs=0.2)


def test_a_child_that_had_been_steady_is_restarted_at_once(child: _Child) -> None:
    child.failures = 4
    child.started = time.monotonic() - 60
    _ended(child, FAILED, stopping=False)
    assert pause_of(child) <= 0
    assert child.start_at
    assert child.failures == 0


def test_a_child_that_recycles_itself_is_restarted_at_once_however_short_it_lived(
    child: _Child, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(3):
        child.started = time.monotonic()
        assert _ended(child, RECYCLED, stopping=False) == DONE
        assert child.start_at
        assert pause_of(child) <= 0
    assert "worker 1 is recycling" in capsys.readouterr().err


class FakeProcess:
    def __init__(self) -> None:
        self.got: list[int] = []

    def poll(self) -> None:
        return None

    def send_signal(self, number: int) -> None:
        self.got.append(number)


def test_a_child_gets_the_signals_that_came_while_it_was_started(child: _Child) -> None:
    process = FakeProcess()
    child.process = cast("subprocess.Popen[bytes]", process)
    child.pass_on(1)
    child.pass_on(1)
    assert process.got == [signal.SIGTERM]
    child.pass_on(3)
    assert process.got == [signal.SIGTERM, signal.SIGTERM, signal.SIGKILL]


@pytest.mark.parametrize(
    ("code", "ours"), [(DONE, DONE), (RECYCLED, DONE), (FAILED, FAILED), (-15, DONE), (-9, FAILED)]
)
def test_while_stopping_no_child_is_restarted(code: int, ours: int, child: _Child) -> None:
    assert _ended(child, code, stopping=True) == ours
    assert child.start_at == 0.0


class AProcess(_Child):
    """A child whose metrics and health are served by a thread of the test on a real socket."""

    def __init__(self, number: int) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        super().__init__(["worker"], number, self.listening)
        self.ready, self.silent = True, 0.1
        self.awake = threading.Event()
        self.awake.set()

    def begin(self, attempts: int) -> None:
        self.process = cast("subprocess.Popen[bytes]", FakeProcess())
        metrics = Metrics({"greet"}, "1")
        for _ in range(attempts):
            metrics.observe(JobFinished("mail", "greet", "u1", 1, "succeeded", 0.02, 0.5))
        self.health = Health(metrics.registry, self._problem, self._silent)
        self.health.start_on(socket.socket(fileno=self.listening.dup().detach()))

    def end(self) -> None:
        self.health.stop()
        self.process = None

    def _problem(self) -> str:
        assert self.awake.wait(20)
        return "" if self.ready else "no lane"

    def _silent(self) -> float:
        assert self.awake.wait(20)
        return self.silent


@pytest.fixture
def two() -> Iterator[list[AProcess]]:
    made = [AProcess(0), AProcess(1)]
    yield made
    for process in made:
        process.awake.set()
        if process.process is not None:
            process.end()
        process.listening.close()


@pytest.fixture
def port(two: list[AProcess]) -> Iterator[Port]:
    with _serving("127.0.0.1:0", two) as address:
        yield Port(int(address.rpartition(":")[2]))


SUCCEEDED = {"queue": "mail", "task": "greet", "outcome": "succeeded"}


async def test_series_of_each_process_have_its_number(two: list[AProcess], port: Port) -> None:
    two[0].begin(3)
    two[1].begin(4)
    page = await port.page()
    for number, count in (("0", 3), ("1", 4)):
        assert page.value("jetjobs_attempts_total", **SUCCEEDED, process=number) == count
        name, labels = "jetjobs_attempt_duration_seconds_bucket", {"queue": "mail", "task": "greet"}
        assert page.value(name, **labels, le="0.01", process=number) == 0
        assert page.value(name, **labels, le="0.025", process=number) == count
        assert page.value("jetjobs_nats_connected", process=number) == 1
    assert page.labels("process") == {"0", "1"}
    assert "# TYPE jetjobs_attempts_total counter" in page.text
    two[1].end()
    assert (await port.page()).labels("process") == {"0"}
    two[1].begin(1)
    assert (await port.page()).value("jetjobs_attempts_total", **SUCCEEDED, process="1") == 1


async def test_all_processes_must_be_ready(two: list[AProcess], port: Port) -> None:
    two[0].begin(0)
    assert await port.get("/readyz") == (503, "not ready: process 1: no answer\n")
    two[1].begin(0)
    assert (await port.get("/readyz"))[0] == 200
    two[1].ready = False
    assert await port.get("/readyz") == (503, "not ready: process 1: no lane\n")


async def test_a_process_that_does_not_answer_is_not_ready_and_after_a_while_not_alive(
    two: list[AProcess], port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "ANSWER_TIMEOUT_S", 0.2)
    assert (await port.get("/livez"))[0] == 200  # none has answered yet
    for process in two:
        process.begin(0)
    assert (await port.get("/livez"))[0] == 200
    two[1].silent = 31.0
    assert (await port.get("/livez"))[0] == 503
    two[1].silent = 0.1
    assert (await port.get("/livez"))[0] == 200
    two[1].awake.clear()
    assert (await port.get("/readyz"))[0] == 503
    assert (await port.get("/livez"))[0] == 200
    two[1]._alive_at -= 31.0
    assert (await port.get("/livez"))[0] == 503
