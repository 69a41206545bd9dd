"""What `dead replay` and `dead delete` do."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from typing import Any, NamedTuple

from jetjobs.app import JetJobs
from jetjobs.cli.letter_choice import SHOWN, Choice, Selection, may_go_ahead, say_nothing_matches
from jetjobs.cli.output import DONE, FAILED, REFUSED, one_line, user_name
from jetjobs.cli.progress import progress
from jetjobs.cli.run_dead import reader
from jetjobs.cli.state import state
from jetjobs.dead import ReplayAnswer, Replayed
from jetjobs.model.errors import ConfigError, JetJobsError
from jetjobs.model.letter import DeadLetter
from jetjobs.model.reading import read_json

NAMED = 20
"""Refusals that are printed; `--json` has them all."""


class ReplayOptions(NamedTuple):
    """How to replay."""

    to_queue: str | None
    rate: float
    reason: str
    data: str | None
    dry_run: bool
    yes: bool


class Tally:
    """What has been done so far: it is said in the end, however that comes."""

    def __init__(self) -> None:
        self.counts: Counter[Replayed] = Counter()
        self.refused: list[dict[str, str]] = []

    def add(self, answer: ReplayAnswer) -> None:
        self.counts[answer.outcome] += 1
        if state.out.quiet and answer.outcome is Replayed.REPLAYED:
            state.out.data(answer.letter.id)
        if answer.outcome in (Replayed.REFUSED, Replayed.ALIVE):
            letter = answer.letter
            entry = {"id": letter.id, "queue": letter.queue, "task": letter.task}
            self.refused.append({**entry, "outcome": str(answer.outcome), "why": answer.why})

    def say(self, *, whole: bool) -> None:
        out = state.out
        if out.as_json:
            counts = {str(outcome): number for outcome, number in self.counts.items()}
            out.json({"counts": counts, "refused": self.refused, "complete": whole})
            return
        done = ", ".join(f"{number} {outcome}" for outcome, number in self.counts.items()) or "0 replayed"
        # With --quiet the ids were printed, and are all that belongs there.
        (out.note if out.quiet else out.data)(
            done if whole else f"{done}; stopped before the end. Repeat the command to go on."
        )
        for entry in self.refused[:NAMED]:
            out.note(f"{entry['id']} {entry['outcome']}: {one_line(entry['why'])}")
        if len(self.refused) > NAMED:
            out.note(f"and {len(self.refused) - NAMED} more; --json has them all")


async def replay_command(selection: Selection, options: ReplayOptions) -> int:
    arguments = _other_arguments(selection, options.data)
    app = state.load_app(None, state.settings())
    async with app:
        choice = Choice(app, selection)
        await choice.look()
        if options.dry_run:
            return await _dry_run(app, choice, arguments)
        number, _ = await choice.count()
        if number == 0:
            say_nothing_matches()
            return DONE
        if not await may_go_ahead("replay", number, options.yes or bool(selection.ids)):
            return REFUSED
        return await _replay(app, choice, number, options, arguments)


async def _replay(
    app: JetJobs, choice: Choice, number: int, options: ReplayOptions, arguments: dict[str, Any] | None
) -> int:
    tally = Tally()
    answers = app.dead.replay_many(
        choice.letters(),
        by=f"{user_name()}@{socket.gethostname()}",
        reason=options.reason,
        to_queue=options.to_queue,
        arguments=arguments,
        rate=options.rate,
    )
    try:
        with progress("replayed", number) as step:
            async for answer in answers:
                tally.add(answer)
                step()
    except (asyncio.CancelledError, JetJobsError):
        if tally.counts:
            tally.say(whole=False)
        raise
    tally.say(whole=True)
    return FAILED if tally.refused else DONE


async def _dry_run(app: JetJobs, choice: Choice, arguments: dict[str, Any] | None) -> int:
    """Says what would be, arguments checked; a live job of the same id or key is only seen when it is done."""
    tally = Tally()
    number = 0
    first: list[DeadLetter] = []
    async for letter in choice.letters():
        number += 1
        if why := await app.dead.check(letter, arguments=arguments):
            tally.add(ReplayAnswer(letter, Replayed.REFUSED, why))
        elif len(first) < SHOWN:
            first.append(letter)
    _say_dry_run("replay", number, first, tally.refused)
    return DONE


def _say_dry_run(verb: str, number: int, first: list[DeadLetter], refused: list[dict[str, str]]) -> None:
    out = state.out
    if out.as_json:
        first_ids = [letter.id for letter in first]
        out.json({"dry_run": True, "matching": number, "first": first_ids, "refused": refused})
        return
    count = number - len(refused)
    out.data(f"Would {verb} {count} {'job' if count == 1 else 'jobs'}. Nothing changed.")
    for letter in first:
        out.data(f"  {letter.id}  {letter.queue}  {letter.task}")
    if number - len(refused) > len(first):
        out.data("  ...")
    for entry in refused[:NAMED]:
        out.note(f"{entry['id']} would be refused: {one_line(entry['why'])}")
    if len(refused) > NAMED:
        out.note(f"and {len(refused) - NAMED} more; --json has them all")


async def delete_command(selection: Selection, *, dry_run: bool, yes: bool) -> int:
    async with reader() as app:
        choice = Choice(app, selection)
        await choice.look()
        number, first = await choice.count()
        if dry_run:
            _say_dry_run("delete", number, first, [])
            return DONE
        if number == 0:
            say_nothing_matches()
            return DONE
        if not await may_go_ahead("delete", number, yes or bool(selection.ids)):
            return REFUSED
        return await _delete(app, choice, number)


async def _delete(app: JetJobs, choice: Choice, number: int) -> int:
    deleted = 0
    try:
        with progress("deleted", number) as step:
            async for letter in choice.letters():
                if await app.dead.delete(letter):
                    deleted += 1
                    if state.out.quiet:
                        state.out.data(letter.id)
                step()
    except (asyncio.CancelledError, JetJobsError):
        state.out.note(f"{deleted} deleted; stopped before the end")
        raise
    if state.out.as_json:
        state.out.json({"deleted": deleted})
    elif not state.out.quiet:
        state.out.data(f"{deleted} deleted")
    return DONE


def _other_arguments(selection: Selection, data: str | None) -> dict[str, Any] | None:
    if data is None:
        return None
    if not selection.ids or len(selection.ids) != 1:
        raise ConfigError("--data goes with one id")
    try:
        values = read_json(data)
    except ValueError as error:
        raise ConfigError(f"--data: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError("--data must be one JSON object: the task's arguments by name")
    return values
