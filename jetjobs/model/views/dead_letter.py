"""Dead letters, filters over them, and the options and outcome of a replay."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from jetjobs.model.errors import DefinitionError
from jetjobs.model.masking import shown_arguments
from jetjobs.model.public import Record, public
from jetjobs.model.wire.validation import check_token

MAX_REPLAYS_KEPT = 5
MAX_REPLAYS_BYTES = 8 * 1024
MAX_NOTE = 500
"""Characters of `by` and `reason`, which are stored with the job."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class DeadLetter(Record):
    """A dead job. Only a replay runs it again."""

    id: str
    queue: str
    task: str
    lane: str
    reason: str
    error_type: str
    text: str
    traceback: str
    worker: str
    died_at: datetime | None
    enqueued_at: datetime | None
    attempts: int
    body: bytes
    history: tuple[dict[str, Any], ...]
    replays: tuple[dict[str, Any], ...]
    """Earlier replays of this job, oldest first: who, when, why, and the cause of death."""
    run: str
    sequence: int
    """Sequence in the dead stream. It distinguishes this letter from a later one of the same job."""
    payload: str
    """Name of its body in the object store, if it was too large for a message."""
    headers: dict[str, str]
    replay_count: int = 0
    """How often the job has been replayed. `replays` has only the last few."""

    @property
    def arguments(self) -> Any:
        """The body as JSON with secrets masked. `body` has the secrets."""
        return shown_arguments(self.body, self.headers)

    def as_dict(self) -> dict[str, Any]:
        """As JSON: the summary with traceback, history, headers and arguments; secrets are masked."""
        return {
            **self.summary(),
            "traceback": self.traceback,
            "history": list(self.history),
            "headers": self.headers,
            "arguments": self.arguments,
        }

    def summary(self) -> dict[str, Any]:
        """The fields for lists, as JSON: without arguments, traceback, history and headers."""
        return {
            "id": self.id,
            "queue": self.queue,
            "task": self.task,
            "lane": self.lane,
            "reason": self.reason,
            "error_type": self.error_type,
            "text": self.text,
            "attempts": self.attempts,
            "died_at": self.died_at.isoformat() if self.died_at else None,
            "enqueued_at": self.enqueued_at.isoformat() if self.enqueued_at else None,
            "worker": self.worker,
            "replay_count": self.replay_count,
            "replays": list(self.replays),
        }


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class DeadLetterGroup(Record):
    """Dead letters with the same cause: their number, when the first and last died, and the last of them."""

    queue: str
    task: str
    reason: str
    error_type: str
    count: int
    first: datetime | None
    last: datetime | None
    example: str = ""
    """The job id of the last letter."""
    text: str = ""
    """The error message of the last letter."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Selects dead letters. A field that is None matches all."""

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    error_type: str | None = None
    since: datetime | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """Whether the letter matches. The error type may be given with or without its module."""
        if self.error_type is not None and self.error_type not in (
            letter.error_type,
            letter.error_type.rpartition(".")[2],
        ):
            return False
        if self.since is not None and (letter.died_at is None or letter.died_at < self.since):
            return False
        return (
            self.queue in (None, letter.queue)
            and self.task in (None, letter.task)
            and self.reason in (None, letter.reason)
        )


@public("jetjobs.admin")
class ReplayOutcome(StrEnum):
    """The outcome of one replay."""

    REPLAYED = "replayed"
    ALREADY = "already replayed"
    """An earlier replay had stored the job already; only the letter was left to delete."""
    GONE = "gone"
    """The letter was replayed, deleted or replaced since it was read."""
    ALIVE = "alive"
    """A live job has its id or key; nothing was changed."""
    REFUSED = "refused"
    """The job still could not run; nothing was changed."""


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class ReplayAnswer(Record):
    """The outcome of one replay, with the reason if nothing was done."""

    letter: DeadLetter
    outcome: ReplayOutcome
    why: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON, with the id, queue and task of the letter."""
        letter = self.letter
        where = {"id": letter.id, "queue": letter.queue, "task": letter.task}
        return {**where, "outcome": self.outcome.value, "why": self.why}


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class ReplayOptions(Record):
    """How to replay: who requests it and why, and optionally another queue or other arguments."""

    by: str = ""
    reason: str = ""
    to_queue: str | None = None
    arguments: Mapping[str, Any] | None = None

    def check(self) -> None:
        """DefinitionError for texts that are too long and for an invalid queue."""
        for what, text in (("by", self.by), ("reason", self.reason)):
            if len(text) > MAX_NOTE:
                raise DefinitionError(f"{what} has {len(text):,} characters; the limit is {MAX_NOTE}")
        if self.to_queue is not None:
            check_token("queue", self.to_queue)


def run_of(letter: DeadLetter) -> str:
    """The run of the job that a replay of this letter stores: always the same for one letter."""
    return "r" + hashlib.sha256(f"{letter.run}:{letter.sequence}".encode()).hexdigest()[:12]


def provenance(letter: DeadLetter, options: ReplayOptions, now: float) -> str:
    """The value of the replay header: who replayed the job, when, why, how often, and the cause of death."""
    entry = {
        "by": options.by,
        "at": round(now, 3),
        "why": options.reason,
        "died_of": f"{letter.reason}: {letter.error_type}: {letter.text}"[:200],
        "attempts": letter.attempts,
        "run": letter.run,
    }
    replays = [*letter.replays, entry][-MAX_REPLAYS_KEPT:]
    while True:
        line = json.dumps({"number": letter.replay_count + 1, "replays": replays}, separators=(",", ":"))
        if len(line) <= MAX_REPLAYS_BYTES or len(replays) == 1:
            return line
        replays = replays[1:]
