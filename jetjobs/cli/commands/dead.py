"""`jetjobs dead` (or `dlq`): list, show, export and import dead letters."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple

import typer

from jetjobs.admin.partial_ids import LEAST, TOO_SHORT, complete_id
from jetjobs.app import JetJobs
from jetjobs.cli.commands.job_details import show_traceback
from jetjobs.cli.completion import dead_ids, queue_names, task_names
from jetjobs.cli.exit_codes import DONE, FAILED
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.empty import next_step, or_empty
from jetjobs.cli.terminal.options import Cursor, Limit, Reason, read_since, stripped
from jetjobs.cli.terminal.palette import DEAD, dead_style, faint
from jetjobs.cli.terminal.table import Look
from jetjobs.cli.terminal.text import ago, json_line, one_line, printable
from jetjobs.model.errors import ConfigError, JobNotFound
from jetjobs.model.outcome import DeadReason
from jetjobs.model.views.dead_letter import DeadLetter, DeadLetterFilter
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.validation import check_token

commands = typer.Typer()

Queue = Annotated[
    str | None,
    typer.Option("-q", "--queue", help="Only letters of this queue.", metavar="QUEUE", autocompletion=queue_names),
]
TaskName = Annotated[
    str | None,
    typer.Option("--task", help="Only letters of this task.", metavar="TASK", autocompletion=task_names),
]
DiedOf = Annotated[
    str | None,
    typer.Option(
        "--died-of", help="Only letters with this reason: exhausted, permanent, crashed, ...", metavar="REASON"
    ),
]
ErrorType = Annotated[
    str | None,
    typer.Option(help="Only letters with this error type, with or without its module.", metavar="TYPE"),
]
Since = Annotated[
    str | None, typer.Option(help="Only letters of jobs that died within this time: 1h, 2d.", metavar="DURATION")
]
NAMED = 20
"""Maximum number of problems printed; `--json` has all of them."""


class Selection(NamedTuple):
    """The letters that the options select."""

    ids: list[str] | None = None
    queue: str | None = None
    task: str | None = None
    died_of: str | None = None
    error_type: str | None = None
    since: str | None = None
    all: bool = False

    def filter(self) -> DeadLetterFilter:
        for what, token in (("queue", self.queue), ("task", self.task)):
            if token is not None:
                check_token(what, token)
        if self.died_of is not None and self.died_of not in set(DeadReason):
            raise ConfigError(
                f"--died-of: unknown reason {self.died_of!r}", hint=f"one of {', '.join(DeadReason)}"
            )
        return DeadLetterFilter(self.queue, self.task, self.died_of, self.error_type, read_since(self.since))

    def check(self) -> None:
        """ConfigError if the selection is ambiguous."""
        others = any(value is not None for value in (self.died_of, self.error_type, self.since))
        if self.ids and (self.all or others):
            raise ConfigError(
                "ids can be combined only with --queue and --task, which select among letters of the same id"
            )
        if not self.ids and not self.all and self.filter() == DeadLetterFilter():
            raise ConfigError("give ids, a filter or --all")


async def find_letter(app: JetJobs, job_id: str, selection: Selection, besides: str = "") -> DeadLetter:
    """The letter of a job id. `besides` is appended to the error if there is none."""
    job_id = await complete_id(app.jetstream, job_id, selection.queue, selection.task, only_dead=True)
    letter = await app.dead.get(job_id, queue=selection.queue, task=selection.task)
    if letter is None:
        hint = TOO_SHORT if len(job_id) < LEAST else ""
        hint += "list them with `jetjobs dead list`"
        raise JobNotFound(f"no dead letter of job {job_id}{besides}", job_id=job_id, hint=hint)
    return letter


@commands.command("list")
async def list_letters(
    queue: Queue = None,
    task: TaskName = None,
    died_of: DiedOf = None,
    error_type: ErrorType = None,
    since: Since = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    group: Annotated[
        bool,
        typer.Option(
            "--group", help="Count letters by queue, task, reason and error, with the newest letter of each."
        ),
    ] = False,
) -> None:
    """List dead letters, oldest first."""
    selection = Selection(None, queue, task, died_of, error_type, since)
    first = _read_cursor(cursor)
    async with state.reader() as app:
        if group:
            await _list_groups(app, selection)
            return
        letters, following = await or_empty(app, app.dead.page(selection.filter(), first, limit), ([], None))
        empty = "" if letters else await next_step(app, _no_letters(selection))
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
    look = Look(right=(5,), ids=0, styles={3: dead_style, 5: faint})
    out.table(["ID", "QUEUE", "TASK", "REASON", "ERROR", "DIED"], rows, shrink=(4, 2, 1, 3), look=look)
    if empty:
        out.note(empty)
    if following is not None:
        out.note(f"more: --cursor {following}")


def _no_letters(selection: Selection) -> str:
    if selection.filter() != DeadLetterFilter():
        return "no dead letters match; `jetjobs dead list` without options lists all"
    return "no dead letters; `jetjobs jobs list` lists the live jobs"


def _read_cursor(text: str | None) -> int:
    """The sequence to begin with."""
    if text is None:
        return 1
    if not (text.isascii() and text.isdecimal() and 1 <= int(text) < 2**63):
        raise ConfigError(f"--cursor: invalid cursor {text!r}", hint="use the one that the previous list printed")
    return int(text)


async def _list_groups(app: JetJobs, selection: Selection) -> None:
    groups = await or_empty(app, app.dead.groups(selection.filter()), ())
    if state.out.as_json:
        state.out.json({"items": [group.as_dict() for group in groups], "cursor": None})
        return
    rows = [
        [
            f"{x.count:,}", x.queue, x.task, x.reason, ago(x.last), x.example,
            f"{one_line(x.error_type)}: {one_line(x.text)}",
        ]
        for x in groups
    ]  # fmt: skip
    head = ["COUNT", "QUEUE", "TASK", "REASON", "LAST", "EXAMPLE", "ERROR"]
    look = Look(right=(0, 4), ids=5, below=6, styles={0: dead_style, 3: dead_style, 4: faint})
    state.out.table(head, rows, shrink=(2, 1, 3), name=None, look=look)
    if not groups:
        state.out.note(await next_step(app, _no_letters(selection)))


@commands.command()
async def show(
    job_id: Annotated[str, typer.Argument(help="Id of the job.", autocompletion=dead_ids, callback=stripped)],
    queue: Queue = None,
    task: TaskName = None,
) -> None:
    """Show one dead letter in full. Prints reason, history, replays, headers and arguments."""
    selection = Selection(queue=queue, task=task)
    selection.filter()
    async with state.reader() as app:
        letter = await find_letter(app, job_id, selection)
    details = letter.as_dict()
    if state.out.as_json:
        state.out.json(details)
    else:
        _show(letter, details)


def _show(letter: DeadLetter, details: dict[str, Any]) -> None:
    out = state.out
    for name in ("id", "queue", "task", "lane", "reason", "error_type", "text", "attempts", "worker"):
        style = DEAD if name in ("reason", "error_type", "text") else ""
        out.fact(name, printable(str(details[name])), style, width=14)
    out.fact("enqueued_at", details["enqueued_at"] or "-", width=14)
    out.fact("died_at", f"{details['died_at'] or '-'} ({ago(letter.died_at)})", width=14)
    if crashes := letter.headers.get(h.CRASHES):
        out.fact("crashes", crashes, width=14)
    out.fact("arguments", json_line(details["arguments"]), width=14)
    for entry in letter.history:
        what = f"{entry.get('type')}: {one_line(str(entry.get('text')))}"
        when = f"{_when(entry)} on {entry.get('worker')}: {one_line(what)}"
        out.fact(f"attempt {entry.get('attempt')!s}", when, width=14)
    for entry in letter.replays:
        by, why = entry.get("by") or "-", entry.get("why") or "-"
        had = one_line(str(entry.get("died_of")))
        who = f"{_when(entry)} by {one_line(str(by))}: {one_line(str(why))} (died of {had} before)"
        out.fact("replayed", who, width=14)
    if letter.replay_count > len(letter.replays):
        out.fact("replayed", f"{letter.replay_count} times in total", width=14)
    for name, value in letter.headers.items():
        if not name.lower().startswith("jetjobs-"):
            out.fact("header", f"{one_line(name)}: {printable(value)}", width=14)
    if letter.traceback:
        out.data("")
        show_traceback(letter.traceback)


def _when(entry: dict[str, Any]) -> str:
    try:
        return datetime.fromtimestamp(float(entry.get("at", "")), UTC).isoformat(timespec="milliseconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return "-"


@commands.command("export")
async def export_letters(
    file: Annotated[str, typer.Argument(help="File to write, one JSON object per line; - for standard output.")],
    queue: Queue = None,
    task: TaskName = None,
    died_of: DiedOf = None,
    error_type: ErrorType = None,
    since: Since = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Write dead letters to a file. They also stay on the server."""
    wanted = Selection(None, queue, task, died_of, error_type, since).filter()
    _check_free(file, overwrite=overwrite)
    async with state.reader() as app:
        with _output(file) as writing:
            count = await app.dead.export_to(writing, wanted)
    if file != "-" and state.out.as_json:
        state.out.json({"exported": count})
    else:
        state.out.note(f"{count} exported")


def _check_free(name: str, *, overwrite: bool) -> None:
    if name != "-" and not overwrite and Path(name).exists():
        raise ConfigError(f"{name} already exists; nothing was written", hint="replace it with --overwrite")


@contextlib.contextmanager
def _output(name: str) -> Iterator[IO[str]]:
    """The output stream. The file gets its name once complete: an interrupted export leaves no file."""
    if name == "-":
        yield sys.stdout
        return
    unfinished = Path(f"{name}.part")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            yield file
        os.replace(unfinished, name)
    except OSError as error:
        raise ConfigError(f"{name}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)


@commands.command("import")
async def import_letters(
    file: Annotated[str, typer.Argument(help="File that `export` wrote; - for standard input.")],
    reason: Reason = "",
) -> int:
    """Import exported letters. Letters that already exist are skipped."""
    with _input(file) as reading:
        async with state.reader() as app:
            await app.provision([])
            try:
                report = await app.dead.import_from(reading, by=operator(), reason=reason)
            except UnicodeDecodeError as error:
                raise ConfigError(f"{file} is not a text file: {error}") from None
            except asyncio.CancelledError:
                state.out.note("interrupted; what was imported stays. Repeat the command to continue.")
                raise
    if state.out.as_json:
        state.out.json(report.as_dict())
    else:
        state.out.data(f"{report.imported} imported, {report.already_there} already existed")
        for number, why in report.problems[:NAMED]:
            state.out.note(f"{file}, line {number}: {why[:300]}")
        if len(report.problems) > NAMED:
            state.out.note(f"and {len(report.problems) - NAMED} more lines; --json prints all of them")
    return FAILED if report.problems else DONE


@contextlib.contextmanager
def _input(name: str) -> Iterator[IO[str]]:
    if name == "-":
        yield sys.stdin
        return
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(Path(name).open(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{name}: {error.strerror}") from error
        yield file
