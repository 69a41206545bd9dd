"""What commands print on a terminal: colours, short ids, texts that fit, and the same in a pipe without them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import pytest

from jetjobs import JetJobs, RetryPolicy, Secret
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from jetjobs.model.wire.ids import key_token
from tests.support.letters import bury
from tests.support.processes import clean_environment, run
from tests.support.server import Truth
from tests.support.shell import Shell
from tests.support.terminal import Terminal

TASKS = """
from typing import Annotated
from jetjobs import JetJobs, RetryPolicy, Secret, current_job
app = JetJobs("demo")

@app.task(retry=RetryPolicy(base="1h", jitter=False))
async def fragile(name: str, card: Annotated[str, Secret()] = "4111") -> None:
    current_job().progress(0.5, "half")
    raise ValueError("first \\x1b[2J " + "x" * 500)
"""
COLOURED = {"NO_COLOR": "", "TERM": "xterm-256color", "COLORTERM": ""}
ANSI = re.compile(r"\x1b\[[0-9;]*m")
WHOLE = [f"01a1e2531c847834a12f8c60fdba00{n:02}" for n in range(3)]
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    opened = JetJobs("test", settings=build_settings({"nats": {"url": server.url}}))

    @opened.task(retry=RetryPolicy(base="1h", jitter=False))
    async def fragile(name: str, card: Annotated[str, Secret()] = "") -> None: ...

    async with opened:
        await opened.provision(["default"])
        yield opened


async def enqueue(app: JetJobs, job_id: str, name: str = "Ada", **options: Any) -> str:
    return (await app.find("fragile").options(job_id=job_id, **options).enqueue(name=name, card="4111")).id


def on_terminal(shell: Shell, *arguments: str, columns: int = 80, code: int = 0) -> str:
    """What a terminal with colours gets."""
    with Terminal(arguments, shell.folder, {**shell.env, **COLOURED}, columns) as terminal:
        assert terminal.end(60) == code, terminal.text
    return terminal.text.replace("\r\n", "\n")


def fits(text: str, columns: int) -> bool:
    return all(len(line) <= columns for line in ANSI.sub("", text).split("\n"))


async def test_a_table_has_colours_and_short_ids_only_on_a_terminal(app: JetJobs, shell: Shell) -> None:
    await enqueue(app, WHOLE[0])
    await enqueue(app, WHOLE[1], delay="1h")
    await bury(app, "fragile", [b"{}"], ids=[WHOLE[2]])
    shown = on_terminal(shell, "jobs", "list")
    assert "\x1b[36mqueued\x1b[0m" in shown
    assert "\x1b[34mscheduled\x1b[0m" in shown
    head, *rows = ANSI.sub("", shown).strip().split("\n")
    assert [row.split()[:4] for row in rows] == [
        [WHOLE[0][-10:], "queued", "default", "fragile"],
        [WHOLE[1][-10:], "scheduled", "default", "fragile"],
    ]
    assert (
        rows[0].index(" 1 ") + 1 == head.index("ATTEMPT") + len("ATTEMPT") - 1
    )  # numbers are aligned to the right
    piped = shell("jobs", "list").stdout
    assert [line.split()[0] for line in piped.splitlines()] == ["ID", *WHOLE[:2]]
    assert "\x1b" not in piped
    dead = on_terminal(shell, "dead", "list")
    assert WHOLE[2][-10:] in dead
    assert WHOLE[2] not in dead
    assert shell("dead", "list", "--quiet").stdout == WHOLE[2] + "\n"
    queues = on_terminal(shell, "queues", "list", columns=120)
    assert "\x1b[31m1\x1b[0m" in queues  # a dead letter
    plain = {**shell.env, "NO_COLOR": "1", "TERM": "xterm-256color"}
    with Terminal(["queues", "list"], shell.folder, plain, 120) as terminal:
        terminal.end(60)
    assert "\x1b" not in terminal.text


async def test_every_command_takes_a_part_of_an_id(app: JetJobs, shell: Shell, truth: Truth) -> None:
    jobs = shell.of("jobs")
    for job_id in WHOLE[:2]:
        await enqueue(app, job_id, delay="1h")
    await bury(app, "fragile", [b'{"name": "Ada"}'], ids=[WHOLE[2]])
    first, second, third = (job_id[-10:] for job_id in WHOLE)
    assert jobs.json("show", first)["id"] == WHOLE[0]
    assert jobs("reschedule", first, "--delay", "2h").stdout == f"{WHOLE[0]} moved\n"
    assert jobs("priority", first, "high").stdout == f"{WHOLE[0]} moved\n"
    ambiguous = jobs("cancel", WHOLE[0][:20], code=2)
    assert ambiguous.stderr.startswith(
        f"error: 3 job ids begin or end with '{WHOLE[0][:20]}':\n  {WHOLE[0]}  defa"
    )
    assert "hint: give more characters, or the whole id" in ambiguous.stderr
    assert json.loads(jobs("cancel", WHOLE[0][:20], "--json", code=2).stderr)["error"]["code"] == 2
    jobs("cancel", second, "abcdefabcdef", code=5)  # one of them does not exist
    assert len(await truth.jobs()) == 2, "nothing was cancelled"
    assert jobs("cancel", first, WHOLE[0]).stdout == f"{WHOLE[0]} cancelled\n"
    assert len(await truth.jobs()) == 1
    jobs("wait", first, code=1)
    jobs("watch", first, code=1)
    dead = shell.of("dead")
    assert dead.json("show", third)["id"] == WHOLE[2]
    assert dead.error("show", second, code=5) == f"error: no dead letter of job {second}"
    assert dead("replay", third).stdout == "1 replayed\n"
    await bury(app, "fragile", [b"{}"], ids=["another-" + third])
    assert dead("delete", third).stdout == "1 deleted\n"
    assert await truth.dead() == {}


async def test_a_job_is_shown_with_what_was_sent_and_every_failure(app: JetJobs, shell: Shell) -> None:
    with shell.process("worker", "--name", "w1") as worker:
        worker.wait_for("worker.ready", timeout=60)
        headers = {"Trace-Id": "b7ad"}
        sent = await enqueue(app, "05", "Ada", key="order 7", headers=headers)
        worker.wait_for("job.retried", timeout=60)
    found = shell.json("jobs", "show", sent)
    assert found["arguments"] == {"name": "Ada", "card": "***"}
    assert (found["headers"], found["key"]) == (headers, key_token("order 7"))
    assert shell("jobs", "list", "--key", "order 7", "--quiet").stdout == sent + "\n"
    for columns in (40, 80):
        shown = on_terminal(shell, "jobs", "show", sent, columns=columns)
        assert fits(shown.partition("Traceback")[0], columns)
    plain = ANSI.sub("", shown)
    assert re.search(
        r"^enqueued_at  (just now|\d+ s ago) +20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC$", plain, re.MULTILINE
    )
    assert re.search(r"^due_at       in (59 min|1 h) ", plain, re.MULTILINE)
    assert 'arguments    {"name": "Ada", "card": "***"}' in plain
    assert "header       Trace-Id: b7ad" in plain
    assert re.search(
        r"^failed       attempt 1, (just now|.* ago) on w1\n {13}ValueError: first \\x1b\[2J x",
        plain,
        re.MULTILINE,
    )
    assert "\x1b[38;5;208mretrying\x1b[0m" in shown
    assert "\x1b[2J" not in shown


async def test_hostile_and_huge_texts_neither_control_nor_flood_the_terminal(app: JetJobs, shell: Shell) -> None:
    huge = "\x1b]0;owned\x07" + "é" * 400_000
    await enqueue(app, WHOLE[0], huge, delay="1h")
    await bury(app, "fragile", [b"{}"], ids=[WHOLE[1]], headers={"X": "\x1b[2Jy"})
    shown = on_terminal(shell, "jobs", "show", WHOLE[0], columns=40)
    assert fits(shown, 40)
    assert len(shown) < 8_000
    assert "characters; --json prints all)" in re.sub(r"\n +", " ", ANSI.sub("", shown))
    everything = shown + on_terminal(shell, "dead", "show", WHOLE[1], columns=40)
    assert not re.search(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]", ANSI.sub("", everything))
    assert "\x1b[2J" not in everything
    assert (
        json.loads(shell("jobs", "show", WHOLE[0]).stdout.split("arguments    ")[1].split("\n")[0])["name"] == huge
    )
    for command in (["jobs", "list"], ["dead", "list"], ["dead", "list", "--group"], ["queues", "list"]):
        assert fits(on_terminal(shell, *command, columns=40), 40)


async def test_groups_of_dead_letters_have_an_example_and_the_newest_comes_first(
    app: JetJobs, shell: Shell
) -> None:
    for number, task in enumerate(("often", "often", "newest")):
        await bury(app, task, [b"{}"], ids=[WHOLE[number]])
    found = shell.json("dead", "list", "--group")["items"]
    assert [(one["task"], one["count"], one["example"], one["text"]) for one in found] == [
        ("newest", 1, WHOLE[2], "no such thing"),
        ("often", 2, WHOLE[1], "no such thing"),
    ]
    head, *rows = ANSI.sub("", on_terminal(shell, "dead", "list", "--group")).strip("\n").split("\n")
    assert head.split() == ["COUNT", "QUEUE", "TASK", "REASON", "LAST", "EXAMPLE"]
    assert rows[0].split()[:4] == ["1", "default", "newest", "exhausted"]
    assert rows[0].endswith(WHOLE[2][-10:])
    assert rows[1] == "       LookupError: no such thing"
    piped = shell("dead", "list", "--group").stdout.splitlines()
    assert len(piped) == 3
    assert piped[1].endswith(f"{WHOLE[2]}  LookupError: no such thing")


async def test_colours_in_a_pipe_on_request_and_a_pipe_that_closes(app: JetJobs, shell: Shell) -> None:
    for number in range(200):
        await enqueue(app, f"job-{number:03}-{'x' * 80}", delay="1h")
    env = {**shell.env, "FORCE_COLOR": "1", "TERM": "xterm-256color"}
    line = ["jobs", "list", "--limit", "200"]
    forced = run(line, shell.folder, 60, env)
    assert "\x1b[34mscheduled\x1b[0m" in forced.stdout
    assert f"job-199-{'x' * 80}" in forced.stdout
    reading, writing = os.pipe()
    os.close(reading)
    with Terminal(line, shell.folder, env, stdout=writing) as terminal:
        os.close(writing)
        assert terminal.end(60) == 141
    assert terminal.text == ""


def test_progress_events_come_only_on_request(shell: Shell, app: JetJobs) -> None:
    with shell.process("worker", "--name", "w1") as worker:
        worker.wait_for("worker.ready", timeout=60)
        with (
            shell.terminal("events", columns=200) as quiet,
            shell.process("events", "--progress") as loud,
            shell.process("events", "--kind", "job.prog*") as only,
        ):
            for following in (loud, only):
                following.wait_for("following 1 worker", timeout=60)
            quiet.wait_for("following 1 worker", 60)
            job_id = ""
            for _ in range(20):  # workers publish events up to two seconds after a watcher has come
                job_id = shell("enqueue", "fragile", "name=Ada", "--quiet").stdout.strip()
                if any("job.retried" in line for line in loud.lines):
                    break
            loud.wait_for('"kind": "job.progress"', timeout=60)
            only.wait_for('"kind": "job.progress"', timeout=60)
            assert all('"job.progress"' in line or "following" in line for line in only.lines)
            quiet.wait_for("job.retried", 60)
        assert job_id not in quiet.text, "the short id is shown, once"
        assert "job.progress" not in quiet.text
        shown = next(line for line in quiet.lines if "job.retried" in line)
        assert re.search(r"ran \d+ ms  retry in 1h00m  ValueError: first", shown)


def test_no_color_also_holds_for_the_logs_of_a_worker_and_of_dev(shell: Shell) -> None:
    folder = shell.folder
    for arguments, env, coloured in (
        (["worker", "--burst"], COLOURED, True),
        (["worker", "--burst", "--no-color"], COLOURED, False),
        (["worker", "--burst"], {**COLOURED, "NO_COLOR": "1"}, False),
    ):
        with Terminal(arguments, folder, {**shell.env, **env}) as terminal:
            assert terminal.end(60) == 0, terminal.text
        assert "worker ready" in terminal.text
        assert ("\x1b[2m" in terminal.text) is coloured
    with Terminal(["dev", "--store", "memory", "--no-reload", "--no-color"], folder, COLOURED) as terminal:
        terminal.wait_for("worker ready", 60)
        terminal.press("\x03")
        terminal.end(60)
    assert "\x1b" not in terminal.text


async def test_output_that_is_not_utf_8_escapes_what_it_cannot_encode(shell: Shell, app: JetJobs) -> None:
    job_id = await enqueue(app, "escaped", name="Zoë → 🚀")
    env = clean_environment(**shell.env, PYTHONIOENCODING="ascii")

    def output(*arguments: str) -> str:
        command = [sys.executable, "-m", "jetjobs", *arguments]
        done = subprocess.run(command, cwd=shell.folder, env=env, capture_output=True, timeout=60, check=True)
        return done.stdout.decode("ascii")

    shown = json.loads(output("jobs", "show", job_id, "--json"))
    assert shown["arguments"]["name"] == "Zoë → 🚀"
    assert "Zo\\u00eb \\u2192 \\ud83d\\ude80" in output("jobs", "show", job_id)
