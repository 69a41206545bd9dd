"""`jetjobs dead` as people use it: real processes, exit codes, what is asked and what is shown."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jetjobs import JetJobs
from jetjobs.devserver import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.letters import bury
from tests.support.probe import eventually
from tests.support.processes import Process, run
from tests.support.server import Truth
from tests.support.terminal import Terminal

TASKS = """
from jetjobs import JetJobs, RetryPolicy
app = JetJobs("demo")

@app.task(retry=RetryPolicy(max_attempts=1))
async def work(n: int) -> int:
    if n < 0:
        raise ValueError("on purpose")
    return n
"""
pytestmark = pytest.mark.timeout(180)  # many commands, each a process
NO_MATCH = "No dead letter matches. Nothing changed.\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tasks.py").write_text(TASKS)
    return tmp_path


@pytest.fixture
def url(server: EmbeddedServer) -> dict[str, str]:
    return {"NATS_URL": server.url}


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    """For the test's own use; the commands have theirs in the folder."""
    async with JetJobs("test", settings=build_settings({"nats": {"url": server.url}})) as opened:
        await opened.provision(["default", "other"])
        yield opened


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The one error line; a traceback of ours would be a bug."""
    assert "Traceback" not in done.stderr
    return next(line for line in done.stderr.splitlines() if line.startswith("error: "))


async def dead(folder: Path, url: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(run, ["dead", *arguments], folder, 45, url)


def bodies(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


async def test_from_death_to_a_replay_that_mends_it(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    with Process(["worker"], folder, env=url) as worker:
        await asyncio.to_thread(worker.wait_for, "worker.ready")
        failed = await asyncio.to_thread(run, ["enqueue", "work", "n=-1", "--wait", "--json"], folder, 45, url)
        assert failed.returncode == 1
        ((job_id, _),) = (await truth.dead()).items()
        shown = (await dead(folder, url, "show", job_id)).stdout
        for fact in (job_id, "exhausted", "ValueError", "on purpose", '{"n": -1}', "attempt 1", "enqueued_at"):
            assert fact in shown, fact
        assert 'raise ValueError("on purpose")' in shown
        refused = await dead(folder, url, "replay", job_id, "--data", '{"n": "x"}')
        assert refused.returncode == 1
        assert refused.stdout == "1 refused\n"
        assert set(await truth.dead()) == {job_id}
        mended = await dead(folder, url, "replay", job_id, "--data", '{"n": 5}', "--reason", "typo")
        assert (mended.returncode, mended.stdout) == (0, "1 replayed\n")

        async def record() -> dict[str, object] | None:
            return (await truth.done()).get(job_id)

        done = await eventually(record, 30)
        assert done["result"] == 5
        assert await asyncio.to_thread(worker.end, signal.SIGTERM) == 0
    assert await truth.dead() == {}


async def test_lists_are_filtered_paged_grouped_and_never_cut_in_a_pipe(
    app: JetJobs, folder: Path, url: dict[str, str]
) -> None:
    await bury(app, "work", bodies(3))
    (long_id,) = await bury(app, "a_task_with_a_long_name_" + "x" * 30, [b"{}"], queue="other", ids=["y" * 100])
    first = json.loads((await dead(folder, url, "list", "--json", "--limit", "3")).stdout)
    assert len(first["items"]) == 3
    assert {(x["task"], x["reason"], x["error_type"]) for x in first["items"]} == {
        ("work", "exhausted", "LookupError")
    }
    rest = json.loads((await dead(folder, url, "list", "--json", "--cursor", str(first["cursor"]))).stdout)
    assert ([x["id"] for x in rest["items"]], rest["cursor"]) == ([long_id], None)
    for options, count in (
        (["--queue", "other"], 1),
        (["--task", "work"], 3),
        (["--reason", "crashed"], 0),
        (["--error-type", "LookupError"], 4),
        (["--since", "1h"], 4),
        (["--since", "0s"], 0),
    ):
        assert len(json.loads((await dead(folder, url, "list", "--json", *options)).stdout)["items"]) == count
    grouped = (await dead(folder, url, "list", "--group")).stdout.splitlines()
    assert grouped[1].split()[:5] == ["3", "default", "work", "exhausted", "LookupError"]
    piped = (await dead(folder, url, "list")).stdout
    assert long_id in piped
    assert "LookupError: no such thing" in piped
    assert "…" not in piped
    for columns in (80, 100):
        for view in (["dead", "list"], ["dead", "list", "--group"]):
            with Terminal(view, folder, url, columns) as terminal:
                assert await asyncio.to_thread(terminal.end) == 0
            assert max(len(line) for line in terminal.lines) <= columns, terminal.text
            assert "…" in terminal.text
    wrong = await dead(folder, url, "list", "--since", "yesterday")
    assert (wrong.returncode, error_of(wrong)[:15]) == (2, "error: --since:")


async def test_quietly_only_the_ids_are_printed_with_which_it_was_done(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    one, two, three = await bury(app, "work", bodies(3))
    (unknown,) = await bury(app, "no_such_task", [b"{}"])
    replayed = await dead(folder, url, "replay", one, unknown, "-q")
    assert (replayed.returncode, replayed.stdout) == (1, f"{one}\n")
    assert f"{unknown} refused" in replayed.stderr
    deleted = await dead(folder, url, "delete", "--task", "work", "--yes", "-q")
    assert (deleted.returncode, sorted(deleted.stdout.split())) == (0, sorted([two, three]))
    assert set(await truth.dead()) == {unknown}


async def test_what_is_not_there_or_not_clear_changes_nothing(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    (one,) = await bury(app, "work", bodies(1))
    for queue in ("default", "other"):
        await bury(app, "work", bodies(1), queue=queue, ids=["twice"])
    await bury(app, "nobody", [b"{}"], ids=["orphan"])
    await bury(app, "work", [b'{"n":"x"}'], ids=["invalid"])
    before = await truth.subjects("jobs-dead", "jobs.dead.>")
    for arguments, code, words in (
        (["show", "missing"], 5, "no dead letter of missing"),
        (["replay", one, "missing"], 5, "no dead letter of missing; nothing was changed"),
        (["delete", one, "missing"], 5, "no dead letter of missing; nothing was changed"),
        (["show", "twice"], 2, "2 dead letters have the id twice: default/work, other/work"),
        (["replay", "twice"], 2, "2 dead letters have the id twice"),
        (["delete", "twice"], 2, "2 dead letters have the id twice"),
        (["replay"], 2, "name ids, a filter, or --all"),
        (["delete"], 2, "name ids, a filter, or --all"),
        (["replay", one, "--all"], 2, "beside ids only"),
        (["replay", one, "--since", "1h"], 2, "beside ids only"),
        (["replay", one, "--data", "[1]"], 2, "--data must be one JSON object"),
        (["replay", one, "--data", "{"], 2, "--data:"),
        (["replay", "--all", "--data", "{}"], 2, "--data goes with one id"),
        (["replay", one, "--reason", "x" * 600], 2, "reason has 600 characters"),
        (["replay", one, "--to-queue", "nowhere"], 5, "there is no queue 'nowhere'; nothing was changed"),
        (["replay", "--all", "--yes", "--to-queue", "nowhere"], 5, "there is no queue 'nowhere'"),
        (["replay", "--all", "--task", "no.task"], 2, "task 'no.task' is not a usable name"),
        (["replay", "--all"], 6, "this would replay 5 jobs; nothing was changed"),
        (["delete", "--all"], 6, "this would delete 5 jobs; nothing was changed"),
    ):
        done = await dead(folder, url, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), (arguments, done)
        assert words in error_of(done), arguments
        assert arguments[0] != "show" or "changed" not in error_of(done)
    for verb in ("replay", "delete"):
        none = await dead(folder, url, verb, "--all", "--error-type", "Other", "--yes")
        assert (none.returncode, none.stdout) == (0, NO_MATCH)
    orphans = await dead(folder, url, "replay", "orphan", "invalid", "--json")
    assert orphans.returncode == 1
    refused = {entry["id"]: entry["why"] for entry in json.loads(orphans.stdout)["refused"]}
    assert "no task named 'nobody'" in refused["orphan"]
    assert "n" in refused["invalid"]
    assert await truth.subjects("jobs-dead", "jobs.dead.>") == before
    await truth.until_empty()
    assert (await dead(folder, url, "replay", "twice", "--queue", "other")).stdout == "1 replayed\n"
    assert len(await truth.jobs("other")) == 1


async def test_a_dry_run_says_what_would_happen(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    ids = await bury(app, "work", bodies(8))
    await bury(app, "nobody", [b"{}"], ids=["orphan"])
    dry = await dead(folder, url, "replay", "--all", "--dry-run")
    assert dry.returncode == 0
    first, *named, more = dry.stdout.splitlines()
    assert first == "Would replay 8 jobs. Nothing changed."
    assert len(named) == 5
    assert {line.split()[0] for line in named} <= set(ids)
    assert more.strip() == "..."
    assert "orphan would be refused: no task named 'nobody'" in dry.stderr
    as_json = json.loads((await dead(folder, url, "delete", "--task", "work", "--dry-run", "--json")).stdout)
    assert (as_json["dry_run"], as_json["matching"], len(as_json["first"])) == (True, 8, 5)
    assert len(await truth.dead()) == 9
    await truth.until_empty()


async def test_on_a_terminal_many_are_asked_about_and_their_progress_is_shown(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    await bury(app, "work", bodies(60))

    def with_keys(keys: str, *arguments: str) -> tuple[int, str]:
        with Terminal(["dead", *arguments], folder, url) as terminal:
            terminal.wait_for("60 jobs? [y/N]")
            terminal.press(keys)
            return terminal.end(), terminal.text

    for keys, code in (("n\n", 6), ("\n", 6), ("\x04", 6), ("\x03", 130)):
        ended, text = await asyncio.to_thread(with_keys, keys, "replay", "--all")
        assert (ended, "Nothing changed." in text) == (code, True), text
        assert "Traceback" not in text
    assert len(await truth.dead()) == 60
    ended, text = await asyncio.to_thread(with_keys, "y\n", "replay", "--task", "work")
    assert ended == 0, text
    assert "60/60 replayed" in text
    assert len(await truth.jobs()) == 60
    assert await truth.dead() == {}


async def test_ctrl_c_in_the_middle_says_what_is_done_and_the_rest_can_follow(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    await bury(app, "work", bodies(200))

    async def begun() -> bool:
        return len(await truth.jobs()) >= 3

    arguments = ["dead", "replay", "--all", "--yes", "--rate", "2"]
    with Process(arguments, folder, url) as process:
        await eventually(begun, 30)
        assert await asyncio.to_thread(process.end, signal.SIGINT) == 130
        text = "\n".join(process.lines)
    said = re.search(r"(\d+) replayed; stopped before the end", text)
    assert said is not None, text
    assert "Traceback" not in text
    assert len(await truth.jobs()) == int(said[1])
    rest = await dead(folder, url, "replay", "--all", "--yes")
    assert rest.stdout == f"{200 - int(said[1])} replayed\n"
    assert len(await truth.jobs()) == 200


async def test_letters_go_to_a_file_and_back(
    app: JetJobs, folder: Path, url: dict[str, str], truth: Truth
) -> None:
    ids = await bury(app, "work", bodies(3))
    before = await truth.dead()
    file = folder / "letters.jsonl"
    assert (await dead(folder, url, "export", str(file))).returncode == 0
    assert len(file.read_text().splitlines()) == 3
    there = await dead(folder, url, "export", str(file))
    assert (there.returncode, f"{file} is there already" in error_of(there)) == (2, True)
    assert (await dead(folder, url, "export", str(file), "--force", "--task", "work")).returncode == 0
    assert not (folder / "letters.jsonl.part").exists()
    assert (await dead(folder, url, "export", "-")).stdout == file.read_text()
    assert (await dead(folder, url, "export", str(folder / "no" / "folder"))).returncode == 2

    assert (await dead(folder, url, "delete", ids[0])).stdout == "1 deleted\n"
    assert (await dead(folder, url, "delete", "--all", "--yes")).stdout == "2 deleted\n"
    back = await dead(folder, url, "import", str(file), "--json")
    assert json.loads(back.stdout) == {"imported": 3, "already_there": 0, "problems": []}
    again = await dead(folder, url, "import", str(file))
    assert again.stdout == "0 imported, 3 were there already\n"
    assert {k: v["body"] for k, v in (await truth.dead()).items()} == {k: v["body"] for k, v in before.items()}

    file.write_text(
        file.read_text() + '{"subject": "jobs.dead.x.y.z", "headers": {"Nats-Rollup": "all"}}\nno json\n'
    )
    wrong = await dead(folder, url, "import", str(file))
    assert wrong.returncode == 1
    assert f"{file}, line 4: no exported dead letter: header 'Nats-Rollup' is reserved" in wrong.stderr
    assert f"{file}, line 5:" in wrong.stderr
    assert (await dead(folder, url, "import", str(folder / "nothing"))).returncode == 2
    (folder / "bytes").write_bytes(b"\xff\xfe\n")
    assert (await dead(folder, url, "import", str(folder / "bytes"))).returncode == 2
    assert len(await truth.dead()) == 3


async def test_control_characters_in_an_error_do_not_reach_the_terminal(
    app: JetJobs, folder: Path, url: dict[str, str]
) -> None:
    await bury(app, "work", bodies(1), ids=["odd"], headers={"X-Odd": "a\x1b[2Jb"}, crashes=2)
    shown = await dead(folder, url, "show", "odd")
    assert "X-Odd: a\\x1b[2Jb" in shown.stdout
    assert re.search(r"^crashes +2$", shown.stdout, re.MULTILINE)
    assert "\x1b" not in shown.stdout


async def test_a_server_that_was_never_set_up_is_said_so(folder: Path, url: dict[str, str]) -> None:
    for arguments in (["list"], ["list", "--group"], ["show", "x"], ["replay", "--all", "--yes"], ["delete", "x"]):
        done = await dead(folder, url, *arguments)
        assert (done.returncode, done.stdout) == (6, "")
        assert "jobs-dead" in error_of(done)
        assert "hint: jetjobs setup apply" in done.stderr
    assert (await dead(folder, url, "export", str(folder / "out"))).returncode == 6
    assert not (folder / "out").exists()
