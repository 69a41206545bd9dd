"""`jetjobs schedules` and `jetjobs scheduler` as an operator uses them: real processes, real command lines."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from jetjobs.devserver import EmbeddedServer
from tests.e2e.test_operator_commands import Shell
from tests.support.pages import Port
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth
from tests.support.terminal import Terminal

pytestmark = pytest.mark.timeout(240)  # a dozen processes each, on a machine that may be busy

TASKS = """
from datetime import datetime, timedelta
from typing import Annotated
from jetjobs import JetJobs, Secret
app = JetJobs("demo")

@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}!"

@app.task
async def log_in(user: str, password: Annotated[str, Secret()]) -> None: ...
"""
DECLARED = (
    TASKS
    + """
@app.task
async def beat(slot: datetime) -> str:
    return slot.isoformat()

beat.every(timedelta(seconds=1))
greet.cron("0 9 * * 1-5", tz="Europe/Berlin", args={"name": "Ada"}, name="mornings")
"""
)
BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def shell(folder: Path, server: EmbeddedServer) -> Shell:
    return Shell(folder, server.url)


@pytest.fixture
def declared(folder: Path) -> Path:
    (folder / "tasks.py").write_text(DECLARED)
    return folder


@pytest.fixture
def port(unused_tcp_port: int) -> Port:
    return Port(unused_tcp_port)


def weekdays_at_nine(after: datetime, count: int) -> list[datetime]:
    """Slots of `0 9 * * 1-5` in Berlin, by brute force."""
    day, found = after.astimezone(BERLIN).date(), list[datetime]()
    while len(found) < count:
        slot = datetime(day.year, day.month, day.day, 9, tzinfo=BERLIN)
        if day.isoweekday() <= 5 and slot > after:
            found.append(slot)
        day += timedelta(days=1)
    return found


def scheduler(shell: Shell, *arguments: str) -> Process:
    return Process(["scheduler", "-s", shell.url, "--log-format", "console", *arguments], shell.folder)


# Commands


async def test_a_schedule_from_put_to_delete(shell: Shell, truth: Truth) -> None:
    await asyncio.to_thread(shell, "setup", "apply")
    assert "there are no schedules" in shell("schedules", "list").stderr
    line = ["mornings", "greet", "name=Ada", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--misfire", "all"]
    put = shell.json("schedules", "put", *line, "--misfire-limit", "7", "--overlap", "skip", "--jitter", "30s")
    assert (put["state"], put["args"], put["misfire_limit"]) == ("on", {"name": "Ada"}, 7)
    stored = json.loads(
        (await truth.js.get_last_msg("KV_jobs-schedules", "$KV.jobs-schedules.mornings")).data or b""
    )
    assert (stored["cron"], stored["tz"], stored["task"]) == ("0 9 * * 1-5", "Europe/Berlin", "greet")

    table = shell("schedules", "list").stdout.splitlines()
    assert table[0].split() == ["NAME", "STATE", "NEXT", "RULE", "LAST", "LATE", "MISSED", "TASK", "QUEUE"]
    assert re.fullmatch(
        r"mornings  on +in \S+( s)? +0 9 \* \* 1-5 Europe/Berlin  - +- +0 +greet  default", table[1]
    ), table[1]
    assert shell("schedules", "list", "-q").stdout == "mornings\n"

    shown = shell("schedules", "show", "mornings").stdout
    for fact in (
        'arguments   {"name": "Ada"}',
        "misfire     all, up to 7",
        "overlap     skip",
        "jitter      30.0 s",
    ):
        assert fact in shown
    assert shown.count("upcoming") == 5

    assert "mornings  paused" in shell("schedules", "pause", "mornings").stdout
    assert "was paused already" in shell("schedules", "pause", "mornings").stdout
    assert re.search(r", paused\n", shell("schedules", "put", *line, "--paused").stdout)
    again = shell("schedules", "put", *line, "--misfire-limit", "7").stdout
    assert re.search(r"next in \S+( s)?; it was paused, and is on now\n", again)
    assert "was paused" not in shell("schedules", "put", *line, "--overlap", "skip").stdout
    shell("schedules", "pause", "mornings")
    paused = shell.json("schedules", "show", "mornings")
    assert (paused["state"], paused["next"], paused["upcoming"]) == ("paused", None, [])
    assert "resumed, next in" in shell("schedules", "resume", "mornings").stdout

    ran = shell.json("schedules", "run", "mornings")
    (subject,) = await truth.jobs()
    assert ran["id"].endswith(subject.rsplit(".", 1)[1])
    job = shell.json("jobs", "show", ran["id"])
    assert (job["state"], job["schedule"]) == ("queued", "mornings")
    assert datetime.fromisoformat(job["slot"]) <= datetime.now(UTC) + timedelta(minutes=1)

    assert "this would delete schedule mornings" in shell("schedules", "delete", "mornings", code=6).stderr
    assert shell("schedules", "delete", "mornings", "--yes", "-q").stdout == "mornings\n"
    assert "there is no schedule 'mornings'" in shell("schedules", "show", "mornings", code=5).stderr


def test_the_next_slots_are_shown_in_any_zone(shell: Shell) -> None:
    shell("setup", "apply")
    shell("schedules", "put", "mornings", "greet", "name=Ada", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin")
    for words in (
        ["mornings", "--tz", "America/New_York"],
        ["--cron", "0 14 * * *", "--tz", "America/New_York", "-n", "3"],
    ):
        before = datetime.now(UTC)
        told = shell.json("schedules", "next", *words)
        after = datetime.now(UTC)
        slots = [datetime.fromisoformat(item["slot"]) for item in told["items"]]
        local = [datetime.fromisoformat(item["local"]) for item in told["items"]]
        assert told["tz"] == "America/New_York"
        assert slots == local
        assert [moment.utcoffset() for moment in local] == [
            slot.astimezone(NEW_YORK).utcoffset() for slot in slots
        ]
        if words[0] == "mornings":
            assert slots in (weekdays_at_nine(before, 5), weekdays_at_nine(after, 5))
        else:
            assert [(moment.hour, moment.minute) for moment in local] == [(14, 0)] * 3
    rows = shell("schedules", "next", "mornings", "-n", "2").stdout.splitlines()
    assert rows[0].split() == ["SLOT", "IN", "DAY", "ZONE"]
    assert [row.split()[0][11:19] for row in rows[1:]] == ["09:00:00"] * 2
    quiet = shell("schedules", "next", "mornings", "-n", "1", "-q").stdout.strip()
    assert datetime.fromisoformat(quiet).utcoffset() in (timedelta(hours=1), timedelta(hours=2))


def test_a_rule_is_tried_out_without_a_server(folder: Path) -> None:
    away = ["-s", "nats://127.0.0.1:1"]
    done = run(["schedules", "next", "--every", "90s", "-n", "3", "--json", *away], folder)
    assert done.returncode == 0, done.stderr
    slots = [datetime.fromisoformat(item["slot"]) for item in json.loads(done.stdout)["items"]]
    assert [int(slot.timestamp()) % 90 for slot in slots] == [0, 0, 0]
    done = run(
        ["schedules", "next", "--every", "90s", "--tz", "Asia/Kathmandu", "-n", "1", "--json", *away], folder
    )
    assert json.loads(done.stdout)["items"][0]["local"].endswith("+05:45"), done.stderr
    for words, text in (
        (["--cron", "61 9 * * *"], "'61' is no minute"),
        (["--cron", "0 9 * * *", "--tz", "Europe/Berln"], "Europe/Berlin"),
        (["--every", "half"], "no duration"),
        (["--every", "1h", "--cron", "0 9 * * *"], "either cron or every"),
        ([], "name a schedule, or give --cron or --every"),
        (["x", "--every", "1h"], "name a schedule, or give --cron or --every"),
        (["x", "-n", "0"], "-n"),
    ):
        done = run(["schedules", "next", *words, *away], folder)
        assert (done.returncode, text in done.stderr) == (2, True), (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert "tried" not in done.stderr


BAD = [
    (2, "either cron or every", ["x", "greet", "name=A"]),
    (2, "either cron or every", ["x", "greet", "name=A", "--cron", "0 9 * * *", "--every", "1h"]),
    (2, "at least one second", ["x", "greet", "name=A", "--every", "500ms"]),
    (2, "no duration", ["x", "greet", "name=A", "--every", "often"]),
    (2, "tz goes with cron", ["x", "greet", "name=A", "--every", "1h", "--tz", "Europe/Berlin"]),
    (2, "--start has no time zone", ["x", "greet", "name=A", "--every", "1h", "--start", "2027-01-01"]),
    (2, "--end 'soon' is no ISO 8601 time", ["x", "greet", "name=A", "--every", "1h", "--end", "soon"]),
    (
        2,
        "ends before it starts",
        ["x", "greet", "name=A", "--every", "1h", "--start", "2027-01-02T00:00Z", "--end", "2027-01-01T00:00Z"],
    ),
    (
        2,
        "there is no slot between its start and its end",
        [
            "x",
            "greet",
            "name=A",
            "--cron",
            "0 0 1 1 *",
            "--start",
            "2027-02-01T00:00Z",
            "--end",
            "2027-03-01T00:00Z",
        ],
    ),
    (2, "no slot from now until its end", ["x", "greet", "name=A", "--every", "1h", "--end", "2020-01-01T00:00Z"]),
    (2, "greater than or equal to 0", ["x", "greet", "name=A", "--every", "1h", "--revision", "-1"]),
    (2, "misfire", ["x", "greet", "name=A", "--every", "1h", "--misfire", "some"]),
    (2, "name: Field required", ["x", "greet", "--every", "1h"]),
    (2, "is no argument", ["x", "greet", "Ada", "--every", "1h"]),
    (2, "schedule", ["a.b", "greet", "name=A", "--every", "1h"]),
    (5, "nosuch", ["x", "nosuch", "--every", "1h"]),
    (5, "there is no queue 'nowhere'", ["x", "greet", "name=A", "--every", "1h", "--queue", "nowhere"]),
    (6, "its revision is none, not 7", ["x", "greet", "name=A", "--every", "1h", "--revision", "7"]),
]


def test_bad_input_has_its_code_and_stores_nothing(shell: Shell) -> None:
    shell("setup", "apply")
    for code, text, words in BAD:
        assert text in shell("schedules", "put", *words, code=code).stderr, words
    assert shell.json("schedules", "list")["items"] == []
    for words in (["show", "x"], ["next", "x"], ["run", "x"], ["pause", "x"], ["resume", "x"], ["delete", "x"]):
        assert "there is no schedule 'x'" in shell("schedules", *words, code=5).stderr


def test_of_two_who_edit_one_wins_and_the_other_is_told(shell: Shell) -> None:
    shell("setup", "apply")
    seen = shell.json("schedules", "put", "s", "greet", "name=A", "--every", "1h", "--revision", "0")["revision"]
    shell("schedules", "put", "s", "greet", "name=B", "--every", "2h", "--revision", str(seen))
    lost = shell("schedules", "put", "s", "greet", "name=C", "--every", "3h", "--revision", str(seen), code=6)
    assert "was changed meanwhile" in lost.stderr
    assert "hint: " in lost.stderr
    found = shell.json("schedules", "show", "s")
    assert (found["args"], found["every_s"]) == ({"name": "B"}, 7200)


def test_secret_arguments_are_masked(shell: Shell) -> None:
    shell("setup", "apply")
    shell("schedules", "put", "s", "log_in", "user=ada", "password=hunter2", "--every", "1h")
    for words in (["list", "--json"], ["show", "s"], ["show", "s", "--json"]):
        assert "hunter2" not in shell("schedules", *words).stdout
    assert shell.json("schedules", "show", "s")["args"]["user"] == "ada"


def test_a_narrow_terminal_keeps_what_matters(shell: Shell) -> None:
    shell("setup", "apply")
    name = "a-schedule-with-quite-a-long-name"
    shell(
        "schedules", "put", name, "greet", "name=A", "--cron", "0,15,30,45 9-17 * * 1-5", "--tz", "Europe/Berlin"
    )
    for columns, shown, named in ((80, "NAME STATE NEXT RULE LAST", name), (40, "NAME STATE NEXT", name[:19])):
        with Terminal(["schedules", "list", "-s", shell.url], shell.folder, {}, columns=columns) as terminal:
            assert terminal.end() == 0, terminal.text
        assert max(len(line) for line in terminal.lines) <= columns, terminal.text
        assert terminal.lines[0].split()[: len(shown.split())] == shown.split()
        assert terminal.lines[1].startswith(named)
    with Terminal(["schedules", "next", name, "-s", shell.url], shell.folder, {}, columns=40) as terminal:
        assert terminal.end() == 0, terminal.text
    assert terminal.lines[0].split()[:2] == ["SLOT", "IN"]
    assert max(len(line) for line in terminal.lines) <= 40, terminal.text


async def test_names_that_cannot_be_read_are_cut(shell: Shell, truth: Truth) -> None:
    shell("setup", "apply")
    await truth.js.publish(f"$KV.jobs-schedules.{'y' * 3000}", b"no JSON")
    told = shell("schedules", "list").stderr
    assert f"1 cannot be read, and are not planned: {'y' * 35}…" in told
    assert max(map(len, told.splitlines())) < 120


def test_the_narrowest_table_keeps_the_next_slot(shell: Shell) -> None:
    shell("setup", "apply")
    shell("schedules", "put", "mornings", "greet", "name=A", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin")
    with Terminal(["schedules", "list", "-s", shell.url], shell.folder, {}, columns=40) as terminal:
        assert terminal.end() == 0, terminal.text
    assert terminal.lines[0].split()[:3] == ["NAME", "STATE", "NEXT"]
    assert "LAST" not in terminal.lines[0]


def test_delete_asks_on_a_terminal(shell: Shell) -> None:
    shell("setup", "apply")
    shell("schedules", "put", "s", "greet", "name=A", "--every", "1h")
    for answer, code in (("n", 6), ("y", 0)):
        with Terminal(["schedules", "delete", "s", "-s", shell.url], shell.folder, {}) as terminal:
            terminal.wait_for("delete schedule s?")
            terminal.press(answer + "\n")
            assert terminal.end() == code, terminal.text
    shell("schedules", "show", "s", code=5)


async def test_what_cannot_be_read_is_named_and_can_be_deleted(shell: Shell, truth: Truth) -> None:
    await asyncio.to_thread(shell, "setup", "apply")
    await truth.js.publish("$KV.jobs-schedules.broken", b"no JSON")
    listed = shell("schedules", "list", "--json")
    assert json.loads(listed.stdout)["items"] == []
    assert "1 cannot be read, and are not planned: broken" in listed.stderr
    assert "cannot be read" in shell("schedules", "show", "broken", code=2).stderr
    await truth.js.publish("$KV.jobs-schedules.H.12", b"no JSON")
    assert "broken" not in shell("schedules", "delete", "*", "--yes", code=2).stdout
    shell("schedules", "delete", "broken", "H.12", "--yes")
    assert "there are no schedules" in shell("schedules", "list").stderr


def test_none_or_all_of_several_are_changed(shell: Shell) -> None:
    shell("setup", "apply")
    shell("schedules", "put", "a", "greet", "name=A", "--every", "1h")
    shell("schedules", "pause", "a", "b", code=5)
    assert shell.json("schedules", "show", "a")["state"] == "on"
    shell("schedules", "delete", "a", "b", "--yes", code=5)
    assert [item["name"] for item in shell.json("schedules", "list")["items"]] == ["a"]


# The scheduler


async def slots_done(truth: Truth) -> set[str]:
    return {record["slot"] for record in (await truth.done()).values() if record.get("schedule") == "beat"}


async def holder(truth: Truth) -> str | None:
    """Who holds the leader lock."""
    subjects = await truth.subjects("KV_jobs-locks", "$KV.jobs-locks.leader")
    if not subjects:
        return None
    message = await truth.js.get_last_msg("KV_jobs-locks", "$KV.jobs-locks.leader")
    return str(json.loads(message.data)["holder"]) if message.data else None


async def test_a_scheduler_plans_and_hands_over_when_it_stops(
    declared: Path, shell: Shell, truth: Truth, port: Port
) -> None:
    worker_words = ["worker", "-s", shell.url, "--no-schedules", "--name", "w", "--log-format", "console"]
    with Process(worker_words, declared) as worker:
        await asyncio.to_thread(worker.wait_for, "worker ready", 1, 60)
        # It neither stores what the code declares nor tries for the lead.
        assert await truth.subjects("KV_jobs-schedules", "$KV.jobs-schedules.>") == {}
        assert await holder(truth) is None
        with scheduler(shell, "--name", "first", "--http", port.address) as first:
            await asyncio.to_thread(first.wait_for, "scheduler ready", 1, 60)
            await port.until("/readyz", 200)

            async def three() -> bool:
                return len(await slots_done(truth)) >= 3

            await eventually(three, 60)
            assert await holder(truth) == "first"
            page = await port.until_page("jetjobs_schedule_lateness_seconds", 0.0, schedule="mornings")
            assert page.labels("schedule") == {"beat", "mornings"}
            with scheduler(shell, "--name", "second") as second:
                await asyncio.to_thread(second.wait_for, "scheduler ready", 1, 60)
                assert first.end(signal.SIGTERM, 60) == 0
                first.wait_for("scheduler stopped")

                async def handed_over() -> bool:
                    return await holder(truth) == "second"

                await eventually(handed_over, 60)
                seen = len(await slots_done(truth))

                async def goes_on() -> bool:
                    return len(await slots_done(truth)) >= seen + 3

                await eventually(goes_on, 60)
                assert second.end(signal.SIGINT, 60) == 0
        assert worker.end(signal.SIGTERM, 60) == 0
    slots = sorted(datetime.fromisoformat(slot) for slot in await slots_done(truth))
    assert {after - before for before, after in itertools.pairwise(slots)} == {timedelta(seconds=1)}


async def test_what_the_code_drops_is_deleted_by_the_next_scheduler(declared: Path, shell: Shell) -> None:
    with scheduler(shell) as first:
        await asyncio.to_thread(first.wait_for, "scheduler ready", 1, 60)
        listed = await asyncio.to_thread(shell.json, "schedules", "list")
        assert [(i["name"], i["declared_by"]) for i in listed["items"]] == [("beat", "demo"), ("mornings", "demo")]
        refused = await asyncio.to_thread(lambda: shell("schedules", "delete", "beat", "--yes", code=6))
        assert "is declared in the code of app 'demo'" in refused.stderr
        assert "--force" in refused.stderr
        await asyncio.to_thread(shell, "schedules", "pause", "mornings")
        assert first.end(signal.SIGTERM, 60) == 0
    (declared / "tasks.py").write_text(DECLARED.replace("beat.every", "#").replace("0 9 *", "0 10 *"))
    with scheduler(shell) as second:
        await asyncio.to_thread(second.wait_for, "scheduler ready", 1, 60)
        (left,) = (await asyncio.to_thread(shell.json, "schedules", "list"))["items"]
        assert (left["name"], left["cron"], left["paused"]) == ("mornings", "0 10 * * 1-5", True)
        assert second.end(signal.SIGTERM, 60) == 0
    deleted = await asyncio.to_thread(shell, "schedules", "delete", "mornings", "--yes", "--force")
    assert deleted.stdout == "mornings  deleted\n"


def test_a_scheduler_ends_with_the_codes_of_a_worker(shell: Shell) -> None:
    assert shell("scheduler", "--provision", "verify", code=6).stderr
    away = run(["scheduler", "-s", "nats://127.0.0.1:1", "--timeout", "1s"], shell.folder)
    assert away.returncode == 3, away.stderr
    shell("scheduler", "nowhere:app", code=2)
    shell("scheduler", "--http", "nonsense", code=2)


async def test_several_processes_of_one_worker_plan_once(
    declared: Path, shell: Shell, truth: Truth, port: Port
) -> None:
    words = ["worker", "-s", shell.url, "-p", "2", "--http", port.address, "--log-format", "console"]
    with Process(words, declared) as workers:
        await asyncio.to_thread(workers.wait_for, "worker ready", 2, 90)

        async def three() -> bool:
            return len(await slots_done(truth)) >= 3

        await eventually(three, 60)
        await port.until_page("jetjobs_schedule_lateness_seconds", 0.0, schedule="mornings")
        assert workers.end(signal.SIGTERM, 60) == 0
