"""Ledger entries: what the end of a job writes for its flow, and when the entries of a node are complete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, get_args

from jetjobs.model.flow.failed import Failed
from jetjobs.model.flow.steps import Position
from jetjobs.model.wire import headers as h
from jetjobs.model.wire.lenient_json import read_json, write_json

EntryState = Literal["succeeded", "dead", "cancelled"]
MAX_INLINE_RESULT = 32 * 1024
"""Bytes of a result in an entry. A larger one is in the object store."""

_STATES = frozenset(get_args(EntryState))
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class Entry(NamedTuple):
    """One entry of a node in the ledger."""

    position: Position
    state: EntryState = "succeeded"
    result: Any = None
    """The JSON value of the result; of a failure, that of `Failed`."""
    result_object: str = ""
    """The name of a result in the object store; `result` is then None."""
    secret: str = ""
    """The secret paths in the result, in the form of the done record."""

    @classmethod
    def read(cls, node: str, count: int, headers: Mapping[str, str]) -> Entry:
        """The entry in a message. ValueError if it is invalid: any client with access to the ledger can write
        there."""
        state = headers.get(h.STATE, "")
        if state not in _STATES:
            raise ValueError(f"invalid state {state[:40]!r}")
        position = Position.parse(f"{node}.{headers.get(h.INDEX, '')}.{count}")
        result = read_json(headers.get(h.RESULT, "null"))
        return cls(position, state, result, headers.get(h.RESULT_OBJECT, ""), headers.get(h.SECRET, ""))  # type: ignore[arg-type]

    @property
    def failure(self) -> Failed | None:
        """The failure in an entry of a job that did not succeed."""
        if self.state == "succeeded":
            return None
        found = self.result if isinstance(self.result, dict) else {}
        return Failed(*(str(found.get(name, "")) for name in ("job_id", "reason", "error")))


def entry_headers(
    position: Position,
    state: EntryState,
    result: bytes = b"null",
    *,
    result_object: str = "",
    secret: str = "",
) -> dict[str, str]:
    """The headers of an entry, without its message id. `result` is JSON, and ignored where there is an object."""
    headers = {h.INCREMENT: "1", h.INDEX: str(position.index), h.STATE: state}
    if result_object:
        headers[h.RESULT_OBJECT] = result_object
    elif result != b"null":
        headers[h.RESULT] = _ascii(result.decode())
    if secret:
        headers[h.SECRET] = secret
    return headers


def entry_id(fkey: str, position: Position, uid: str, run: str, state: EntryState) -> str:
    """The message id of the entry that job `uid` writes for a position."""
    return f"{fkey}.{position.node}.{position.index}.{uid}.{run}.{state}"


def failed_result(failed: Failed) -> bytes:
    """The result in the entry of a failure."""
    return write_json(failed.as_dict()).encode()


class Completed(NamedTuple):
    """A node with an end for each of its indexes, in the order of the indexes."""

    node: str
    entries: tuple[Entry, ...]

    @property
    def results(self) -> list[Any]:
        return [entry.result for entry in self.entries]


def complete(entries: Iterable[Entry]) -> Completed | None:
    """The results of one node; None while an index lacks an entry. `entries` are those of subject `end`, with any
    count, in the order of the stream.

    Of an index the first success counts, else the first failure: a settled job that was replayed has both. Entries
    with different counts are not added up. If several counts are complete, the one that was complete first wins,
    so that every reader gets the same.
    """
    ends: dict[int, dict[int, Entry]] = {}
    winner: int | None = None
    for entry in entries:
        index, count = entry.position.index, entry.position.count
        of_count = ends.setdefault(count, {})
        known = of_count.get(index)
        if known is None or (known.state != "succeeded" and entry.state == "succeeded"):
            of_count[index] = entry
        if winner is None and len(of_count) >= count:
            winner = count
    if winner is None:
        return None
    found = ends[winner]
    return Completed(entry.position.node, tuple(found[index] for index in range(winner)))


def _ascii(text: str) -> str:
    """JSON with escapes instead of characters that are not ASCII: some of them end a line, and so a header."""
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
