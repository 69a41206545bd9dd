"""`jetjobs schedules` and `jetjobs worker --slots 0` in real processes."""

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

from tests.support.pages import Port
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth
from tests.support.shell import Shell

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
async def beat(scheduled_time: datetime) -> str:
    return scheduled_time.isoformat()

beat.every(timedelta(seconds=1))
greet.cron("0 9 * * 1-5", tz="Europe/Berlin", args={"name": "Ada"}, name="mornings")
"""
)
BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


@pytest.fixture
def schedules(shell: Shell) -> Shell:
    """`jetjobs schedules`, on a server that is set up."""
    shell("setup", "apply")
    return shell.of("schedules")


@pytest.fixture
def declared(folder: Path) -> Path:
    (folder / "tasks.py").write_text(DECLARED)
    return folder


@pytest.fixture
def port(unused_tcp_port: int) -> Port:
    return Port(unused_tcp_port)


def weekdays_at_nine(after: datetime, count: int) -> list[datetime]:
    """Scheduled times of `0 9 * * 1-5` in Berlin, by brute force."""
    day, found = after.astimezone(BERLIN).date(), list[datetime]()
    while len(found) < count:
        scheduled_time = datetime(day.year, day.month, day.day, 9, tzinfo=BERLIN)
        if day.isoweekday() <= 5 and scheduled_time > after:
            found.append(scheduled_time)
        day += timedelta(days=1)
    return found


def scheduler(shell: Shell, *arguments: str) -> Process:
    """A worker that takes no jobs."""
    return shell.process("worker", "--slots", "0", "--log-format", "console", *arguments)


# Commands


async def test_a_schedule_from_put_to_delete(shell: Shell, schedules: Shell, truth: Truth) -> None:
    assert "no schedules; declare one" in schedules("list").stderr
    line = ["mornings", "greet", "name=Ada", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin", "--misfire", "all"]
    put = schedules.json("put", *line, "--overlap", "skip", "--jitter", "30s")
    assert (put["state"], put["args"], put["revision"], put["planned_by"]) == ("on", {"name": "Ada"}, 1, None)
    stored = json.loads(
        (await truth.js.get_last_msg("KV_jobs-schedules", "$KV.jobs-schedules.mornings")).data or b""
    )
    assert (stored["cron"], stored["tz"], stored["task"]) == ("0 9 * * 1-5", "Europe/Berlin", "greet")

    table = schedules("list").stdout.splitlines()
    assert table[0].split() == ["NAME", "STATE", "NEXT", "RULE", "LAST", "LATE", "MISSED", "TASK", "QUEUE"]
    assert re.fullmatch(
        r"mornings  on +in \S+( s)? +0 9 \* \* 1-5 Europe/Berlin +- +- +0 +greet  default", table[1]
    ), table[1]
    assert schedules("list", "--quiet").stdout == "mornings\n"

    shown = schedules("show", "mornings").stdout
    for fact in (
        'arguments   {"name": "Ada"}',
        "misfire     all",
        "revision    1, not planned yet: waiting for a leader",
        "overlap     skip",
        "jitter      30.0 s",
    ):
        assert fact in shown
    assert shown.count("upcoming") == 5

    paused = schedules("pause", "mornings")
    assert "mornings  paused" in paused.stdout
    assert "no leader: this takes effect once a worker leads" in paused.stderr
    assert "was already paused" in schedules("pause", "mornings").stdout
    assert re.search(r", paused\n", schedules("put", *line, "--paused").stdout)
    again = schedules("put", *line).stdout
    assert re.search(r"next in \S+( s)?; it was paused and is now on\n", again)
    assert "was paused" not in schedules("put", *line, "--overlap", "skip").stdout
    schedules("pause", "mornings")
    paused = schedules.json("show", "mornings")
    assert (paused["state"], paused["next"], paused["upcoming"]) == ("paused", None, [])
    assert "resumed, next in" in schedules("resume", "mornings").stdout

    ran = schedules.json("run", "mornings")
    (subject,) = await truth.jobs()
    assert ran["id"].endswith(subject.rsplit(".", 1)[1])
    job = shell.json("jobs", "show", ran["id"])
    assert (job["state"], job["schedule"]) == ("queued", "mornings")
    assert datetime.fromisoformat(job["scheduled_time"]) <= datetime.now(UTC) + timedelta(minutes=1)

    assert "this would delete schedule mornings" in schedules("delete", "mornings", code=6).stderr
    assert schedules("delete", "mornings", "--yes", "--quiet").stdout == "mornings\n"
    assert "schedule 'mornings' does not exist" in schedules("show", "mornings", code=5).stderr


def test_the_next_scheduled_times_are_shown_in_any_zone(schedules: Shell) -> None:
    schedules("put", "mornings", "greet", "name=Ada", "--cron", "0 9 * * 1-5", "--tz", "Europe/Berlin")
    for words in (
        ["mornings", "--tz", "America/New_York"],
        ["--cron", "0 14 * * *", "--tz", "America/New_York", "-n", "3"],
    ):
        before = datetime.now(UTC)
        shown = schedules.json("next", *words)
        after = datetime.now(UTC)
        times = [datetime.fromisoformat(item["scheduled_time"]) for item in shown["items"]]
        local = [datetime.fromisoformat(item["local"]) for item in shown["items"]]
        assert shown["tz"] == "America/New_York"
        assert times == local
        assert [moment.utcoffset() for moment in local] == [
            scheduled_time.astimezone(NEW_YORK).utcoffset() for scheduled_time in times
        ]
        if words[0] == "mornings":
            assert times in (weekdays_at_nine(before, 5), weekdays_at_nine(after, 5))
        else:
            assert [(moment.hour, moment.minute) for moment in local] == [(14, 0)] * 3
    rows = schedules("next", "mornings", "-n", "2").stdout.splitlines()
    assert rows[0].split() == ["SCHEDULED", "IN", "DAY", "ZONE"]
    assert [row.split()[0][11:19] for row in rows[1:]] == ["09:00:00"] * 2
    quiet = schedules("next", "mornings", "-n", "1", "--quiet").stdout.strip()
    assert datetime.fromisoformat(quiet).utcoffset() in (timedelta(hours=1), timedelta(hours=2))


def test_a_rule_is_tried_out_without_a_server(folder: Path) -> None:
    away = ["-s", "nats://127.0.0.1:1"]
    done = run(["schedules", "next", "--every", "90s", "-n", "3", "--json", *away], folder)
    assert done.returncode == 0, done.stderr
    times = [datetime.fromisoformat(item["scheduled_time"]) for item in json.loads(done.stdout)["items"]]
    assert [int(scheduled_time.timestamp()) % 90 for scheduled_time in times] == [0, 0, 0]
    done = run(
        ["schedules", "next", "--every", "90s", "--tz", "Asia/Kathmandu", "-n", "1", "--json", *away], folder
    )
    assert json.loads(done.stdout)["items"][0]["local"].endswith("+05:45"), done.stderr
    for words, text in (
        (["--cron", "0 9 * * *", "--tz", "Europe/Berln"], "Europe/Berlin"),
        (["--every", "half"], "invalid duration"),
        ([], "name a schedule, or give a rule with --cron or --every"),
        (["x", "--every", "1h"], "name a schedule, or give a rule with --cron or --every"),
        (["x", "-n", "0"], "-n"),
    ):
        done = run(["schedules", "next", *words, *away], folder)
        assert (done.returncode, text in done.stderr) == (2, True), (words, done.stderr)
        assert "Traceback" not in done.stderr
        assert "tried" not in done.stderr


BAD = [
    (2, "either cron or every", ""),
    (2, "at least one second", "--every 500ms"),
    (2, "invalid duration", "--every often"),
    (2, "--start: '2027-01-01' has no time zone", "--every 1h --start 2027-01-01"),
    (2, "--end: invalid ISO 8601 time 'soon'", "--every 1h --end soon"),
    (2, "no scheduled time from now until its end", "--every 1h --end 2020-01-01T00:00Z"),
    (2, "greater than or equal to 0", "--every 1h --revision -1"),
    (2, "misfire", "--every 1h --misfire some"),
    (2, "invalid argument 'Ada'", "Ada --every 1h"),
    (5, "queue 'nowhere' does not exist", "--every 1h --queue nowhere"),
    (6, "its revision is none, not 7", "--every 1h --revision 7"),
]


def test_invalid_input_has_its_exit_code_and_stores_nothing(schedules: Shell) -> None:
    for code, text, line in BAD:
        assert text in schedules("put", "x", "greet", "name=A", *line.split(), code=code).stderr, line
    assert "name: is missing" in schedules("put", "x", "greet", "--every", "1h", code=2).stderr
    assert "schedule" in schedules("put", "a.b", "greet", "name=A", "--every", "1h", code=2).stderr
    assert "nosuch" in schedules("put", "x", "nosuch", "--every", "1h", code=5).stderr
    assert schedules.json("list")["items"] == []
    for verb in ("show", "next", "run", "pause", "resume", "delete"):
        assert "schedule 'x' does not exist" in schedules(verb, "x", code=5).stderr


def test_secret_arguments_are_masked(schedules: Shell) -> None:
    schedules("put", "s", "log_in", "user=ada", "password=hunter2", "--every", "1h")
    for words in (["list", "--json"], ["show", "s"], ["show", "s", "--json"]):
        assert "hunter2" not in schedules(*words).stdout
    assert schedules.json("show", "s")["args"]["user"] == "ada"


def test_a_narrow_terminal_keeps_the_important_columns(schedules: Shell) -> None:
    name = "a-schedule-with-quite-a-long-name"
    schedules("put", name, "greet", "name=A", "--cron", "0,15,30,45 9-17 * * 1-5", "--tz", "Europe/Berlin")
    for columns, shown, named in ((80, "NAME STATE NEXT RULE LAST", name), (40, "NAME STATE NEXT", name[:19])):
        with schedules.terminal("schedules", "list", columns=columns) as terminal:
            assert terminal.end() == 0, terminal.text
        assert max(len(line) for line in terminal.lines) <= columns, terminal.text
        assert terminal.lines[0].split()[: len(shown.split())] == shown.split()
        assert terminal.lines[1].startswith(named)
    assert "LAST" not in terminal.lines[0]
    with schedules.terminal("schedules", "next", name, columns=40) as terminal:
        assert terminal.end() == 0, terminal.text
    assert terminal.lines[0].split()[:2] == ["SCHEDULED", "IN"]
    assert max(len(line) for line in terminal.lines) <= 40, terminal.text


async def test_unreadable_schedules_are_named_and_can_be_deleted(schedules: Shell, truth: Truth) -> None:
    for name in ("broken", "H.12", "y" * 3000):
        await truth.js.publish(f"$KV.jobs-schedules.{name}", b"no JSON")
    listed = schedules("list", "--json")
    assert json.loads(listed.stdout)["items"] == []
    assert f"3 cannot be read and are not planned: H.12, broken, {'y' * 35}…" in listed.stderr
    assert max(map(len, listed.stderr.splitlines())) < 120
    assert "cannot be read" in schedules.error("show", "broken", code=2)
    assert "broken" not in schedules("delete", "*", "--yes", code=2).stdout
    schedules("delete", "broken", "H.12", "y" * 3000, "--yes")
    assert "no schedules; declare one" in schedules("list").stderr


def test_all_or_none_of_several_schedules_are_changed_and_delete_asks_on_a_terminal(schedules: Shell) -> None:
    schedules("put", "a", "greet", "name=A", "--every", "1h")
    schedules("pause", "a", "b", code=5)
    assert schedules.json("show", "a")["state"] == "on"
    schedules("delete", "a", "b", "--yes", code=5)
    assert [item["name"] for item in schedules.json("list")["items"]] == ["a"]
    for answer, code in (("n", 6), ("y", 0)):
        with schedules.terminal("schedules", "delete", "a") as terminal:
            terminal.wait_for("delete schedule a?")
            terminal.press(answer + "\n")
            assert terminal.end() == code, terminal.text
    schedules("show", "a", code=5)


# Workers without slots


async def times_done(truth: Truth) -> set[str]:
    return {
        record["scheduled_time"] for record in (await truth.done()).values() if record.get("schedule") == "beat"
    }


async def holder(truth: Truth) -> str | None:
    """The holder of the leader lock."""
    subjects = await truth.subjects("KV_jobs-locks", "$KV.jobs-locks.leader")
    if not subjects:
        return None
    message = await truth.js.get_last_msg("KV_jobs-locks", "$KV.jobs-locks.leader")
    return str(json.loads(message.data)["holder"]) if message.data else None


async def test_a_worker_without_slots_plans_schedules_and_hands_over_when_it_stops(
    declared: Path, shell: Shell, truth: Truth, port: Port
) -> None:
    with shell.process("worker", "--no-schedules", "--name", "w", "--log-format", "console") as worker:
        await asyncio.to_thread(worker.wait_for, "worker ready", 1, 60)
        # It neither stores declared schedules nor tries to become leader.
        assert await truth.subjects("KV_jobs-schedules", "$KV.jobs-schedules.>") == {}
        assert await holder(truth) is None
        with scheduler(shell, "--name", "first", "--http", port.address) as first:
            await asyncio.to_thread(first.wait_for, "worker ready", 1, 60)
            await port.until("/readyz", 200)
            await eventually(lambda: times_done(truth), 60, where=lambda found: len(found) >= 3)
            assert await holder(truth) == "first"
            page = await port.until_page("jetjobs_schedule_lateness_seconds", 0.0, schedule="mornings")
            assert page.labels("schedule") == {"beat", "mornings"}
            # It takes jobs of no queue: it is missing from counts, gauges and lists of workers of a queue.
            page = await port.until_page("jetjobs_workers", 1.0, queue="default")
            assert page.value("jetjobs_slots", queue="default") is None
            listed = shell.json("workers", "list")["items"]
            assert {one["name"]: (one["queues"], one["slots"]["total"]) for one in listed}["first"] == ([], 0)
            of_queue = shell.json("workers", "list", "--queue", "default")
            assert [one["name"] for one in of_queue["items"]] == ["w"]
            with scheduler(shell, "--name", "second") as second:
                await asyncio.to_thread(second.wait_for, "worker ready", 1, 60)
                assert first.end(signal.SIGTERM, 60) == 0
                first.wait_for("worker stopped")
                await eventually(lambda: holder(truth), 60, where=lambda found: found == "second")
                seen = len(await times_done(truth))
                await eventually(lambda: times_done(truth), 60, where=lambda found: len(found) >= seen + 3)
                assert second.end(signal.SIGINT, 60) == 0
        assert worker.end(signal.SIGTERM, 60) == 0
    refused = shell("schedules", "delete", "beat", "--yes", code=6)
    assert "is declared in the code of app 'demo'" in refused.stderr
    assert "--force" in refused.stderr
    assert shell("schedules", "delete", "beat", "--yes", "--force").stdout == "beat  deleted\n"
    times = sorted(datetime.fromisoformat(scheduled_time) for scheduled_time in await times_done(truth))
    assert {after - before for before, after in itertools.pairwise(times)} == {timedelta(seconds=1)}


async def test_a_worker_without_slots_needs_no_app(
    shell: Shell, schedules: Shell, truth: Truth, tmp_path: Path
) -> None:
    schedules("put", "often", "greet", "name=Ada", "--every", "1s")
    empty = tmp_path / "empty"
    empty.mkdir()
    with Process(["worker", "--slots", "0", "-s", shell.url], empty) as leader:
        await asyncio.to_thread(leader.wait_for, "worker ready", 1, 60)

        async def queued() -> bool:
            return bool(await truth.subjects("jobs-work-default", "jobs.work.default.normal.greet.>"))

        await eventually(queued, 60)
        found = shell.json("doctor", "--only", "queues")
        assert any("default" in one["text"] and one["level"] == "warn" for one in found["items"]), found
        assert leader.end(signal.SIGTERM, 60) == 0
    assert "no app found" in run(["worker", "-s", shell.url], empty).stderr
    refused = run(["worker", "--slots", "0", "-q", "nope", "--burst", "--no-schedules", "-s", shell.url], empty)
    assert refused.returncode == 2
    assert "leave out --queue, --burst, --no-schedules" in refused.stderr
    assert (await truth.api("STREAM.INFO.jobs-work-nope"))["error"]["code"] == 404
