"""A dead letter as a value, filters over letters, and a replay: what was asked for, what became of it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from jetjobs.model.errors import DefinitionError
from jetjobs.model.masking import shown_arguments
from jetjobs.model.public import public
from jetjobs.model.wire.validation import check_token

MAX_REPLAYS_KEPT = 5
MAX_REPLAYS_BYTES = 8 * 1024
MAX_WORDS = 500
"""Of `by` and of `reason`: they travel with the job."""


@public("jetjobs.admin")
class DeadLetter(NamedTuple):
    """A job that will not run again by itself."""

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
    """Earlier replays of this job, oldest first: who, when, why, and what it had died of."""
    run: str
    sequence: int
    """Its place in the dead stream: tells this letter from a later one of the same job."""
    payload: str
    """Name of its body in the object store, where it was too large for a message."""
    headers: dict[str, str]
    replay_count: int = 0
    """How often it has been replayed, also where `replays` no longer has them all."""

    @property
    def arguments(self) -> Any:
        """For people and lists: the body as JSON, its secrets masked. `body` has them all."""
        return shown_arguments(self.body, self.headers)

    def summary(self) -> dict[str, Any]:
        """For lists and JSON: all but the body, the traceback and the raw headers."""
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
class DeadLetterGroup:
    """Letters that died of the same: how many, and when the first and the last of them."""

    queue: str
    task: str
    reason: str
    error_type: str
    count: int
    first: datetime | None
    last: datetime | None


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which letters are meant. What is not given matches all."""

    queue: str | None = None
    task: str | None = None
    reason: str | None = None
    error_type: str | None = None
    since: datetime | None = None

    def matches(self, letter: DeadLetter) -> bool:
        """An error type may be given with or without its module."""
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
    """What became of one replay."""

    REPLAYED = "replayed"
    ALREADY = "already replayed"
    """An earlier replay of this very letter had got through; only the letter was left."""
    GONE = "gone"
    """The letter is not there any more: replayed, deleted, or written over since it was read."""
    ALIVE = "alive"
    """A live job holds its id or key; nothing was changed."""
    REFUSED = "refused"
    """It could not run now either; nothing was changed."""


@public("jetjobs.admin")
class ReplayAnswer(NamedTuple):
    """The outcome of one replay, with the reason where nothing was done."""

    letter: DeadLetter
    outcome: ReplayOutcome
    why: str = ""


@public("jetjobs.admin")
class ReplayOptions(NamedTuple):
    """How to replay: who asks and why, on another queue, with other arguments."""

    by: str = ""
    reason: str = ""
    to_queue: str | None = None
    arguments: Mapping[str, Any] | None = None

    def check(self) -> None:
        """DefinitionError for what cannot be kept or cannot be a queue."""
        for what, text in (("by", self.by), ("reason", self.reason)):
            if len(text) > MAX_WORDS:
                raise DefinitionError(
                    f"{what} has {len(text):,} characters; at most {MAX_WORDS} are kept with the job"
                )
        if self.to_queue is not None:
            check_token("queue", self.to_queue)


def run_of(letter: DeadLetter) -> str:
    """The run of the life that a replay of this letter begins: always the same for one letter."""
    return "r" + hashlib.sha256(f"{letter.run}:{letter.sequence}".encode()).hexdigest()[:12]


def provenance(letter: DeadLetter, order: ReplayOptions, now: float) -> str:
    """The header that says who replayed the job, when, why, how often, what it had died of, and in which life."""
    entry = {
        "by": order.by,
        "at": round(now, 3),
        "why": order.reason,
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
