"""What the `dead` commands do."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

from jetjobs.app import JetJobs
from jetjobs.cli.output import DONE, FAILED, REFUSED
from jetjobs.cli.state import state
from jetjobs.dead import Replayed
from jetjobs.model.durations import parse_duration, show_duration
from jetjobs.model.errors import ConfigError, LetterNotFound
from jetjobs.model.letter import DeadLetter, LetterFilter
from jetjobs.model.names import check_token


class Selection(NamedTuple):
    """Which letters a command is about: ids, or a filter."""

    ids: list[str] | None
    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    error_type: str | None = None
    since: str | None = None
    all: bool = False

    def filter(self) -> LetterFilter:
        for what, token in (("queue", self.queue), ("task", self.task)):
            if token is not None:
                check_token(what, token)
        since = None
        if self.since is not None:
            try:
                since = datetime.now(UTC) - parse_duration(self.since)
            except (ValueError, OverflowError) as error:
                raise ConfigError(f"--since: {error}") from None
        return LetterFilter(self.queue, self.task, self.reason, self.error_type, since)


class ReplayOptions(NamedTuple):
    """How to replay."""

    to_queue: str | None
    rate: float
    reason: str
    data: str | None
    dry_run: bool
    yes: bool


async def list_command(selection: Selection, limit: int, cursor: int, group: bool) -> None:
    async with _reader() as app:
        if group:
            await _list_groups(app, selection)
            return
        letters: list[DeadLetter] = []
        following: int | None = None
        async for letter in app.dead.list(selection.filter(), cursor):
            if len(letters) == limit:
                following = letter.sequence
                break
            letters.append(letter)
    out = state.out
    if out.as_json:
        out.json({"items": [letter.summary() for letter in letters], "cursor": following})
        return
    rows = [
        [x.id, x.queue, x.task, x.reason, f"{x.error_type.rpartition('.')[2]}: {_one_line(x.text)}", _ago(x)]
        for x in letters
    ]
    out.table(["ID", "QUEUE", "TASK", "REASON", "ERROR", "DIED"], rows)
    if following is not None:
        out.note(f"more: --cursor {following}")


async def _list_groups(app: JetJobs, selection: Selection) -> None:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    last: dict[tuple[str, str, str, str], DeadLetter] = {}
    async for letter in app.dead.list(selection.filter()):
        key = (letter.queue, letter.task, letter.reason, letter.error_type)
        counts[key] += 1
        last[key] = letter
    if state.out.as_json:
        items = [
            {"queue": q, "task": t, "reason": r, "error_type": e, "count": count}
            for (q, t, r, e), count in counts.most_common()
        ]
        state.out.json({"items": items, "cursor": None})
        return
    rows = [[str(count), *key, _ago(last[key])] for key, count in counts.most_common()]
    state.out.table(["COUNT", "QUEUE", "TASK", "REASON", "ERROR", "LAST"], rows)


async def show_command(job_id: str) -> None:
    async with _reader() as app:
        letter = await _one(app, job_id)
    out = state.out
    details = {
        **letter.summary(),
        "traceback": letter.traceback,
        "history": list(letter.history),
        "headers": letter.headers,
        "arguments": letter.arguments,
    }
    if out.as_json:
        out.json(details)
        return
    for name in ("id", "queue", "task", "lane", "reason", "error_type", "text", "attempts", "died_at", "worker"):
        out.data(f"{name:<12}{details[name]}")
    out.data(f"{'arguments':<12}{json.dumps(details['arguments'], ensure_ascii=False)}")
    for entry in letter.history:
        out.data(f"attempt {entry.get('attempt')}   {entry.get('type')}: {_one_line(str(entry.get('text')))}")
    for entry in letter.replays:
        by, why = entry.get("by") or "-", entry.get("why") or "-"
        out.data(f"replayed    by {by}: {why} (had died of {entry.get('died_of')})")
    if letter.traceback:
        out.data("\n" + letter.traceback.rstrip())


async def replay_command(selection: Selection, options: ReplayOptions) -> int:
    loaded = state.settings()
    app = state.load_app(None, loaded)
    arguments = _other_arguments(selection, options.data)
    by = f"{_user()}@{socket.gethostname()}"
    counts: Counter[Replayed] = Counter()
    refusals: list[dict[str, str]] = []
    async with app:
        letters, missing = await _chosen(app, selection)
        if missing:
            raise LetterNotFound(f"no dead letter of {', '.join(missing)}; nothing was changed")
        if not _go_ahead("replay", letters, options.dry_run, options.yes):
            return DONE if options.dry_run or not letters else REFUSED
        with _progress("replayed", len(letters)) as step:
            for letter in letters:
                started = time.monotonic()
                answer = await app.dead.replay(
                    letter, by=by, reason=options.reason, to_queue=options.to_queue, arguments=arguments
                )
                counts[answer.outcome] += 1
                if answer.why:
                    refusals.append({"id": letter.id, "outcome": str(answer.outcome), "why": answer.why})
                step()
                if options.rate:
                    await asyncio.sleep(max(0.0, 1 / options.rate - (time.monotonic() - started)))
    if state.out.as_json:
        state.out.json({"counts": {str(k): v for k, v in counts.items()}, "refused": refusals})
    else:
        state.out.data(", ".join(f"{v} {k}" for k, v in counts.items()))
        for refusal in refusals[:20]:
            state.out.note(f"{refusal['id']} {refusal['outcome']}: {_one_line(refusal['why'])}")
    return FAILED if refusals else DONE


async def delete_command(selection: Selection, *, dry_run: bool, yes: bool) -> int:
    async with _reader() as app:
        letters, missing = await _chosen(app, selection)
        if missing:
            raise LetterNotFound(f"no dead letter of {', '.join(missing)}; nothing was changed")
        if not _go_ahead("delete", letters, dry_run, yes or bool(selection.ids)):
            return DONE if dry_run or not letters else REFUSED
        with _progress("deleted", len(letters)) as step:
            for letter in letters:
                await app.dead.delete(letter)
                step()
    if state.out.as_json:
        state.out.json({"deleted": len(letters)})
    else:
        state.out.data(f"{len(letters)} deleted")
    return DONE


async def export_command(selection: Selection, name: str) -> None:
    count = 0
    async with _reader() as app:
        with _opened(name, "w") as file:
            async for letter in app.dead.list(selection.filter()):
                file.write(json.dumps(await app.dead.to_json(letter)) + "\n")
                count += 1
    state.out.note(f"{count} exported")


async def import_command(name: str) -> int:
    restored = there = 0
    async with _reader() as app:
        await app.provision([])
        with _opened(name, "r") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    new = await app.dead.from_json(json.loads(line))
                except ValueError as error:
                    raise ConfigError(f"{name}, line {number}: {error}; {restored} imported before it") from None
                restored, there = restored + new, there + (not new)
    if state.out.as_json:
        state.out.json({"imported": restored, "already_there": there})
    else:
        state.out.data(f"{restored} imported, {there} were there already")
    return DONE


# Parts


def _reader() -> JetJobs:
    """An app without tasks: reading needs the server only."""
    return JetJobs("jetjobs-cli", settings=state.settings().settings)


async def _one(app: JetJobs, job_id: str) -> DeadLetter:
    letter = await app.dead.get(job_id)
    if letter is None:
        raise LetterNotFound(f"no dead letter of {job_id}", hint="jetjobs dead list")
    return letter


async def _chosen(app: JetJobs, selection: Selection) -> tuple[list[DeadLetter], list[str]]:
    """The letters, and the ids that have none."""
    if bool(selection.ids) == selection.all:
        raise ConfigError("name ids, or --all with or without filters")
    if selection.ids:
        found = {job_id: await app.dead.get(job_id) for job_id in dict.fromkeys(selection.ids)}
        return [x for x in found.values() if x is not None], [job_id for job_id, x in found.items() if x is None]
    return [letter async for letter in app.dead.list(selection.filter())], []


def _go_ahead(verb: str, letters: list[DeadLetter], dry_run: bool, yes: bool) -> bool:
    """Whether to do it: a dry run never, one letter always, many when asked or told to."""
    out = state.out
    if dry_run or not letters:
        if out.as_json:
            out.json({"dry_run": dry_run, "matching": len(letters)})
        else:
            out.data(
                f"Would {verb} {len(letters)} jobs. Nothing changed."
                if dry_run
                else "No dead letter matches. Nothing changed."
            )
        return False
    if yes or len(letters) == 1:
        return True
    if sys.stdin.isatty():
        return input(f"{verb} {len(letters)} jobs? [y/N] ").strip().lower() in ("y", "yes")
    out.error(f"this would {verb} {len(letters)} jobs", "say --yes", REFUSED)
    return False


@contextlib.contextmanager
def _progress(word: str, total: int) -> Iterator[Any]:
    """A counting line on a terminal; nothing elsewhere."""
    done = 0
    shown = sys.stderr.isatty() and total > 1

    def step() -> None:
        nonlocal done
        done += 1
        if shown and (done % 20 == 0 or done == total):
            filled = 30 * done // total
            print(
                f"\r{'█' * filled}{'·' * (30 - filled)} {done}/{total} {word}", end="", file=sys.stderr, flush=True
            )

    try:
        yield step
    finally:
        if shown:
            print(file=sys.stderr)


@contextlib.contextmanager
def _opened(name: str, mode: str) -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdout if mode == "w" else sys.stdin
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open(mode, encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}") from error
        yield file


def _other_arguments(selection: Selection, data: str | None) -> dict[str, Any] | None:
    if data is None:
        return None
    if not selection.ids or len(selection.ids) != 1:
        raise ConfigError("--data goes with one id")
    try:
        values = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"--data: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("--data must be one JSON object: the task's arguments by name")
    return values


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        return f"uid {os.getuid()}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


def _ago(letter: DeadLetter) -> str:
    if letter.died_at is None:
        return "-"
    return show_duration(max(0.0, (datetime.now(UTC) - letter.died_at).total_seconds())) + " ago"
