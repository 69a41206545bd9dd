"""Entries of the audit: who changed what, from where, why, and with what outcome."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Literal

from jetjobs.model.errors import ConfigError, DefinitionError
from jetjobs.model.public import Record, json_value, public
from jetjobs.model.wire.lenient_json import as_int, read_record

Via = Literal["cli", "http", "python"]
"""Where an action came from: the command line, the HTTP API, or code that calls the app."""
DONE, UNCHANGED, FAILED, INTERRUPTED = "done", "unchanged", "failed", "interrupted"
REFUSED = "refused"
UNREADABLE = "unreadable"
"""The outcome of an entry that jetjobs did not write."""

_ACTION = re.compile(r"[a-z_]+\.[a-z_]+")
_PATTERN = re.compile(r"([a-z_]+|\*)\.([a-z_]+|\*)")
_LONGEST = {"target": 500, "by": 200, "via": 20, "reason": 500, "outcome": 50, "detail": 1000}
"""Characters of each text that are kept."""
_COUNTS = 50
_via: ContextVar[Via] = ContextVar("jetjobs_via", default="python")


@contextlib.contextmanager
def acting_via(via: Via) -> Iterator[None]:
    """What changes inside this block is recorded as having come from there."""
    before = _via.set(via)
    try:
        yield
    finally:
        _via.reset(before)


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class AuditEntry(Record):
    """One action. Except for sequence and time, all of it is what the acting process has written."""

    sequence: int
    at: datetime
    """By the server's clock."""
    action: str
    """Such as `queue.pause`."""
    target: str
    """An id, a name, or the filter of an action on many."""
    by: str
    via: str
    """`cli`, `http` or `python`."""
    reason: str
    outcome: str
    """`done`, `unchanged`, `failed`, `interrupted`, or what the operation answered, such as `cancelled`."""
    detail: str
    """The error of a failed action, or more about its outcome."""
    counts: dict[str, int]
    """For an action on many: how many of each outcome."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects entries. A field that is None matches all."""

    since: datetime | None = None
    action: str | None = None
    """An action or a pattern: `queue.pause`, `queue.*`, `*.delete`."""
    by: str | None = None
    """Part of who did it."""
    target: str | None = None
    """Part of the target."""

    def __post_init__(self) -> None:
        if self.action is not None and not _PATTERN.fullmatch(self.action):
            raise ConfigError(f"invalid action {self.action[:80]!r}: use queue.pause, queue.* or *.delete")
        if self.since is not None and self.since.utcoffset() is None:
            raise ConfigError("since has no time zone", hint="use datetime.now(UTC) or another aware time")

    def matches(self, entry: AuditEntry) -> bool:
        """Whether `by` and `target` match; the server compares the rest."""
        return (self.by or "") in entry.by and (self.target or "") in entry.target


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class AuditPage(Record):
    """One page of entries, newest first."""

    items: list[AuditEntry]
    cursor: str | None
    """Cursor of the next page; None at the end of the list."""
    scanned: int
    """How many messages of the stream were looked at. A page may end early because of this number."""


@dataclass(slots=True)
class Outcome:
    """What an action sets while it is carried out."""

    target: str
    text: str = DONE
    detail: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    def set(self, text: str, detail: str = "") -> None:
        self.text, self.detail = text, detail


def check_action(action: str) -> str:
    """The action itself. DefinitionError unless it has the form `queue.pause`."""
    if not _ACTION.fullmatch(action):
        raise DefinitionError(f"invalid action {action[:80]!r}: use the form queue.pause")
    return action


def write_entry(by: str, reason: str, outcome: Outcome, via: Via | None = None) -> bytes:
    """The body of the message. Its subject has the action, and the server adds the time."""
    texts = {
        "target": outcome.target,
        "by": by,
        "via": via or _via.get(),
        "reason": reason,
        "outcome": outcome.text,
        "detail": outcome.detail,
    }
    entry: dict[str, Any] = {name: str(text)[: _LONGEST[name]] for name, text in texts.items()}
    return json.dumps({**entry, "counts": dict(outcome.counts)}).encode()


def read_entry(sequence: int, at: datetime, action: str, body: bytes) -> AuditEntry:
    """The entry of a message, which may come from anybody who may publish there."""
    record = read_record(body)
    if not record:
        record = {"outcome": UNREADABLE}
    texts = {name: str(record.get(name, ""))[:most] for name, most in _LONGEST.items()}
    counts = record.get("counts")
    pairs = list(counts.items())[:_COUNTS] if isinstance(counts, Mapping) else []
    return AuditEntry(sequence, at, action, **texts, counts={key[:50]: as_int(count) for key, count in pairs})


def filter_text(wanted: Any) -> str:
    """A filter as the target of an entry: its fields that are set.

    >>> filter_text(AuditFilter(action="queue.*", by="ada"))
    'action=queue.* by=ada'
    """
    given = {one.name: getattr(wanted, one.name) for one in fields(wanted)}
    return " ".join(f"{name}={_value(value)}" for name, value in given.items() if value not in (None, ())) or "all"


def _value(value: Any) -> str:
    if isinstance(value, tuple):  # pairs of path and value
        return ",".join(f"{path}:{wanted}" for path, wanted in value)
    return str(json_value(value))
