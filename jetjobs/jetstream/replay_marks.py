"""Marks of replays: stored together with the jobs, so a mark says for sure that its job was stored. ADR 17."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from jetjobs.jetstream.connection import Connection
from jetjobs.jetstream.faults import BATCH_DUPLICATE
from jetjobs.jetstream.protocol import header_lines
from jetjobs.jetstream.publisher import Outgoing, Publisher, Staged, Taken, stage
from jetjobs.jetstream.reads import StoredMessage, delete_message, last_on
from jetjobs.jetstream.scan import scan
from jetjobs.model import names as n
from jetjobs.model.errors import BrokerError
from jetjobs.model.names import Names


class Mark(NamedTuple):
    """Left by a replay that has enqueued its job and not yet removed the letter."""

    queue: str
    run: str
    """Of the life that the replay began."""
    letter: int
    """Sequence of the letter it came from."""
    sequence: int = 0
    """Its own place in the work stream, where it is known."""


class Refused(Exception):
    """One of the letters was replayed before, or the id or key of one is taken: none was stored."""

    def __init__(self, message: str, *, duplicate: bool = False) -> None:
        super().__init__(message)
        self.duplicate = duplicate
        """It was replayed, within the last two minutes."""


class ReplayMarks:
    """The marks in the work streams of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, names: Names) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names

    async def store(self, replays: Sequence[tuple[Mark, Outgoing]]) -> None:
        """Store jobs, guarded each by itself, and their marks: all of them, or Refused and none.

        All are of one queue. No two may have the same guard: the server does not compare messages within a batch.
        """
        staged: list[Staged] = []
        for mark, job in replays:
            # The guard knows a replay whose letter still stands. The message id knows one that is over, for the
            # two minutes in which somebody may be about to replay a letter he read before it was removed.
            headers = {n.EXPECTED_LAST_SUBJECT_SEQ: "0"}
            if staged:
                headers[n.MSG_ID] = _message_id(mark)
            staged += [Staged(self._subject(mark), str(mark.letter).encode(), header_lines(headers)), stage(job)]
        first = replays[0][0]
        try:
            await self._publisher.store_batch(self._names.work_stream(first.queue), staged, _message_id(first))
        except Taken as taken:
            raise Refused(str(taken)) from taken
        except BrokerError as error:
            if error.code != BATCH_DUPLICATE:
                raise
            raise Refused(str(error), duplicate=True) from error

    async def is_there(self, mark: Mark) -> bool:
        """Whether this replay has been stored, by whomever, and its letter may still stand."""
        return await self._stored(mark) is not None

    async def remove(self, marks: Sequence[Mark]) -> None:
        """All are of one queue. Nothing happens with those that are gone already."""
        known = {mark.run: mark.sequence for mark in marks if mark.sequence}
        if len(known) < len(marks):
            known = {mark.run: mark.sequence for mark in await self._marks_of(marks[0].queue)}
        await asyncio.gather(*(self._remove(mark, known.get(mark.run, 0)) for mark in marks))

    async def _remove(self, mark: Mark, sequence: int) -> None:
        if not sequence:
            there = await self._stored(mark)
            sequence = there.sequence if there is not None else 0
        if sequence:
            # By its place: a purge by subject would take the longer, the more jobs are queued.
            await delete_message(self._connection, self._names.work_stream(mark.queue), sequence, erase=False)

    async def _stored(self, mark: Mark) -> StoredMessage | None:
        return await last_on(self._connection, self._names.work_stream(mark.queue), self._subject(mark))

    def _subject(self, mark: Mark) -> str:
        return self._names.replay_mark(mark.queue, mark.run)

    async def find(self) -> Sequence[Mark]:
        """All marks, of whatever queue: a handful, left by replays under way or cut short."""
        prefix = self._names.work_stream("")
        queues = [name.removeprefix(prefix) for name in await self._streams() if name.startswith(prefix)]
        return [mark for queue in queues for mark in await self._marks_of(queue)]

    async def _marks_of(self, queue: str) -> Sequence[Mark]:
        found: list[Mark] = []
        subject = self._names.replay_mark(queue, "*")
        async for message in scan(self._connection, self._names.work_stream(queue), subject):
            run, text = message.subject.split(".")[-1], message.data[:20]
            found.append(Mark(queue, run, int(text) if text.isdigit() else 0, message.sequence))
        return found

    async def _streams(self) -> Sequence[str]:
        streams: list[str] = []
        while True:
            query = {"subject": self._names.replay_mark("*", "*"), "offset": len(streams)}
            answer = await self._connection.api("STREAM.NAMES", query)
            page = answer.get("streams") or []
            streams.extend(page)
            if not page or len(streams) >= int(answer.get("total", 0)):
                return streams


def _message_id(mark: Mark) -> str:
    return f"_replay.{mark.run}"
