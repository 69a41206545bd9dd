"""`jetjobs dead replay` and `dead delete`: enqueue dead jobs again or delete their letters."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from jetjobs.admin.changes.replay import ReplayTally
from jetjobs.app import JetJobs
from jetjobs.cli.commands.dead import NAMED, DiedOf, ErrorType, Queue, Selection, Since, TaskName, find_letter
from jetjobs.cli.completion import dead_ids, queue_names
from jetjobs.cli.exit_codes import DONE, FAILED, REFUSED
from jetjobs.cli.state import operator, state
from jetjobs.cli.terminal.options import Data, Reason, Yes, read_data, stripped
from jetjobs.cli.terminal.progress import progress
from jetjobs.cli.terminal.prompts import confirmed
from jetjobs.cli.terminal.text import one_line
from jetjobs.doctor.finding import many
from jetjobs.model.errors import ConfigError, JetJobsError
from jetjobs.model.views.audit import filter_text
from jetjobs.model.views.dead_letter import DeadLetter, ReplayAnswer, ReplayOutcome

commands = typer.Typer()

Ids = Annotated[list[str] | None, typer.Argument(help="Ids of jobs.", autocompletion=dead_ids, callback=stripped)]
All = Annotated[
    bool, typer.Option("--all", help="All letters that match the filters, or all letters without a filter.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]

SHOWN = 5
"""Letters that a dry run lists."""


class Tally(ReplayTally):
    """Prints what was done at the end, even after an interruption."""

    def add(self, answer: ReplayAnswer) -> None:
        super().add(answer)
        if state.out.quiet and answer.outcome is ReplayOutcome.REPLAYED:
            state.out.data(answer.letter.id)

    def print(self, *, whole: bool) -> None:
        out = state.out
        if out.as_json:
            out.json(self.as_dict(complete=whole))
            return
        done = ", ".join(f"{number} {outcome}" for outcome, number in self.counts.items()) or "0 replayed"
        # With --quiet, standard output contains only the ids.
        (out.note if out.quiet else out.data)(
            done if whole else f"{done}; interrupted. Repeat the command to continue."
        )
        for entry in self.refused[:NAMED]:
            out.note(f"{entry['id']} {entry['outcome']}: {one_line(entry['why'])}")
        if len(self.refused) > NAMED:
            out.note(f"and {len(self.refused) - NAMED} more; --json prints all of them")


class Choice:
    """The selected letters as of the start of the command. Jobs that die later are not included."""

    def __init__(self, app: JetJobs, selection: Selection) -> None:
        selection.check()
        self._app = app
        self._selection = selection
        self._wanted = selection.filter()
        self._until = 0
        self.named: list[DeadLetter] | None = None

    async def resolve(self) -> None:
        """Fix the selection. JobNotFound if an id has no letter, JobAmbiguous if it has several."""
        self._until = await self._app.dead.last_sequence()
        if self._selection.ids:
            self.named = [
                await find_letter(self._app, job_id, self._selection, "; nothing was changed")
                for job_id in dict.fromkeys(self._selection.ids)
            ]

    @property
    def text(self) -> str:
        """The ids or the filter, for the audit."""
        if self.named is not None:
            return " ".join(letter.id for letter in self.named)
        return filter_text(self._wanted)

    async def letters(self) -> AsyncIterator[DeadLetter]:
        """The letters, read one by one: they may be too many to hold in memory."""
        if self.named is not None:
            for letter in self.named:
                yield letter
            return
        async for letter in self._app.dead.list(self._wanted, until=self._until):
            yield letter

    async def count(self) -> tuple[int, list[DeadLetter]]:
        """The number of letters, and the first few."""
        number = 0
        first: list[DeadLetter] = []
        async for letter in self.letters():
            number += 1
            if len(first) < SHOWN:
                first.append(letter)
        return number, first


@commands.command()
async def replay(
    ids: Ids = None,
    all_matching: All = False,
    queue: Queue = None,
    task: TaskName = None,
    died_of: DiedOf = None,
    error_type: ErrorType = None,
    since: Since = None,
    to_queue: Annotated[
        str | None,
        typer.Option(
            help="Enqueue on this queue instead of the job's own.", metavar="QUEUE", autocompletion=queue_names
        ),
    ] = None,
    rate: Annotated[float, typer.Option(help="Maximum per second; 0 for no limit.", min=0, metavar="N")] = 0,
    reason: Reason = "",
    data: Data = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Enqueue dead jobs again with their own ids. They start at attempt 1. Safe to interrupt and repeat."""
    chosen = Selection(ids, queue, task, died_of, error_type, since, all_matching)
    arguments = _other_arguments(chosen, data)
    async with state.load_app() as app:
        choice = Choice(app, chosen)
        await choice.resolve()
        if dry_run:
            return await _dry_run(app, choice, arguments)
        number, _ = await choice.count()
        if (code := await _may_go_ahead("replay", number, yes or bool(ids))) is not None:
            return code
        answers = app.dead.replay_many(
            choice.letters(),
            by=operator(),
            reason=reason,
            to_queue=to_queue,
            arguments=arguments,
            rate=rate,
            selection=choice.text,
        )
        tally = Tally()
        try:
            with progress("replayed", number) as step:
                async for answer in answers:
                    tally.add(answer)
                    step(1)
        except (asyncio.CancelledError, JetJobsError):
            if tally.counts:
                tally.print(whole=False)
            raise
    tally.print(whole=True)
    return FAILED if tally.refused else DONE


@commands.command()
async def delete(
    ids: Ids = None,
    all_matching: All = False,
    queue: Queue = None,
    task: TaskName = None,
    died_of: DiedOf = None,
    error_type: ErrorType = None,
    since: Since = None,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Permanently delete dead letters."""
    async with state.reader() as app:
        choice = Choice(app, Selection(ids, queue, task, died_of, error_type, since, all_matching))
        await choice.resolve()
        number, first = await choice.count()
        if dry_run:
            _print_dry_run("delete", number, first, [])
            return DONE
        if (code := await _may_go_ahead("delete", number, yes or bool(ids))) is not None:
            return code
        deleted = await _delete(app, choice, number, reason)
    if state.out.as_json:
        state.out.json({"deleted": deleted})
    elif not state.out.quiet:
        state.out.data(f"{deleted} deleted")
    return DONE


async def _delete(app: JetJobs, choice: Choice, number: int, reason: str) -> int:
    deleted, by = 0, operator()
    try:
        async with contextlib.AsyncExitStack() as stack:
            if number > 1:
                await stack.enter_async_context(
                    app.audit.together("dead.delete", choice.text, by=by, reason=reason)
                )
            step = stack.enter_context(progress("deleted", number))
            async for letter in choice.letters():
                if await app.dead.delete(letter, by=by, reason=reason):
                    deleted += 1
                    if state.out.quiet:
                        state.out.data(letter.id)
                step(1)
    except (asyncio.CancelledError, JetJobsError):
        state.out.note(f"{deleted} deleted; interrupted")
        raise
    return deleted


# Parts


async def _may_go_ahead(verb: str, number: int, yes: bool) -> int | None:
    """None to go ahead, otherwise the exit code. A single letter needs no confirmation."""
    if number == 0:
        if state.out.as_json:
            state.out.json({"dry_run": False, "matching": 0})
        else:
            state.out.data("No dead letters match. Nothing changed.")
        return DONE
    return None if await confirmed(f"{verb} {many(number)}", yes=yes or number == 1) else REFUSED


async def _dry_run(app: JetJobs, choice: Choice, arguments: dict[str, Any] | None) -> int:
    """Check arguments and print what would be done. A live job of the same id or key is found only by a replay."""
    tally = Tally()
    number = 0
    first: list[DeadLetter] = []
    async for letter in choice.letters():
        number += 1
        if why := await app.dead.check(letter, arguments=arguments):
            tally.add(ReplayAnswer(letter, ReplayOutcome.REFUSED, why))
        elif len(first) < SHOWN:
            first.append(letter)
    _print_dry_run("replay", number, first, tally.refused)
    return DONE


def _print_dry_run(verb: str, number: int, first: list[DeadLetter], refused: list[dict[str, str]]) -> None:
    out = state.out
    if out.as_json:
        first_ids = [letter.id for letter in first]
        out.json({"dry_run": True, "matching": number, "first": first_ids, "refused": refused})
        return
    count = number - len(refused)
    out.data(f"Would {verb} {many(count)}. Nothing changed.")
    for letter in first:
        out.data(f"  {letter.id}  {letter.queue}  {letter.task}")
    if number - len(refused) > len(first):
        out.data("  ...")
    for entry in refused[:NAMED]:
        out.note(f"{entry['id']} would be refused: {one_line(entry['why'])}")
    if len(refused) > NAMED:
        out.note(f"and {len(refused) - NAMED} more; --json prints all of them")


def _other_arguments(selection: Selection, data: str | None) -> dict[str, Any] | None:
    if data is None:
        return None
    if not selection.ids or len(selection.ids) != 1:
        raise ConfigError("--data needs exactly one id")
    return read_data(data)
