"""`app.dead`: list, count, get, replay, delete, export and import dead letters."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import IO, Any

from jetjobs.admin import dead_letter_files
from jetjobs.admin.changes.replay import Replayer, replay_many
from jetjobs.admin.dead_letter_files import ImportReport, objects_of
from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.dead_letters import read_letter
from jetjobs.jetstream.messages.get import look_twice
from jetjobs.model.errors import DefinitionError, DeliveryError, JobAmbiguous, QueueNotFound
from jetjobs.model.public import public
from jetjobs.model.views.audit import DONE, UNCHANGED, filter_text
from jetjobs.model.views.dead_letter import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    ReplayAnswer,
    ReplayOptions,
    ReplayOutcome,
)
from jetjobs.model.wire.ids import is_id
from jetjobs.model.wire.subjects import DeadSubject

EVERYTHING = DeadLetterFilter()
_NAMED = 10
"""Ids that the audit names if letters are replayed without a selection."""


@public("jetjobs.admin")
class DeadLetters:
    """The dead letters of one namespace."""

    def __init__(self, jetstream: JetStreamClient, registry: Router) -> None:
        self._jetstream = jetstream
        self._registry = registry

    # Reading

    async def list(
        self, wanted: DeadLetterFilter = EVERYTHING, start: int = 1, until: int | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """The letters that match, oldest first, from sequence `start` up to and including `until`.

        They are read in batches as the caller iterates. TopologyMissing when the stream does not exist.
        """
        async for message in self._jetstream.dead.scan(wanted.queue or "*", wanted.task or "*", start):
            if until is not None and message.sequence > until:
                return
            letter = read_letter(message)
            if wanted.matches(letter):
                yield letter

    async def page(
        self,
        wanted: DeadLetterFilter = EVERYTHING,
        start: int = 1,
        limit: int = 50,
        within: Collection[str] | None = None,
    ) -> tuple[Sequence[DeadLetter], int | None]:
        """Up to `limit` letters without their bodies, and the sequence at which the list continues; None at its
        end. `within` limits the list to these queues."""
        letters: builtins.list[DeadLetter] = []
        async for letter in self.list(wanted, start):
            if within is not None and letter.queue not in within:
                continue
            if len(letters) == limit:
                return letters, letter.sequence
            letters.append(replace(letter, body=b""))
        return letters, None

    async def groups(
        self, wanted: DeadLetterFilter = EVERYTHING, within: Collection[str] | None = None
    ) -> tuple[DeadLetterGroup, ...]:
        """Count the letters by queue, task, reason and error type, the group with the newest letter first."""
        found: dict[tuple[str, str, str, str], DeadLetterGroup] = {}
        async for letter in self.list(wanted):
            if within is not None and letter.queue not in within:
                continue
            key = (letter.queue, letter.task, letter.reason, letter.error_type)
            group = found.get(key) or DeadLetterGroup(*key, 0, letter.died_at, None)
            found.pop(key, None)  # the last one of the dict is the newest
            found[key] = replace(
                group, count=group.count + 1, last=letter.died_at, example=letter.id, text=letter.text
            )
        return tuple(reversed(found.values()))

    async def get(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> DeadLetter | None:
        """The letter of a job, or None. JobAmbiguous when several queues or tasks have a letter with this id."""
        if not all(is_id(token) for token in (job_id, queue or "any", task or "any")):
            return None
        subjects = await look_twice(lambda: self._jetstream.dead.subjects_of(job_id, queue or "*", task or "*"))
        if len(subjects) > 1:
            places = [(subject.queue, subject.task) for subject in map(DeadSubject.parse, subjects)]
            raise JobAmbiguous(
                f"{len(places)} dead letters have the id {job_id}: " + ", ".join(f"{q}/{t}" for q, t in places),
                places=places,
                job_id=job_id,
                hint="give the queue and the task",
            )
        message = await self._jetstream.dead.at(subjects[0]) if subjects else None
        return read_letter(message) if message is not None else None

    async def last_sequence(self) -> int:
        """The sequence of the newest letter. As `until`, it keeps letters that arrive later out of a list."""
        return await self._jetstream.dead.last_sequence()

    # Replaying

    async def replay(
        self,
        letter: DeadLetter,
        *,
        by: str = "",
        reason: str = "",
        to_queue: str | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> ReplayAnswer:
        """Enqueue the job again with its id and key, starting from its first attempt."""
        async with self._jetstream.audit.action("dead.replay", letter.id, by=by, reason=reason) as outcome:
            try:
                options = ReplayOptions(by, reason, to_queue, arguments)
                replayer = Replayer(self._jetstream, self._registry, options)
                await replayer.check_queue()
                answer = await replayer.replay(letter)
            except (DefinitionError, QueueNotFound) as error:
                answer = ReplayAnswer(letter, ReplayOutcome.REFUSED, str(error))
            outcome.set(answer.outcome, answer.why)
        return answer

    def replay_many(
        self,
        letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter],
        *,
        by: str = "",
        reason: str = "",
        to_queue: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        rate: float = 0.0,
        selection: str = "",
    ) -> AsyncGenerator[ReplayAnswer, None]:
        """Replay letters, up to 16 at a time, and yield an answer for each. `rate` limits the letters per second.

        QueueNotFound, before any change, when `to_queue` does not exist. A cancel lets replays in progress finish.
        The audit gets one entry for all, with `selection`, how they were chosen; without it, with the first ids.
        """
        replayer = Replayer(self._jetstream, self._registry, ReplayOptions(by, reason, to_queue, arguments))
        return self._recorded(replay_many(replayer, letters, rate), selection, by, reason)

    async def _recorded(
        self, answers: AsyncGenerator[ReplayAnswer, None], selection: str, by: str, reason: str
    ) -> AsyncGenerator[ReplayAnswer, None]:
        ids: list[str] = []
        async with (
            self._jetstream.audit.action("dead.replay", selection, by=by, reason=reason) as outcome,
            contextlib.aclosing(answers),
        ):
            async for answer in answers:
                outcome.counts[answer.outcome] = outcome.counts.get(answer.outcome, 0) + 1
                if not selection and len(ids) < _NAMED:
                    ids.append(answer.letter.id)
                    outcome.target = " ".join(ids)
                yield answer

    async def replay_all(
        self,
        wanted: DeadLetterFilter = EVERYTHING,
        *,
        by: str = "",
        reason: str = "",
        to_queue: str | None = None,
        rate: float = 0.0,
    ) -> AsyncIterator[ReplayAnswer]:
        """Replay the letters that match now. A job that dies again in the meantime is not replayed twice."""
        letters = self.list(wanted, until=await self.last_sequence())
        answers = self.replay_many(
            letters, by=by, reason=reason, to_queue=to_queue, rate=rate, selection=filter_text(wanted)
        )
        async with contextlib.aclosing(answers):
            async for answer in answers:
                yield answer

    async def check(self, letter: DeadLetter, *, arguments: Mapping[str, Any] | None = None) -> str | None:
        """Why a replay would be refused because of its task or arguments; None when they are valid.

        Changes nothing.
        """
        try:
            await Replayer(self._jetstream, self._registry, ReplayOptions(arguments=arguments)).revive(letter)
        except (DeliveryError, DefinitionError) as error:
            return str(error)
        return None

    # Deleting

    async def delete(self, letter: DeadLetter, *, by: str = "", reason: str = "") -> bool:
        """Delete a letter and its stored objects permanently. False when it was gone already."""
        async with self._jetstream.audit.action("dead.delete", letter.id, by=by, reason=reason) as outcome:
            deleted = await self._jetstream.dead.remove(letter.sequence)
            outcome.set("deleted" if deleted else "gone")
        if deleted and objects_of(letter.headers):
            needed = await self._needed_by_others(letter)
            for name in objects_of(letter.headers):
                if name not in needed:
                    await self._jetstream.locator.delete_unreferenced(letter.queue, letter.task, letter.id, name)
        return deleted

    async def _needed_by_others(self, letter: DeadLetter) -> set[str]:
        """The objects of other letters with the same id."""
        subjects = await self._jetstream.dead.subjects_of(letter.id)
        others = [await self._jetstream.dead.at(subject) for subject in subjects]
        return {name for other in others if other is not None for name in objects_of(other.headers)}

    # Files

    async def to_json(self, letter: DeadLetter) -> dict[str, Any]:
        """The complete letter as one JSON object: a line of an exported file."""
        return await dead_letter_files.to_json(self._jetstream, letter)

    async def from_json(self, value: Any, *, by: str = "", reason: str = "") -> bool:
        """Restore an exported letter. False when it exists already; ValueError when it is not valid here."""
        async with self._jetstream.audit.action("dead.import", "one letter", by=by, reason=reason) as outcome:
            restored = await dead_letter_files.from_json(self._jetstream, value)
            outcome.set(DONE if restored else UNCHANGED)
        return restored

    async def export_to(self, file: IO[str], wanted: DeadLetterFilter = EVERYTHING) -> int:
        """Write letters to a text file, one JSON object per line. Returns how many; the letters are kept."""
        count = 0
        async for letter in self.list(wanted, until=await self.last_sequence()):
            await dead_letter_files.write_file(self._jetstream, file, letter)
            count += 1
        return count

    async def import_from(self, file: IO[str], *, by: str = "", reason: str = "") -> ImportReport:
        """Restore the letters of an exported file. Letters that exist already are not changed."""
        name = str(getattr(file, "name", "file"))
        async with self._jetstream.audit.action("dead.import", name, by=by, reason=reason) as outcome:
            report = await dead_letter_files.read_file(self._jetstream, file)
            problems = len(report.problems)
            outcome.counts = {"imported": report.imported, "existed": report.already_there, "failed": problems}
        return report
