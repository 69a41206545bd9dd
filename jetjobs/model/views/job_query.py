"""What a list of jobs asks for, where it goes on, and which of its jobs match. Values and decisions only."""

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
from jetjobs.model.public import public
from jetjobs.model.wire.lenient_json import read_json

LIVE = (JobState.QUEUED, JobState.RUNNING, JobState.SCHEDULED, JobState.RETRYING)
MAX_LIMIT = 10_000


@public("jetjobs.admin")
class ListedJob(NamedTuple):
    """One job of a list: its status, and its arguments where they stand in the message."""

    status: JobStatus
    arguments: dict[str, Any] | None


@public("jetjobs.admin")
class JobPage(NamedTuple):
    """A part of a list."""

    items: list[ListedJob]
    cursor: str | None
    """Where the list goes on; None at its end."""
    scanned: int
    """How many messages were looked at for this page."""
    unknown: tuple[str, ...] = ()
    """Arguments asked for that none of those looked at had."""
    secret: tuple[str, ...] = ()
    """Arguments asked for that are secret in some of them: those are not compared, and not listed."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class JobQuery:
    """Which jobs are meant. What is not given matches all; no state stands for all that live."""

    state: JobState | None = None
    queue: str | None = None
    task: str | None = None
    since: datetime | None = None
    """Stored since then, in the place where they stand."""
    where: tuple[tuple[str, str], ...] = ()
    """Pairs such as ("args.user.id", "7")."""

    def __post_init__(self) -> None:
        if self.state is not None:
            try:
                object.__setattr__(self, "state", JobState(self.state))  # its text will do
            except ValueError:
                raise ConfigError(f"state {self.state!r} is none of {', '.join(JobState)}") from None
        object.__setattr__(self, "where", tuple(map(_pair, self.where)))

    @property
    def fingerprint(self) -> str:
        # Not the moment itself: `--since 1h` names another one at each call.
        text = repr((self.state, self.queue, self.task, self.since is not None, self.where))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def matches(self, arguments: dict[str, Any] | None) -> bool:
        """Whether the arguments are as asked for: compared as JSON, or else as text."""
        return all(_equal(_at(arguments, path), value) for path, value in self.where)

    def hidden(self, secret: str) -> set[str]:
        """The arguments asked for that are secret in a job, by the header that says which are."""
        return (
            {path for path, _ in self.where if covers_secret(path.split(".")[1:], read_paths(secret))}
            if secret
            else set()
        )

    def missing(self, arguments: dict[str, Any] | None) -> set[str]:
        """The arguments asked for that are not there."""
        return {path for path, _ in self.where if _at(arguments, path) is _NOTHING}


_NOTHING = object()


def _pair(given: Any) -> tuple[str, str]:
    """One of `where`, made sure of."""
    try:
        path, value = given
        if isinstance(given, str) or not isinstance(path, str) or not isinstance(value, str):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(f"where takes pairs such as ('args.user.id', '7'), not {given!r}") from None
    if not path.startswith("args.") or not all(path.split(".")):
        raise ConfigError(f"where {path!r}: only arguments can be asked for, as args.NAME")
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
    """Whether it is that text, or that JSON: true is not 1, and 1.0 is not 1."""
    if found is _NOTHING or found == wanted:
        return found is not _NOTHING
    try:
        return json.dumps(read_json(wanted), sort_keys=True) == json.dumps(found, sort_keys=True)
    except (ValueError, RecursionError):
        return False


class Position(NamedTuple):
    """Where a list stands: on which source, and before which sequence of it."""

    source: str
    sequence: int


def write_cursor(query: JobQuery, position: Position) -> str:
    text = json.dumps([query.fingerprint, *position], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(query: JobQuery, cursor: str) -> Position:
    """ConfigError when it is none, or one of another list."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        mark, source, sequence = read_json(base64.urlsafe_b64decode(padded.encode("ascii")))
        if type(sequence) is not int or not 0 < sequence < 2**63:
            raise ValueError("no sequence of a stream")
        position = Position(str(source), sequence)
    except (ValueError, TypeError, UnicodeEncodeError):
        raise ConfigError(f"{cursor[:40]!r} is no cursor", hint="use the one the last page gave") from None
    if mark != query.fingerprint:
        raise ConfigError("the cursor is of another list", hint="repeat the filters that it came with")
    return position
