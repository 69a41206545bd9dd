"""Every key of `top` on a pseudo-terminal. What a key changes is checked on the server."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from jetjobs.dev_server import EmbeddedServer
from tests.support.processes import Process
from tests.support.shell import Shell
from tests.support.terminal import Terminal

TASKS = """
import asyncio, pathlib
from typing import Annotated
from jetjobs import JetJobs, Reject, Secret, current_job
app = JetJobs("demo")

@app.task(queue="mail")
async def fail(address: str) -> None:
    raise Reject("mailbox full")

@app.cron("0 3 1 1 *", name="yearly")
@app.task
async def count(until: str = "", token: Annotated[str, Secret] = "") -> str:
    current_job().progress(0.5, "half of the way")
    while not pathlib.Path(until).exists():
        await asyncio.sleep(0.02)
    return "counted"
"""
UP, DOWN, HOME, END, PAGE_UP, PAGE_DOWN = "\x1b[A", "\x1bOB", "\x1b[H", "\x1b[F", "\x1b[5~", "\x1b[6~"
ENTER, ESCAPE, TAB, RUBOUT = "\r", "\x1b", "\t", "\x7f"
pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def worker(shell: Shell) -> Iterator[Process]:
    with shell.process("worker", "--name", "w1") as process:
        process.wait_for("worker ready", timeout=60)
        shell.until("workers", "list", where=lambda found: found["items"])
        yield process


@contextlib.contextmanager
def top(shell: Shell, columns: int = 100) -> Iterator[Terminal]:
    with shell.terminal("top", "--refresh", "200ms", columns=columns) as terminal:
        terminal.wait_for_screen("QUEUE", "default", timeout=60)
        yield terminal
        terminal.press("q")
        assert terminal.end(40) == 0
        assert terminal.text.rstrip().endswith("\x1b[?1049l")  # the terminal is restored


def enqueue(shell: Shell, *arguments: str) -> str:
    return str(shell.json("enqueue", *arguments)["id"])


def running(shell: Shell, job_id: str) -> None:
    shell.until("jobs", "show", job_id, where=lambda found: found["state"] == "running")


def test_keys_open_pages_and_go_back(shell: Shell, worker: Process) -> None:
    job_id = enqueue(shell, "count", "until=never", "token=hidden")
    dead_id = enqueue(shell, "fail", "address=ada")
    running(shell, job_id)
    shell.until("dead", "list", where=lambda found: found["items"])
    with top(shell) as terminal:
        see, press = terminal.wait_for_screen, terminal.press
        see("▸ default", "mail", job_id[-10:], "50 % half of t", "1/10 running", "1 worker", "1 dead")
        press(DOWN)
        see("▸ mail")
        press(UP)
        see("▸ default")
        press(END)
        see("▸ count")
        press(HOME)
        see("▸ default")
        press(PAGE_DOWN)
        see("▸ count")
        press(PAGE_UP)
        see("▸ default")
        press(ENTER)
        see("› queue default", "▸ count", "running")
        press(ENTER)
        see("› job ", "state       running", f"job         {job_id}", '"token": "***"', "50 %", without="hidden")
        press(ESCAPE)
        see("› queue default", without="› job")
        press(ESCAPE)
        see("Running jobs", without="› queue default")
        press(TAB)
        see("▸ count")
        press("w")
        see("› workers", "▸ w1-", "1/10", "ready")
        press(ENTER)
        see("› worker w1-", "Its jobs", "▸ count", job_id[-10:])
        press(ESCAPE + "w")
        see("Running jobs", without="› workers")
        press("s")
        see("› schedules", "▸ yearly", "on", "0 3 1 1 *")
        press(ENTER)
        see("this schedule has no job yet")
        press(ESCAPE)
        press(HOME + DOWN + "d")
        see("Dead letters of mail", "▸ fail", dead_id[-10:], "Reject: mailbox full")
        press("d")
        see("Dead letters", "▸ fail", without="Dead letters of")
        press("c")
        see("this job is dead already")
        press(ENTER)
        see("state       dead", '{"address": "ada"}', "reason      permanent", "traceback")
        press(ESCAPE + ESCAPE + "?")
        see("› help", "cancel the selected or open job")
        press("?")
        see("Running jobs")
        press("/")
        see("filter: _")
        press("maix" + RUBOUT)
        see("filter: mai_", "mail", without="default  ")
        press(ENTER)
        see("[mai]", "▸ mail")
        press(ESCAPE)
        see("default  ", without="[mai]")
        press(" ")
        see("FROZEN at")
        press(" ")
        see("default", without="FROZEN")
    assert shell.json("jobs", "show", job_id)["state"] == "running"  # nothing was changed


def test_cancel_asks_and_then_cancels_the_running_job(shell: Shell, worker: Process) -> None:
    first, second = enqueue(shell, "count", "until=never"), enqueue(shell, "count", "until=never")
    running(shell, first)
    running(shell, second)
    with top(shell) as terminal:
        terminal.wait_for_screen(first[-10:], second[-10:])
        terminal.press(TAB + "c")
        terminal.wait_for_screen(f"cancel job {first[-10:]} of count? [y/N]")
        terminal.press("n")
        terminal.wait_for_screen("nothing was changed")
        assert shell.json("jobs", "show", first)["cancel"] is None
        # What is pasted does not confirm.
        terminal.press("cy")
        terminal.wait_for_screen(f"cancel job {first[-10:]} of count? [y/N]")
        terminal.press("y")
        terminal.wait_for_screen(f"job {first}: cancelled")
        found = shell.json("jobs", "show", first)
        assert (found["state"], found["cancel"]["reason"]) == ("cancelled", "from jetjobs top")
        terminal.wait_for_screen(second[-10:], without=f"  {first[-10:]}")
        # From the page of a job, and quitting at once: what was confirmed is done first.
        terminal.press(ENTER)
        terminal.wait_for_screen("› job ", f"job         {second}")
        terminal.press("c")
        terminal.wait_for_screen("? [y/N]")
        terminal.press("y")
    assert shell.json("jobs", "show", second)["state"] == "cancelled"


def test_pause_asks_for_a_reason_and_the_same_key_resumes(shell: Shell, worker: Process) -> None:
    def pause() -> dict[str, Any] | None:
        found: dict[str, Any] | None = shell.json("queues", "show", "mail")["pause"]
        return found

    enqueue(shell, "fail", "address=ada")
    with top(shell) as terminal:
        terminal.wait_for_screen("mail")
        terminal.press(DOWN + "P")
        terminal.wait_for_screen("pause mail; Enter pauses, Esc does not; reason: _")
        terminal.press("quit?" + ESCAPE)  # q is text here
        terminal.wait_for_screen("nothing was changed")
        assert pause() is None
        terminal.press("P")
        terminal.wait_for_screen("reason: _")
        terminal.press("disk full" + ENTER)
        terminal.wait_for_screen("queue mail is paused", "paused   ")
        found = pause()
        assert found is not None
        assert found["reason"] == "disk full"
        assert "@" in found["by"]
        terminal.press(ENTER)
        terminal.wait_for_screen("paused until resumed: disk full")
        terminal.press("P")
        terminal.wait_for_screen("resume mail? [y/N]")
        terminal.press("n")
        terminal.wait_for_screen("nothing was changed")
        assert pause() is not None
        terminal.press("P")
        terminal.wait_for_screen("resume mail? [y/N]")
        terminal.press("y")
        terminal.wait_for_screen("queue mail is resumed", without="paused until")
        assert pause() is None


def test_top_says_that_the_server_is_gone_and_recovers(
    shell: Shell, worker: Process, server: EmbeddedServer
) -> None:
    with top(shell, columns=80) as terminal:
        terminal.wait_for_screen("1 worker")
        server.stop()
        terminal.wait_for_screen("NO ANSWER for", "default", timeout=60)
        terminal.press("w")
        terminal.wait_for_screen("› workers", "NO ANSWER")  # keys work in the meantime
        terminal.press(ESCAPE)
        server.start()
        terminal.wait_for_screen("default", "1 worker", without="NO ANSWER", timeout=60)
        job_id = enqueue(shell, "count", "until=never")
        terminal.wait_for_screen(job_id[-10:], timeout=60)


def test_top_follows_the_size_of_the_terminal(shell: Shell, worker: Process) -> None:
    with top(shell, columns=40) as terminal:  # the emulator fails if a line is wider
        terminal.wait_for_screen("QUEUE       STATE       QUEUED", "q quit  ? help")
        terminal.resize(140, 30)
        terminal.wait_for_screen("OLDEST", "WORKERS", "s schedules")
        terminal.resize(20, 6)
        terminal.wait_for_screen("jobs ›", "QUEUE", "q quit", without="STATE")


@pytest.mark.parametrize(("name", "coloured"), [("NO_COLOR", False), ("FORCE_COLOR", True)])
def test_colour_follows_the_environment(shell: Shell, worker: Process, name: str, coloured: bool) -> None:
    shell.env[name] = "1"
    with top(shell) as terminal:
        terminal.wait_for_screen("idle", "1 worker")
        painted = "\x1b[32m" in terminal.text or ";32m" in terminal.text or "\x1b[94m" in terminal.text
        assert painted is coloured


SLOW = """
import pathlib, time
pathlib.Path("importing").touch()
while not pathlib.Path("go on").exists():
    time.sleep(0.02)
"""


def test_the_first_frame_does_not_wait_for_the_app(shell: Shell) -> None:
    (shell.folder / "tasks.py").write_text(SLOW + TASKS)
    shell.env["JETJOBS_QUEUES__NAMESPACE"] = ""
    with shell.terminal("top") as terminal:
        terminal.wait_for_screen("connecting …", timeout=60)
        terminal.press("w")  # kept until the page can be opened
        (shell.folder / "go on").touch()
        terminal.wait_for_screen("demo › queues › workers", timeout=60)
        terminal.press("q")
        assert terminal.end(40) == 0


def test_q_ends_top_while_the_app_is_imported(shell: Shell) -> None:
    (shell.folder / "tasks.py").write_text(SLOW + TASKS)
    shell.env["JETJOBS_QUEUES__NAMESPACE"] = ""
    with shell.terminal("top") as terminal:
        terminal.wait_for_screen("connecting …", timeout=60)
        terminal.press("q")
        assert terminal.end(40) == 0
        assert terminal.text.rstrip().endswith("\x1b[?1049l")
    assert not (shell.folder / "go on").exists()


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_ends_top_restores_the_terminal(
    shell: Shell, worker: Process, ending: signal.Signals
) -> None:
    with shell.terminal("top") as terminal:
        terminal.wait_for_screen("QUEUE", "default", timeout=60)
        terminal.popen.send_signal(ending)
        assert terminal.end(40) == -ending
        assert terminal.text.rstrip().endswith("\x1b[?1049l")


def test_keys_pasted_with_the_one_that_asks_confirm_nothing(shell: Shell, worker: Process) -> None:
    job_id = enqueue(shell, "count", "until=never")
    running(shell, job_id)
    with top(shell) as terminal:
        terminal.wait_for_screen(job_id[-10:])
        for keys, answer in (("P" + ENTER, "reason"), (TAB + "cY", "cancel"), ("cy", "cancel")):
            terminal.press(keys)
            terminal.wait_for_screen(answer)
            terminal.press(ESCAPE)
            terminal.wait_for_screen("nothing was changed", without="?  y")
    assert shell.json("jobs", "show", job_id)["state"] == "running"
    assert {one["state"] for one in shell.json("queues", "list")["items"]} == {"running"}


def test_keys_typed_before_the_screen_opens_count(shell: Shell, worker: Process) -> None:
    with shell.terminal("top") as terminal:
        terminal.press("q")
        assert terminal.end(60) == 0
