"""Ids as people paste them: white space around an id is ignored, and a part that is too short is named as such."""

from __future__ import annotations

import pytest

from tests.support.shell import Shell

pytestmark = pytest.mark.timeout(120)

TASKS = """
from jetjobs import JetJobs, Reject
app = JetJobs("demo")

@app.task
async def fails() -> None:
    raise Reject("no")
"""
SHORT = "the beginning or end of an id needs 6 characters or more"


def test_white_space_around_an_id_is_ignored_by_every_command(shell: Shell) -> None:
    shell("setup", "apply")
    shell("enqueue", "fails", "--id", "pasted-1", "--delay", "1h")
    assert shell.json("jobs", "show", " pasted-1\n")["id"] == "pasted-1"
    moved = shell.json("jobs", "reschedule", "\tpasted-1", "pasted-1 ", "--delay", "2h")
    assert [(item["id"], item["outcome"]) for item in moved["items"]] == [("pasted-1", "moved")]
    assert shell.json("jobs", "priority", " pasted-1 ", "high")["items"][0]["outcome"] == "moved"
    assert shell.json("jobs", "cancel", " sted-1 ")["items"][0]["outcome"] == "cancelled"
    assert "cancelled" in shell.error("jobs", "wait", " pasted-1 ", code=1)
    assert "pasted-1" in shell("jobs", "watch", " pasted-1 ", code=1).stdout
    with shell.process("worker") as worker:
        worker.wait_for("worker ready", timeout=60)
        shell("enqueue", "fails", "--id", "pasted-2")
        shell.until("jobs", "show", "pasted-2", where=lambda found: found["state"] == "dead")
    assert shell.json("dead", "show", " pasted-2 ")["id"] == "pasted-2"
    assert shell.json("dead", "replay", " pasted-2 ", "--dry-run")["first"] == ["pasted-2"]
    assert shell("dead", "delete", " pasted-2 ", "--quiet").stdout == "pasted-2\n"


def test_a_part_of_five_characters_is_named_as_too_short(shell: Shell) -> None:
    shell("setup", "apply")
    shell("enqueue", "fails", "--id", "pasted-3")
    for words in (["jobs", "show"], ["jobs", "wait"], ["jobs", "watch"], ["jobs", "cancel"], ["dead", "show"]):
        assert SHORT in shell(*words, "ted-3", code=5).stderr, words
    for words in (["jobs", "reschedule", "ted-3", "--now"], ["jobs", "priority", "ted-3", "low"]):
        assert SHORT in shell(*words, code=5).stderr, words
    for verb in ("replay", "delete"):
        assert SHORT in shell("dead", verb, "ted-3", code=5).stderr, verb
    assert SHORT not in shell("jobs", "show", "missing", code=5).stderr
    shell("enqueue", "fails", "--id", "ab")
    assert shell.json("jobs", "show", "ab")["id"] == "ab"  # a whole id may be short
