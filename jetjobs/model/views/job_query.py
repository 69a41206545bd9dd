"""Queries for jobs, pages of their results, and cursors between pages."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from jetjobs.model.errors import ConfigError
from jetjobs.model.job import JobState, JobStatus
from jetjobs.model.masking import covers_secret, read_paths
from jetjobs.model.public import Record, public
from jetjobs.model.wire.lenient_json import read_json

LIVE = (JobState.QUEUED, JobState.RUNNING, JobState.SCHEDULED, JobState.RETRYING, JobState.WAITING)
MAX_LIMIT = 10_000


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class ListedJob(Record):
    """One job of a list: its status, and its arguments if they are in the message."""

    status: JobStatus
    arguments: dict[str, Any] | None

    def as_dict(self) -> dict[str, Any]:
        """The status with the arguments, as JSON."""
        return {**self.status.as_dict(), "arguments": self.arguments}


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class JobPage(Record):
    """One page of a list of jobs."""

    items: list[ListedJob]
    cursor: str | None
    """Cursor of the next page; None at the end of the list."""
    scanned: int
    """How many messages were read for this page."""
    unknown: tuple[str, ...] = ()
    """Arguments in `where` that no job read for this page had."""
    secret: tuple[str, ...] = ()
    """Arguments in `where` that are secret in some of these jobs: such jobs are not compared and not listed."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the keys of the command line."""
        items = [item.as_dict() for item in self.items]
        return {"items": items, "cursor": self.cursor, "scanned": self.scanned}


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class JobQuery:
    """Selects jobs. A field that is None matches all; without a state, all live jobs match."""

    state: JobState | None = None
    queue: str | None = None
    task: str | None = None
    since: datetime | None = None
    """Only jobs whose current message was stored since then."""
    where: tuple[tuple[str, str], ...] = ()
    """Pairs of argument path and value, such as ("args.user.id", "7")."""
    key: str | None = None
    """Only jobs with this key, of all states unless one is given, newest first."""

    def __post_init__(self) -> None:
        if self.state is not None:
            try:
                object.__setattr__(self, "state", JobState(self.state))  # text is accepted too
            except ValueError:
                raise ConfigError(f"invalid state {self.state!r}: use one of {', '.join(JobState)}") from None
        object.__setattr__(self, "where", tuple(map(_pair, self.where)))

    @property
    def fingerprint(self) -> str:
        # Without the time itself: `--since 1h` is another time at each call.
        text = repr((self.state, self.queue, self.task, self.since is not None, self.where, self.key))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def selects(self, status: JobStatus) -> bool:
        """Whether the state of a job, and the time since when it has it, match."""
        entered = status.ended_at or status.enqueued_at
        recent = self.since is None or (entered is not None and entered >= self.since)
        return recent and self.state in (None, status.state)

    def matches(self, arguments: dict[str, Any] | None) -> bool:
        """Whether the arguments match `where`, compared as JSON or else as text."""
        return all(_equal(_at(arguments, path), value) for path, value in self.where)

    def hidden(self, secret: str) -> set[str]:
        """The arguments in `where` that are secret in a job with that header."""
        return (
            {path for path, _ in self.where if covers_secret(path.split(".")[1:], read_paths(secret))}
            if secret
            else set()
        )

    def missing(self, arguments: dict[str, Any] | None) -> set[str]:
        """The arguments in `where` that the job does not have."""
        return {path for path, _ in self.where if _at(arguments, path) is _NOTHING}


_NOTHING = object()


def _pair(given: Any) -> tuple[str, str]:
    """A checked pair of `where`."""
    try:
        path, value = given
        if isinstance(given, str) or not isinstance(path, str) or not isinstance(value, str):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(f"where takes pairs such as ('args.user.id', '7'), not {given!r}") from None
    if not path.startswith("args.") or not all(path.split(".")):
        raise ConfigError(f"invalid where {path!r}: use the path of an argument, such as args.NAME")
    return path, value


def _at(value: Any, path: str) -> Any:
    for name in path.split(".")[1:]:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
            value = value[int(name)]
        else:
            return _NOTHING
    return value


def _equal(found: Any, wanted: str) -> bool:
    """Whether the value equals the text or its JSON: true is not 1, and 1.0 is not 1."""
    if found is _NOTHING or found == wanted:
        return found is not _NOTHING
    try:
        return json.dumps(read_json(wanted), sort_keys=True) == json.dumps(found, sort_keys=True)
    except (ValueError, RecursionError):
        return False


class Position(NamedTuple):
    """Where the next page starts: in which source, and before which sequence."""

    source: str
    sequence: int


def write_cursor(query: JobQuery, position: Position) -> str:
    text = json.dumps([query.fingerprint, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(query: JobQuery, cursor: str) -> Position:
    """ConfigError for an invalid cursor, or one of another list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        mark, source, sequence = read_json(base64.urlsafe_b64decode(padded.encode("ascii")))
        if type(sequence) is not int or not 0 < sequence < 2**63:
            raise ValueError("invalid sequence")
        position = Position(str(source), sequence)
    except (ValueError, TypeError, UnicodeEncodeError):
        raise ConfigError(f"invalid cursor {cursor[:40]!r}", hint="use the cursor of the previous page") from None
    if mark != query.fingerprint:
        raise ConfigError("the cursor belongs to another list", hint="repeat the filters of the previous page")
    return position
