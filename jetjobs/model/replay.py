"""A replay as a value: what was asked for, what became of it, and what it writes into the job. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from jetjobs.model.errors import DefinitionError
from jetjobs.model.letter import DeadLetter
from jetjobs.model.names import check_token

MAX_REPLAYS_KEPT = 5
MAX_REPLAYS_BYTES = 8 * 1024
MAX_WORDS = 500
"""Of `by` and of `reason`: they travel with the job."""


class Replayed(StrEnum):
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


class ReplayAnswer(NamedTuple):
    """The outcome of one replay, with the reason where nothing was done."""

    letter: DeadLetter
    outcome: Replayed
    why: str = ""


class ReplayOrder(NamedTuple):
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


def provenance(letter: DeadLetter, order: ReplayOrder, now: float) -> str:
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
