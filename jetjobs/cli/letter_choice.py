"""Which letters a command is about: ids or a filter, how many that is, and whether to go ahead."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

from jetjobs.app import JetJobs
from jetjobs.cli.output import REFUSED
from jetjobs.cli.progress import ask
from jetjobs.cli.state import state
from jetjobs.model.durations import parse_duration
from jetjobs.model.errors import ConfigError, LetterNotFound
from jetjobs.model.letter import DeadLetter, LetterFilter
from jetjobs.model.names import check_token
from jetjobs.model.outcome import DeadReason

SHOWN = 5
"""Letters that a dry run names."""


class Selection(NamedTuple):
    """As the options say it."""

    ids: list[str] | None = None
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
        if self.reason is not None and self.reason not in set(DeadReason):
            raise ConfigError(f"no job dies of {self.reason!r}", hint=f"one of {', '.join(DeadReason)}")
        since = None
        if self.since is not None:
            try:
                since = datetime.now(UTC) - parse_duration(self.since)
            except (ValueError, OverflowError) as error:
                raise ConfigError(f"--since: {error}") from None
        return LetterFilter(self.queue, self.task, self.reason, self.error_type, since)

    def check(self) -> None:
        """ConfigError unless it says clearly what is meant."""
        others = any(value is not None for value in (self.reason, self.error_type, self.since))
        if self.ids and (self.all or others):
            raise ConfigError("beside ids only --queue and --task may stand, to tell letters of the same id apart")
        if not self.ids and not self.all and self.filter() == LetterFilter():
            raise ConfigError("name ids, a filter, or --all")


class Choice:
    """The letters chosen, as they were when the command began: what dies later is not among them."""

    def __init__(self, app: JetJobs, selection: Selection) -> None:
        selection.check()
        self._app = app
        self._selection = selection
        self._wanted = selection.filter()
        self._until = 0
        self.named: list[DeadLetter] | None = None

    async def look(self) -> None:
        """LetterNotFound when one of the ids has no letter, LetterAmbiguous when it has several."""
        self._until = await self._app.dead.last_sequence()
        if self._selection.ids:
            ids = dict.fromkeys(self._selection.ids)
            self.named = [await one(self._app, job_id, self._selection, "; nothing was changed") for job_id in ids]

    async def letters(self) -> AsyncIterator[DeadLetter]:
        """Read as they are asked for, never all held."""
        if self.named is not None:
            for letter in self.named:
                yield letter
            return
        async for letter in self._app.dead.list(self._wanted, until=self._until):
            yield letter

    async def count(self) -> tuple[int, list[DeadLetter]]:
        """How many there are, and the first few."""
        number = 0
        first: list[DeadLetter] = []
        async for letter in self.letters():
            number += 1
            if len(first) < SHOWN:
                first.append(letter)
        return number, first


async def one(app: JetJobs, job_id: str, selection: Selection, besides: str = "") -> DeadLetter:
    """The letter of an id. `besides` is said behind the error when there is none."""
    letter = await app.dead.get(job_id, queue=selection.queue, task=selection.task)
    if letter is None:
        raise LetterNotFound(f"no dead letter of {job_id}{besides}", hint="jetjobs dead list")
    return letter


async def may_go_ahead(verb: str, number: int, yes: bool) -> bool:
    """One letter always; many when told to, or when the answer is yes."""
    if yes or number == 1:
        return True
    if not sys.stdin.isatty():
        state.out.error(f"this would {verb} {number} jobs; nothing was changed", "say --yes", REFUSED)
        return False
    try:
        if await ask(f"{verb} {number} jobs?"):
            return True
    except asyncio.CancelledError:
        state.out.note("\nInterrupted. Nothing changed.")
        raise
    state.out.note("Nothing changed.")
    return False


def say_nothing_matches() -> None:
    if state.out.as_json:
        state.out.json({"dry_run": False, "matching": 0})
    else:
        state.out.data("No dead letter matches. Nothing changed.")
