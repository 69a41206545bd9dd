"""A dead letter as a value: what a job was, why it died, how often it was replayed; and filters over letters."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from jetjobs.model.secrets import shown_arguments


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


@dataclass(frozen=True, slots=True)
class LetterGroup:
    """Letters that died of the same: how many, and when the first and the last of them."""

    queue: str
    task: str
    reason: str
    error_type: str
    count: int
    first: datetime | None
    last: datetime | None


@dataclass(frozen=True, slots=True)
class LetterFilter:
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
