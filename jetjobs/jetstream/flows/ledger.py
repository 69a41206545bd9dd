"""The ledger of flows: a stream of counters with one entry for each job of a flow that has ended.

The confirmation of an entry says how many entries its node has. That only says when to look: a job that ran twice
may have two. Whether a node is complete is decided by the indexes in its entries.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from jetjobs.jetstream.messages.publisher import Outgoing, Publisher
from jetjobs.jetstream.messages.scan import scan
from jetjobs.jetstream.transport import api
from jetjobs.jetstream.transport.backoff import backoff_s
from jetjobs.jetstream.transport.connection import Connection
from jetjobs.model.errors import BrokerUnavailable
from jetjobs.model.flow.entries import MAX_INLINE_RESULT, Completed, Entry, complete
from jetjobs.model.flow.progress import NodeCounts
from jetjobs.model.flow.steps import Position
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.flow_names import FlowNames, LedgerKind, LedgerSubject
from jetjobs.model.wire.lenient_json import as_int, read_record

_FRESH_S = 10.0
"""How long to wait for a leader that knows what this process knows, and for its replicas."""


@dataclass(frozen=True, slots=True)
class Written:
    """A confirmed entry."""

    count: int
    """How many entries its node has, at least."""
    sequence: int


class Ledger:
    """The ledger of one namespace."""

    def __init__(self, connection: Connection, publisher: Publisher, names: FlowNames) -> None:
        self._connection = connection
        self._publisher = publisher
        self._names = names
        self._stream = names.ledger_stream

    async def add(
        self,
        fkey: str,
        position: Position,
        kind: LedgerKind,
        headers: Mapping[str, str],
        message_id: str,
        owned: Callable[[], bool],
    ) -> Written:
        """Write an entry and wait for its confirmation. StorageFull and other errors as for every publish."""
        subject = self._names.ledger(fkey, position.node, position.count, kind)
        message = Outgoing(subject, b"", {**headers, h.MSG_ID: message_id})
        answer = read_record(await self._publisher.confirm(self._stream, message, owned=owned))
        sequence = as_int(answer.get("seq"))
        if "val" in answer:
            return Written(int(str(answer["val"])), sequence)
        # A repeated publish is confirmed without its count.
        return Written((await self._counts(subject, sequence)).get(subject, 0), sequence)

    async def completed(self, fkey: str, node: str, at_least: int) -> Completed | None:
        """The results of a node, if every index has an entry. `at_least` is a sequence that the answer must know:
        that of an entry that the caller has written."""
        pattern = self._names.ledger(fkey, node, "*", "end")
        give_up = time.monotonic() + _FRESH_S
        tries = 0
        while True:
            counts = await self._counts(pattern, at_least)
            if not any(found >= of.count for of, found in _subjects(counts)):
                return None
            entries = await self.entries(pattern)
            if len(entries) >= sum(counts.values()):
                return complete(entry for entry in entries if entry is not None)
            tries += 1
            await _wait(tries, give_up, f"the replicas of {self._stream} are behind its leader")

    async def failures(self, fkey: str) -> list[Entry]:
        """The failures of a flow that its dependents wait for, oldest first. May be slightly old."""
        found = await self.entries(self._names.ledger(fkey, "*", "*", "dead"))
        return [entry for entry in found if entry is not None]

    async def counts(self, fkey: str) -> list[NodeCounts]:
        """The nodes of a flow that have entries, by one request for each 100,000 of them."""
        return (await self._all_counts(self._names.ledger_of(fkey))).get(fkey, [])

    async def all_counts(self) -> dict[str, list[NodeCounts]]:
        """`counts` of all flows, by their key tokens."""
        return await self._all_counts(self._names.ledger_filter)

    async def _all_counts(self, pattern: str) -> dict[str, list[NodeCounts]]:
        found: dict[tuple[str, str, int], dict[str, int]] = {}
        offset = total = 0
        while offset == 0 or offset < total:
            query = {"subjects_filter": pattern, "offset": offset}
            info = await self._connection.api(api.stream_info(self._stream), query)
            counts: dict[str, int] = info["state"].get("subjects") or {}
            if not counts:
                break
            offset, total = offset + len(counts), int(info.get("total", 0))
            for subject, count in _subjects(counts):
                found.setdefault((subject.fkey, subject.node, subject.count), {})[subject.kind] = count
        by_flow: dict[str, list[NodeCounts]] = {}
        for (fkey, node, size), kinds in found.items():
            by_flow.setdefault(fkey, []).append(NodeCounts(node, size, kinds.get("end", 0), kinds.get("dead", 0)))
        return by_flow

    async def entries(self, pattern: str) -> list[Entry | None]:
        """The entries on matching subjects in their order; None for what cannot be read."""
        return [
            _read(message.subject, message.headers)
            async for message in scan(self._connection, self._stream, pattern)
        ]

    async def _counts(self, pattern: str, at_least: int) -> dict[str, int]:
        """The number of entries of each matching subject, by a leader that knows sequence `at_least`. While a
        group elects its leader, another member may answer."""
        give_up = time.monotonic() + _FRESH_S
        tries = 0
        while True:
            info = await self._connection.api(api.stream_info(self._stream), {"subjects_filter": pattern})
            if int(info["state"]["last_seq"]) >= at_least:
                return info["state"].get("subjects") or {}
            tries += 1
            await _wait(tries, give_up, f"the leader of {self._stream} does not know its last entries yet")


def fits_entry(result: bytes) -> bool:
    """Whether a result, as JSON, fits into an entry. There, other characters than ASCII are escaped."""
    return len(result) * (1 if result.isascii() else 3) <= MAX_INLINE_RESULT


async def _wait(tries: int, give_up: float, problem: str) -> None:
    pause_s = backoff_s(tries)
    if time.monotonic() + pause_s > give_up:
        raise BrokerUnavailable(problem)
    await asyncio.sleep(pause_s)


def _subjects(counts: Mapping[str, int]) -> Iterator[tuple[LedgerSubject, int]]:
    for subject, count in counts.items():
        with contextlib.suppress(ValueError):  # stored by another program
            yield LedgerSubject.parse(subject), count


_parse = functools.lru_cache(1024)(LedgerSubject.parse)


def _read(subject: str, headers: Mapping[str, str]) -> Entry | None:
    try:
        place = _parse(subject)
        return Entry.read(place.node, place.count, headers)
    except ValueError:
        return None
