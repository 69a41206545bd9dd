"""`jetjobs audit` and `jetjobs http token`, and what commands leave in the audit."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jetjobs.cli.state import operator
from jetjobs.dev_server import EmbeddedServer
from jetjobs.model.views.token import TokenText
from tests.support.leaping_clock import leap
from tests.support.server import Truth
from tests.support.shell import Shell

TASKS = """
from jetjobs import JetJobs
app = JetJobs("shop")

@app.task
async def fails() -> None:
    raise ValueError("on purpose")
"""


@pytest.fixture
def ready(shell: Shell) -> Shell:
    shell("setup", "apply")
    return shell


def entries(shell: Shell, *options: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = shell.json("audit", "list", *options)["items"]
    return found


def test_who_changed_what_from_where_and_why_is_listed(ready: Shell) -> None:
    ready("enqueue", "fails", "--id", "later-1", "--delay", "1h")
    ready("jobs", "reschedule", "later-1", "--delay", "2h", "--reason", "not yet")
    ready("jobs", "priority", "later-1", "high", "--reason", "urgent")
    ready("jobs", "reschedule", "later-1", "--now", "--reason", "deploy")
    ready("queues", "pause", "default", "--reason", "maintenance")
    ready("queues", "resume", "default", "--reason", "done")
    ready("queues", "purge", "default", "--yes", "--reason", "old")
    ready("queues", "pause", "missing", code=5)
    found = entries(ready)
    assert [(one["action"], one["target"], one["reason"], one["outcome"]) for one in reversed(found)] == [
        ("job.reschedule", "later-1", "not yet", "moved"),
        ("job.priority", "later-1", "urgent", "moved"),
        ("job.run_now", "later-1", "deploy", "moved"),
        ("queue.pause", "default", "maintenance", "done"),
        ("queue.resume", "default", "done", "done"),
        ("queue.purge", "default", "old", "done"),
    ]
    assert {(one["by"], one["via"]) for one in found} == {(operator(), "cli")}
    shown = ready("audit", "list", "--action", "job.*").stdout.splitlines()
    assert shown[0].split() == ["WHEN", "ACTION", "TARGET", "BY", "VIA", "OUTCOME", "REASON"]
    assert [line.split()[2] for line in shown[1:]] == ["job.run_now", "job.priority", "job.reschedule"]
    assert [one["action"] for one in entries(ready, "--target", "def", "--by", "@", "--action", "*.pause")] == [
        "queue.pause"
    ]
    assert entries(ready, "--since", "0s") == []
    assert len(entries(ready, "--since", "1h")) == 6


def test_a_command_on_many_is_one_entry_with_its_filter_and_counts(ready: Shell) -> None:
    for number in range(3):
        ready("enqueue", "fails", "--id", f"many-{number}", "--delay", "1h")
    ready("jobs", "reschedule", "--all", "--queue", "default", "--delay", "2h", "--yes")
    ready("jobs", "cancel", "--all", "--task", "fails", "--state", "scheduled", "--yes", "--reason", "wrong")
    cancelled, moved = entries(ready)
    assert (moved["action"], moved["target"], moved["counts"]) == (
        "job.reschedule",
        "queue=default",
        {"moved": 3},
    )
    assert (cancelled["target"], cancelled["counts"]) == ("state=scheduled task=fails", {"cancelled": 3})
    assert (cancelled["outcome"], cancelled["reason"]) == ("done", "wrong")
    assert "done: 3 cancelled" in ready("audit", "list", "--action", "job.cancel").stdout


async def test_replays_and_deletions_of_many_letters_are_one_entry_each(ready: Shell) -> None:
    truth = await Truth.connect(ready.url)
    for number in range(4):
        await truth.js.publish(f"jobs.dead.default.fails.died-{number}", b"{}")
    await truth.close()
    ready("dead", "replay", "died-0", "--reason", "fixed")
    ready("dead", "delete", "died-1")
    ready("dead", "delete", "--task", "fails", "--yes", "--reason", "old")
    many, one, replayed = entries(ready)
    assert (replayed["target"], replayed["counts"], replayed["reason"]) == ("died-0", {"replayed": 1}, "fixed")
    assert (one["target"], one["outcome"], one["counts"]) == ("died-1", "deleted", {})
    assert (many["target"], many["counts"], many["reason"]) == ("task=fails", {"deleted": 2}, "old")


async def test_without_the_stream_the_command_works_and_notes_it(ready: Shell) -> None:
    truth = await Truth.connect(ready.url)
    await truth.js.delete_stream("jobs-audit")
    await truth.close()
    done = ready("queues", "pause", "default", "--json")
    assert json.loads(done.stdout)["items"][0]["state"] == "paused"
    notes = [line for line in done.stderr.splitlines() if "audit" in line]
    assert len(notes) == 1
    assert notes[0].startswith("an action was not recorded in the audit: ")
    assert notes[0].endswith("jetjobs setup apply")
    assert "jobs-audit" in ready.error("audit", "list", code=6)
    ready("setup", "apply")
    assert entries(ready) == []


async def test_a_forged_entry_does_not_control_the_terminal(ready: Shell) -> None:
    truth = await Truth.connect(ready.url)
    evil = {"by": "\x1b[2J\x1b]0;x\x07root", "target": "a\nb\u202e", "reason": "\x9b1m", "outcome": "done\r"}
    await truth.js.publish("jobs.audit.queue.pause", json.dumps(evil).encode())
    await truth.js.publish("jobs.audit.x\x1b[2J.y", b"\x1b[31m")
    await truth.close()
    shown = ready("audit", "list").stdout
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert len(shown.splitlines()) == 3
    assert "unreadable" in shown


def test_pages_and_bad_options(ready: Shell) -> None:
    for _ in range(3):
        ready("queues", "resume", "default")
    first = ready("audit", "list", "--limit", "2", "--json")
    page = json.loads(first.stdout)
    assert len(page["items"]) == 2
    assert f"more: --cursor {page['cursor']}" in first.stderr
    last = ready.json("audit", "list", "--limit", "2", "--cursor", page["cursor"])
    assert (len(last["items"]), last["cursor"]) == (1, None)
    assert "invalid cursor" in ready.error("audit", "list", "--cursor", "x", code=2)
    assert "invalid action" in ready.error("audit", "list", "--action", "pause", code=2)
    assert "--since" in ready.error("audit", "list", "--since", "yesterday", code=2)


def test_the_list_on_an_empty_server_says_what_to_do(shell: Shell) -> None:
    assert "jetjobs setup apply" in shell("audit", "list").stderr
    assert "jetjobs setup apply" in shell("http", "token", "list").stderr
    shell("setup", "apply")
    assert "no entries yet" in shell("audit", "list").stderr
    assert "http token new" in shell("http", "token", "list").stderr


def test_times_are_those_of_the_server(shell: Shell, server: EmbeddedServer) -> None:
    assert server.process is not None
    leap(server.process.pid, -2 * 86_400)
    shell("setup", "apply")
    shell("queues", "resume", "default")
    assert len(entries(shell, "--since", "1h")) == 1
    made = shell.json("http", "token", "new", "--name", "short", "--may", "read", "--expires", "1h")
    lasts = datetime.fromisoformat(made["expires_at"]) - datetime.fromisoformat(made["created_at"])
    assert abs(lasts.total_seconds() - 3600) < 60
    assert datetime.fromisoformat(made["created_at"]) < datetime.now(UTC) - timedelta(days=1)


# Tokens


def test_a_token_is_printed_once_and_alone(ready: Shell) -> None:
    made = ready("http", "token", "new", "--name", "billing", "--may", "enqueue:fails,read", "--expires", "90d")
    assert re.fullmatch(r"jj_billing_[a-z2-7]{52}\n", made.stdout)
    assert "may enqueue:fails, read, until 20" in made.stderr
    secret = made.stdout.strip().rpartition("_")[2]
    assert secret not in made.stderr
    listed = ready("http", "token", "list").stdout
    assert listed.splitlines()[1].split()[:3] == ["billing", "enqueue:fails,read", "all"]
    assert secret not in listed + ready("audit", "list").stdout
    ready("http", "token", "new", "--name", "web", "--may", "read", "--queues", "default, mail")
    assert ready("http", "token", "list", "--quiet").stdout == "billing\nweb\n"
    assert ready("http", "token", "revoke", "billing", "--reason", "leaked").stdout == "billing  revoked\n"
    assert [item["queues"] for item in ready.json("http", "token", "list")["items"]] == [["default", "mail"]]
    revoked, *_ = entries(ready)
    assert (revoked["action"], revoked["target"], revoked["reason"]) == ("token.revoke", "billing", "leaked")


def test_bad_tokens_are_refused(ready: Shell) -> None:
    new = ("http", "token", "new", "--name")
    ready(*new, "billing", "--may", "read")
    assert ready.error(*new, "billing", "--may", "read", code=6) == "error: token 'billing' exists"
    assert "unknown scope 'root'" in ready.error(*new, "a", "--may", "read,root", code=2)
    assert "at least one scope" in ready.error(*new, "a", "--may", ",", code=2)
    assert "invalid token name" in ready.error(*new, "a.b", "--may", "read", code=2)
    assert "invalid queue name" in ready.error(*new, "a", "--may", "read", "--queues", "a b", code=2)
    assert "--expires" in ready.error(*new, "a", "--may", "read", "--expires", "soon", code=2)
    assert "invalid expires" in ready.error(*new, "a", "--may", "read", "--expires", "0s", code=2)
    assert "--may" in ready.error(*new, "a", code=2)
    assert ready.error("http", "token", "revoke", "none", code=5) == "error: token 'none' does not exist"
    assert [item["name"] for item in ready.json("http", "token", "list")["items"]] == ["billing"]


async def test_a_record_that_cannot_be_read_is_named(ready: Shell) -> None:
    truth = await Truth.connect(ready.url)
    await truth.js.publish("$KV.jobs-tokens.odd", b"{}")
    await truth.js.publish(f"$KV.jobs-tokens.{TokenText.new('x').name}", b"[]")
    await truth.close()
    done = ready("http", "token", "list", "--json")
    assert json.loads(done.stdout)["items"] == []
    assert "a token cannot be read and is refused: key 'odd' of bucket jobs-tokens" in done.stderr
    ready("http", "token", "revoke", "odd")
    assert "'odd'" not in ready("http", "token", "list").stderr
