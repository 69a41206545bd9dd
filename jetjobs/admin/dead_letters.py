"""`app.dead`: list, count, get, replay, delete, export and import dead letters."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Mapping
from dataclasses import replace
from typing import IO, Any

from jetjobs.admin import dead_letter_files as letter_files
from jetjobs.admin.dead_letter_files import ImportReport, objects_of
from jetjobs.admin.replay import Replayer, replay_many
from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.jetstream.jobs.dead_letters import read_letter
from jetjobs.model.errors import DefinitionError, DeliveryError, JobAmbiguous, QueueNotFound
from jetjobs.model.public import public
from jetjobs.model.views.dead_letter import (
    DeadLetter,
    DeadLetterFilter,
    DeadLetterGroup,
    ReplayAnswer,
    ReplayOptions,
    ReplayOutcome,
)
from jetjobs.model.wire.ids import is_id

__all__ = ["DeadLetters", "ImportReport", "ReplayAnswer", "ReplayOutcome"]

EVERYTHING = DeadLetterFilter()


@public("jetjobs.admin")
class DeadLetters:
    """The dead letters of one namespace."""

    def __init__(self, jetstream: JetStreamClient, registry: Router) -> None:
        self._jetstream = jetstream
        self._registry = registry

    # Looking

    async def list(
        self, wanted: DeadLetterFilter = EVERYTHING, start: int = 1, until: int | None = None
    ) -> AsyncGenerator[DeadLetter, None]:
        """Letters that match, in the order of their death, from sequence `start` on and not beyond `until`.

        They are read as they are asked for, some at a time; TopologyMissing where there is no dead stream.
        """
        async for message in self._jetstream.dead.scan(wanted.queue or "*", wanted.task or "*", start):
            if until is not None and message.sequence > until:
                return
            letter = read_letter(message)
            if wanted.matches(letter):
                yield letter

    async def groups(self, wanted: DeadLetterFilter = EVERYTHING) -> tuple[DeadLetterGroup, ...]:
        """How many letters there are of each queue, task, reason and error type, the most frequent first."""
        found: dict[tuple[str, str, str, str], DeadLetterGroup] = {}
        async for letter in self.list(wanted):
            key = (letter.queue, letter.task, letter.reason, letter.error_type)
            group = found.get(key) or DeadLetterGroup(*key, 0, letter.died_at, None)
            found[key] = replace(group, count=group.count + 1, last=letter.died_at)
        return tuple(sorted(found.values(), key=lambda group: -group.count))

    async def get(self, job_id: str, *, queue: str | None = None, task: str | None = None) -> DeadLetter | None:
        """The letter of a job, or None. JobAmbiguous when jobs of several queues or tasks had this id."""
        if not all(is_id(token) for token in (job_id, queue or "any", task or "any")):
            return None
        places = await self._jetstream.dead.subjects_of(job_id, queue or "*", task or "*")
        if len(places) > 1:
            pairs = [(place.split(".")[2], place.split(".")[3]) for place in places]
            raise JobAmbiguous(
                f"{len(places)} dead letters have the id {job_id}: " + ", ".join(f"{q}/{t}" for q, t in pairs),
                places=pairs,
                hint="name the queue and the task",
            )
        message = await self._jetstream.dead.at(places[0]) if places else None
        return read_letter(message) if message is not None else None

    async def last_sequence(self) -> int:
        """The place of the newest letter: `until`, for a list that is not to meet letters still to come."""
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
        """Enqueue the job again under its id and key, from its first attempt."""
        try:
            replayer = Replayer(self._jetstream, self._registry, ReplayOptions(by, reason, to_queue, arguments))
            await replayer.check_queue()
        except (DefinitionError, QueueNotFound) as error:
            return ReplayAnswer(letter, ReplayOutcome.REFUSED, str(error))
        return await replayer.replay(letter)

    def replay_many(
        self,
        letters: AsyncIterable[DeadLetter] | Iterable[DeadLetter],
        *,
        by: str = "",
        reason: str = "",
        to_queue: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        rate: float = 0.0,
    ) -> AsyncGenerator[ReplayAnswer, None]:
        """Replay letters as they come, up to 16 at a time, and answer each. With a `rate`, so many a second.

        QueueNotFound, with nothing changed, when `to_queue` is not there. Those under way are brought to their end
        when it is cancelled.
        """
        order = ReplayOptions(by, reason, to_queue, arguments)
        return replay_many(Replayer(self._jetstream, self._registry, order), letters, rate)

    async def replay_all(
        self,
        wanted: DeadLetterFilter = EVERYTHING,
        *,
        by: str = "",
        reason: str = "",
        to_queue: str | None = None,
        rate: float = 0.0,
    ) -> AsyncIterator[ReplayAnswer]:
        """Replay all letters that match now. Jobs that die again meanwhile are not taken up a second time."""
        letters = self.list(wanted, until=await self.last_sequence())
        async for answer in self.replay_many(letters, by=by, reason=reason, to_queue=to_queue, rate=rate):
            yield answer

    async def check(self, letter: DeadLetter, *, arguments: Mapping[str, Any] | None = None) -> str | None:
        """Why a replay would be refused, as far as task and arguments tell; None if they fit. Changes nothing."""
        try:
            await Replayer(self._jetstream, self._registry, ReplayOptions(arguments=arguments)).revive(letter)
        except (DeliveryError, DefinitionError) as error:
            return str(error)
        return None

    # Deleting

    async def delete(self, letter: DeadLetter) -> bool:
        """Remove a letter for good, and what is kept for it. False when it was gone already."""
        gone = await self._jetstream.dead.remove(letter.sequence)
        if gone and objects_of(letter.headers):
            needed = await self._needed_by_others(letter)
            for name in objects_of(letter.headers):
                if name not in needed:
                    await self._jetstream.locator.delete_unreferenced(letter.queue, letter.task, letter.id, name)
        return gone

    async def _needed_by_others(self, letter: DeadLetter) -> set[str]:
        """Objects of other letters that have the same id."""
        places = await self._jetstream.dead.subjects_of(letter.id)
        others = [await self._jetstream.dead.at(place) for place in places]
        return {name for other in others if other is not None for name in objects_of(other.headers)}

    # Files

    async def to_json(self, letter: DeadLetter) -> dict[str, Any]:
        """A letter as one JSON object, whole: a line of an exported file."""
        return await letter_files.to_json(self._jetstream, letter)

    async def from_json(self, value: Any) -> bool:
        """Put an exported letter back. False when one of that id is there; ValueError when it is no letter."""
        return await letter_files.from_json(self._jetstream, value)

    async def export_to(self, file: IO[str], wanted: DeadLetterFilter = EVERYTHING) -> int:
        """Write letters to a text file, one JSON object a line; how many. They stay where they are."""
        count = 0
        async for letter in self.list(wanted, until=await self.last_sequence()):
            await letter_files.write_file(self._jetstream, file, letter)
            count += 1
        return count

    async def import_from(self, file: IO[str]) -> ImportReport:
        """Put the letters of an exported file back. One that is there already is left alone."""
        return await letter_files.read_file(self._jetstream, file)
