"""What follows the end of a child process. The processes themselves are tested end to end."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import cast

import pytest

from jetjobs.cli.output import APP_BROKEN, DONE, FAILED, RECYCLED, REFUSED, UNREACHABLE, USAGE
from jetjobs.cli.processes import _PAUSES_S, _Child, _ended


@pytest.fixture
def child() -> _Child:
    """One that was just started."""
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
    told = capsys.readouterr().err
    assert "worker 1 died" in told
    assert (f"signal {-code}" if code < 0 else f"exit code {code}") in told


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
    assert "worker 1 recycles itself" in capsys.readouterr().err


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
