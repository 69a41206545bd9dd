"""What `dead list` and `dead show` do."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jetjobs.app import JetJobs
from jetjobs.cli.letter_choice import Selection, one
from jetjobs.cli.output import json_line, one_line, printable
from jetjobs.cli.state import state
from jetjobs.model import names as n
from jetjobs.model.durations import show_duration
from jetjobs.model.errors import ConfigError
from jetjobs.model.letter import DeadLetter


def reader() -> JetJobs:
    """An app without tasks: reading needs the server only."""
    return JetJobs("jetjobs-cli", settings=state.settings().settings)


async def list_command(selection: Selection, limit: int, cursor: int, group: bool) -> None:
    if cursor >= 2**63:
        raise ConfigError(f"--cursor {cursor} is no cursor", hint="use the one the last list gave")
    async with reader() as app:
        if group:
            await _list_groups(app, selection)
            return
        letters: list[DeadLetter] = []
        following: int | None = None
        async for letter in app.dead.list(selection.filter(), cursor):
            if len(letters) == limit:
                following = letter.sequence
                break
            letters.append(letter._replace(body=b""))
    out = state.out
    if out.as_json:
        out.json({"items": [letter.summary() for letter in letters], "cursor": following})
        if out.lines and following is not None:
            out.note(f"more: --cursor {following}")
        return
    rows = [
        [
            x.id,
            x.queue,
            x.task,
            x.reason,
            f"{one_line(x.error_type).rpartition('.')[2]}: {one_line(x.text)}",
            ago(x.died_at),
        ]
        for x in letters
    ]
    out.table(["ID", "QUEUE", "TASK", "REASON", "ERROR", "DIED"], rows, shrink=(4, 2, 1, 3))
    if following is not None:
        out.note(f"more: --cursor {following}")


async def _list_groups(app: JetJobs, selection: Selection) -> None:
    groups = await app.dead.groups(selection.filter())
    if state.out.as_json:
        items = [
            {
                "queue": x.queue,
                "task": x.task,
                "reason": x.reason,
                "error_type": x.error_type,
                "count": x.count,
                "first": x.first,
                "last": x.last,
            }
            for x in groups
        ]
        state.out.json({"items": items, "cursor": None})
        return
    rows = [[str(x.count), x.queue, x.task, x.reason, one_line(x.error_type), ago(x.last)] for x in groups]
    state.out.table(["COUNT", "QUEUE", "TASK", "REASON", "ERROR", "LAST"], rows, shrink=(4, 2, 1, 3), name=None)


async def show_command(job_id: str, selection: Selection) -> None:
    selection.filter()
    async with reader() as app:
        letter = await one(app, job_id, selection)
    details = {
        **letter.summary(),
        "traceback": letter.traceback,
        "history": list(letter.history),
        "headers": letter.headers,
        "arguments": letter.arguments,
    }
    if state.out.as_json:
        state.out.json(details)
    else:
        _show(letter, details)


def _show(letter: DeadLetter, details: dict[str, Any]) -> None:
    out = state.out
    for name in ("id", "queue", "task", "lane", "reason", "error_type", "text", "attempts", "worker"):
        out.data(f"{name:<14}{printable(str(details[name]))}")
    out.data(f"{'enqueued_at':<14}{details['enqueued_at'] or '-'}")
    out.data(f"{'died_at':<14}{details['died_at'] or '-'} ({ago(letter.died_at)})")
    if crashes := letter.headers.get(n.CRASHES):
        out.data(f"{'crashes':<14}{one_line(crashes)}")
    out.data(f"{'arguments':<14}{json_line(details['arguments'])}")
    for entry in letter.history:
        what = f"{entry.get('type')}: {one_line(str(entry.get('text')))}"
        out.data(f"attempt {entry.get('attempt')!s:<6}{_when(entry)} on {entry.get('worker')}: {one_line(what)}")
    for entry in letter.replays:
        by, why = entry.get("by") or "-", entry.get("why") or "-"
        had = one_line(str(entry.get("died_of")))
        out.data(
            f"{'replayed':<14}{_when(entry)} by {one_line(str(by))}: {one_line(str(why))} (had died of {had})"
        )
    if letter.replay_count > len(letter.replays):
        out.data(f"{'replayed':<14}{letter.replay_count} times in all")
    for name, value in letter.headers.items():
        if not name.lower().startswith("jetjobs-"):
            out.data(f"{'header':<14}{one_line(name)}: {printable(value)}")
    if letter.traceback:
        out.data("\n" + printable(letter.traceback.rstrip()))


def _when(entry: dict[str, Any]) -> str:
    try:
        return datetime.fromtimestamp(float(entry.get("at", "")), UTC).isoformat(timespec="milliseconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return "-"


def ago(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    return show_duration(max(0.0, (datetime.now(UTC) - moment).total_seconds())) + " ago"
