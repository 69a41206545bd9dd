"""`jetjobs dead` in real processes: exit codes, confirmation and output."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator

import pytest

from jetjobs import JetJobs
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.settings import build_settings
from tests.support.letters import bury
from tests.support.probe import eventually
from tests.support.server import Truth
from tests.support.shell import Shell, error_of

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
NO_MATCH = "No dead letters match. Nothing changed.\n"


@pytest.fixture
async def app(server: EmbeddedServer) -> AsyncIterator[JetJobs]:
    """For the test itself; the commands import the app in the folder."""
    async with JetJobs("test", settings=build_settings({"nats": {"url": server.url}})) as opened:
        await opened.provision(["default", "other"])
        yield opened


@pytest.fixture
def dead(shell: Shell) -> Shell:
    return shell.of("dead")


def bodies(count: int) -> list[bytes]:
    return [b'{"n":%d}' % n for n in range(count)]


async def test_a_replay_with_other_arguments_succeeds(
    app: JetJobs, shell: Shell, dead: Shell, truth: Truth
) -> None:
    with dead.process("worker") as worker:
        worker.wait_for("worker.ready", timeout=60)
        shell("enqueue", "work", "n=-1", "--wait", "--json", code=1)
        ((job_id, _),) = (await truth.dead()).items()
        shown = dead("show", job_id).stdout
        for fact in (job_id, "exhausted", "ValueError", "on purpose", '{"n": -1}', "attempt 1", "enqueued_at"):
            assert fact in shown, fact
        assert 'raise ValueError("on purpose")' in shown
        assert dead("replay", job_id, "--data", '{"n": "x"}', code=1).stdout == "1 refused\n"
        assert set(await truth.dead()) == {job_id}
        assert dead("replay", job_id, "--data", '{"n": 5}', "--reason", "typo").stdout == "1 replayed\n"
        done = (await eventually(truth.done, 30, where=lambda found: job_id in found))[job_id]
        assert done["result"] == 5
        assert worker.end(signal.SIGTERM) == 0
    assert await truth.dead() == {}


async def test_lists_are_filtered_paged_grouped_and_not_truncated_in_a_pipe(app: JetJobs, dead: Shell) -> None:
    await bury(app, "work", bodies(3))
    (long_id,) = await bury(app, "a_task_with_a_long_name_" + "x" * 30, [b"{}"], queue="other", ids=["y" * 100])
    first = dead.json("list", "--limit", "3")
    assert len(first["items"]) == 3
    assert {(x["task"], x["reason"], x["error_type"]) for x in first["items"]} == {
        ("work", "exhausted", "LookupError")
    }
    rest = dead.json("list", "--cursor", str(first["cursor"]))
    assert ([x["id"] for x in rest["items"]], rest["cursor"]) == ([long_id], None)
    for options, count in (
        (["--queue", "other"], 1),
        (["--task", "work"], 3),
        (["--died-of", "crashed"], 0),
        (["--error-type", "LookupError"], 4),
        (["--since", "1h"], 4),
        (["--since", "0s"], 0),
    ):
        assert len(dead.json("list", *options)["items"]) == count
    grouped = dead("list", "--group").stdout.splitlines()
    assert grouped[2].split()[:4] == ["3", "default", "work", "exhausted"]
    assert grouped[1].endswith(f"{long_id}  LookupError: no such thing")  # the newest comes first
    piped = dead("list").stdout
    assert long_id in piped
    assert "LookupError: no such thing" in piped
    assert "…" not in piped
    for columns in (80, 100):
        for view in (["dead", "list"], ["dead", "list", "--group"]):
            with dead.terminal(*view, columns=columns) as terminal:
                assert terminal.end() == 0
            assert max(len(line) for line in terminal.lines) <= columns, terminal.text
            assert "…" in terminal.text
    assert dead.error("list", "--since", "yesterday", code=2).startswith("error: --since:")


async def test_headers_and_crashes_are_shown_and_quiet_output_has_only_the_changed_ids(
    app: JetJobs, dead: Shell, truth: Truth
) -> None:
    one, two, three = await bury(app, "work", bodies(3))
    (unknown,) = await bury(app, "no_such_task", [b"{}"], headers={"X-Odd": "a\x1b[2Jb"}, crashes=2)
    shown = dead("show", unknown).stdout
    assert "X-Odd: a\\x1b[2Jb" in shown
    assert re.search(r"^crashes +2$", shown, re.MULTILINE)
    replayed = dead("replay", one, unknown, "--quiet", code=1)
    assert replayed.stdout == f"{one}\n"
    assert f"{unknown} refused" in replayed.stderr
    deleted = dead("delete", "--task", "work", "--yes", "--quiet")
    assert sorted(deleted.stdout.split()) == sorted([two, three])
    assert set(await truth.dead()) == {unknown}


async def test_unknown_and_ambiguous_ids_change_nothing(app: JetJobs, dead: Shell, truth: Truth) -> None:
    (one,) = await bury(app, "work", bodies(1))
    for queue in ("default", "other"):
        await bury(app, "work", bodies(1), queue=queue, ids=["twice"])
    await bury(app, "unknown_task", [b"{}"], ids=["orphan"])
    await bury(app, "work", [b'{"n":"x"}'], ids=["invalid"])
    before = await truth.subjects("jobs-dead", "jobs.dead.>")
    for arguments, code, words in (
        (["show", "missing"], 5, "no dead letter of job missing"),
        (["replay", one, "missing"], 5, "no dead letter of job missing; nothing was changed"),
        (["delete", one, "missing"], 5, "no dead letter of job missing; nothing was changed"),
        (["show", "twice"], 2, "2 dead letters have the id twice: default/work, other/work"),
        (["replay", "twice"], 2, "2 dead letters have the id twice"),
        (["delete", "twice"], 2, "2 dead letters have the id twice"),
        (["replay"], 2, "give ids, a filter or --all"),
        (["delete"], 2, "give ids, a filter or --all"),
        (["replay", one, "--all"], 2, "ids can be combined only"),
        (["replay", one, "--since", "1h"], 2, "ids can be combined only"),
        (["replay", one, "--data", "[1]"], 2, "--data must be one JSON object"),
        (["replay", one, "--data", "{"], 2, "--data:"),
        (["replay", "--all", "--data", "{}"], 2, "--data needs exactly one id"),
        (["replay", one, "--reason", "x" * 600], 2, "reason has 600 characters"),
        (["replay", one, "--to-queue", "nowhere"], 5, "queue 'nowhere' does not exist; nothing was changed"),
        (["replay", "--all", "--yes", "--to-queue", "nowhere"], 5, "queue 'nowhere' does not exist"),
        (["replay", "--all", "--task", "no.task"], 2, "invalid task name 'no.task'"),
        (["replay", "--all"], 6, "this would replay 5 jobs; nothing was changed"),
        (["delete", "--all"], 6, "this would delete 5 jobs; nothing was changed"),
    ):
        done = dead(*arguments, code=code)
        assert (done.stdout, words in error_of(done)) == ("", True), (arguments, done)
        assert arguments[0] != "show" or "changed" not in error_of(done)
    for verb in ("replay", "delete"):
        assert dead(verb, "--all", "--error-type", "Other", "--yes").stdout == NO_MATCH
    orphans = dead.json("replay", "orphan", "invalid", code=1)
    refused = {entry["id"]: entry["why"] for entry in orphans["refused"]}
    assert "no task named 'unknown_task'" in refused["orphan"]
    assert "n" in refused["invalid"]
    assert await truth.subjects("jobs-dead", "jobs.dead.>") == before
    await truth.until_empty()
    assert dead("replay", "twice", "--queue", "other").stdout == "1 replayed\n"
    assert len(await truth.jobs("other")) == 1


async def test_a_dry_run_shows_what_would_happen(app: JetJobs, dead: Shell, truth: Truth) -> None:
    ids = await bury(app, "work", bodies(8))
    await bury(app, "unknown_task", [b"{}"], ids=["orphan"])
    dry = dead("replay", "--all", "--dry-run")
    first, *named, more = dry.stdout.splitlines()
    assert first == "Would replay 8 jobs. Nothing changed."
    assert len(named) == 5
    assert {line.split()[0] for line in named} <= set(ids)
    assert more.strip() == "..."
    assert "orphan would be refused: no task named 'unknown_task'" in dry.stderr
    as_json = dead.json("delete", "--task", "work", "--dry-run")
    assert (as_json["dry_run"], as_json["matching"], len(as_json["first"])) == (True, 8, 5)
    assert len(await truth.dead()) == 9
    await truth.until_empty()


async def test_on_a_terminal_many_letters_need_confirmation_and_progress_is_shown(
    app: JetJobs, dead: Shell, truth: Truth
) -> None:
    await bury(app, "work", bodies(60))

    def with_keys(keys: str, *arguments: str) -> tuple[int, str]:
        with dead.terminal("dead", *arguments) as terminal:
            terminal.wait_for("60 jobs? [y/N]")
            terminal.press(keys)
            return terminal.end(), terminal.text

    for keys, code in (("n\n", 6), ("\n", 6), ("\x04", 6), ("\x03", 130)):
        ended, text = with_keys(keys, "replay", "--all")
        assert (ended, "Nothing changed." in text) == (code, True), text
        assert "Traceback" not in text
    assert len(await truth.dead()) == 60
    ended, text = with_keys("y\n", "replay", "--task", "work")
    assert ended == 0, text
    assert "60/60 replayed" in text
    assert len(await truth.jobs()) == 60
    assert await truth.dead() == {}


async def test_ctrl_c_reports_what_is_done_and_the_rest_can_be_replayed_later(
    app: JetJobs, dead: Shell, truth: Truth
) -> None:
    await bury(app, "work", bodies(200))

    with dead.process("dead", "replay", "--all", "--yes", "--rate", "2") as process:
        await eventually(truth.jobs, 30, where=lambda found: len(found) >= 3)
        assert process.end(signal.SIGINT) == 130
        text = "\n".join(process.lines)
    said = re.search(r"(\d+) replayed; interrupted", text)
    assert said is not None, text
    assert "Traceback" not in text
    assert len(await truth.jobs()) == int(said[1])
    rest = dead("replay", "--all", "--yes")
    assert rest.stdout == f"{200 - int(said[1])} replayed\n"
    assert len(await truth.jobs()) == 200


async def test_letters_are_exported_to_a_file_and_imported_again(app: JetJobs, dead: Shell, truth: Truth) -> None:
    ids = await bury(app, "work", bodies(3))
    before = await truth.dead()
    folder = dead.folder
    file = folder / "letters.jsonl"
    dead("export", str(file))
    assert len(file.read_text().splitlines()) == 3
    assert f"{file} already exists" in dead.error("export", str(file), code=2)
    dead("export", str(file), "--overwrite", "--task", "work")
    assert not (folder / "letters.jsonl.part").exists()
    assert dead("export", "-").stdout == file.read_text()
    dead("export", str(folder / "no" / "folder"), code=2)

    assert dead("delete", ids[0]).stdout == "1 deleted\n"
    assert dead("delete", "--all", "--yes").stdout == "2 deleted\n"
    assert dead.json("import", str(file)) == {"imported": 3, "already_there": 0, "problems": []}
    assert dead("import", str(file)).stdout == "0 imported, 3 already existed\n"
    assert {k: v["body"] for k, v in (await truth.dead()).items()} == {k: v["body"] for k, v in before.items()}

    file.write_text(file.read_text() + '{"subject": "jobs.dead.x.y.z", "headers": {"Nats-Rollup": "all"}}\n')
    wrong = dead("import", str(file), code=1)
    assert f"{file}, line 4: not an exported dead letter: header 'Nats-Rollup' is reserved" in wrong.stderr
    dead("import", str(folder / "nothing"), code=2)
    (folder / "bytes").write_bytes(b"\xff\xfe\n")
    dead("import", str(folder / "bytes"), code=2)
    assert len(await truth.dead()) == 3


async def test_a_server_without_streams_is_reported(dead: Shell) -> None:
    for arguments in (["show", "x"], ["replay", "--all", "--yes"], ["delete", "x"]):
        done = dead(*arguments, code=6)
        assert done.stdout == ""
        assert "jobs-dead" in error_of(done)
        assert "hint: jetjobs setup apply" in done.stderr
    dead("export", str(dead.folder / "out"), code=6)
    assert not (dead.folder / "out").exists()
