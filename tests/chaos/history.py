"""What happened, as the harness saw it: jobs sent, faults with their real times, lives of worker processes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

CONFIRMED, DUPLICATE, UNCONFIRMED, REFUSED = "confirmed", "duplicate", "unconfirmed", "refused"
STORED = (CONFIRMED, DUPLICATE)
STALL = "stall of the machine"
"""No fault of ours: the harness itself was not run for a while, so the workers may not have been either."""


@dataclass(slots=True)
class Sent:
    """One job the producer tried to enqueue."""

    kind: str
    number: int
    queue: str
    task: str
    at: float
    answer: str = UNCONFIRMED
    answered_at: float = 0.0
    id: str = ""
    run: str = ""
    """Empty for a job made by hand: the worker makes its run."""
    sequence: int = 0
    """Of a job made by hand: by it a dead letter names where it came from."""
    error: str = ""


@dataclass(slots=True)
class Span:
    """A fault while it lasted. `workers` are those it concerns; empty for all."""

    kind: str
    start: float
    end: float = 0.0
    workers: frozenset[int] = frozenset()
    lane: tuple[str, str] = ("", "")
    note: str = ""

    def touches(self, worker: int) -> bool:
        return not self.workers or worker in self.workers


@dataclass(slots=True)
class Life:
    """One worker process."""

    worker: int
    pid: int
    born: float
    died: float = 0.0
    code: int | None = None
    wanted: str = ""
    """Why the harness ended it: kill, term or stop; empty when it died by itself."""
    peak_rss: int = 0
    peak_fds: int = 0


@dataclass(slots=True)
class Replay:
    """A dead letter that was replayed, and the answer; empty when none came."""

    id: str
    run: str
    at: float
    answer: str = ""


@dataclass(slots=True)
class Move:
    """A queued job whose priority was changed, and the answer; empty when none came."""

    id: str
    lane: str
    at: float
    answer: str = ""

    @property
    def announced(self) -> bool:
        """Whether the job may run twice by it."""
        return self.answer in ("", "may run twice")


@dataclass(slots=True)
class History:
    """All of it."""

    started: float = field(default_factory=time.time)
    sent: list[Sent] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    producer_trouble: list[str] = field(default_factory=list)
    """Errors of an enqueue that are none of jetjobs' own."""

    def note(self, text: str) -> None:
        self.notes.append(f"{time.time() - self.started:8.3f} {text}")

    def __str__(self) -> str:
        """One line for each thing, for whoever looks into a run."""
        rows: list[tuple[float, object]] = [(one.at, one) for one in self.sent]
        rows += [(span.start, span) for span in self.spans]
        rows += [(life.born, life) for life in self.lives]
        rows += [(replay.at, replay) for replay in self.replays]
        rows += [(move.at, move) for move in self.moves]
        return "\n".join(f"{at - self.started:8.3f} {one}" for at, one in sorted(rows, key=lambda row: row[0]))

    def worker_of(self, pid: int, at: float) -> int | None:
        """The worker that had this process id at that time."""
        for life in self.lives:
            if life.pid == pid and life.born <= at and (not life.died or at <= life.died + 1.0):
                return life.worker
        return None

    def died(self, pid: int) -> float:
        """When that process ended, or 0."""
        return max((life.died for life in self.lives if life.pid == pid), default=0.0)
