"""What happened, as the harness saw it: jobs sent, faults with their actual times, worker processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.chaos import clock

CONFIRMED, DUPLICATE, UNCONFIRMED, REFUSED = "confirmed", "duplicate", "unconfirmed", "refused"
STORED = (CONFIRMED, DUPLICATE)
OLDER_STORE = "older_store"
CONFIRMATIONS = "confirmations"
"""The note of slow answers when only the confirmations of jobs are lost: deliveries and heartbeats are not."""
STALL = "stall of the machine"
"""Not an injected fault: the harness itself did not run for a while, so the workers may not have run either."""


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
    """Empty for an anonymous job: the worker creates its run."""
    sequence: int = 0
    """The stream sequence of an anonymous job: its dead letter names it as the source."""
    error: str = ""
    due_at: float = 0.0
    """The earliest time at which the job is due; 0 if it is due at once."""
    deadline: float = 0.0


@dataclass(slots=True)
class Span:
    """A fault with its start and end. `workers` are the affected workers; empty for all."""

    kind: str
    start: float
    end: float = 0.0
    workers: frozenset[int] = frozenset()
    lane: tuple[str, str] = ("", "")
    note: str = ""
    stopped: float = 0.0
    """Of `older_store`: when the server was stopped. `start` is when its store was copied."""
    healed: float = 0.0
    """When the direct effects were over, if that was after the end: all replicas were current again."""

    @property
    def over(self) -> float:
        return max(self.end, self.healed)

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
    """How the harness ended it: kill, term or stop; empty when it died by itself."""
    peak_rss: int = 0
    peak_fds: int = 0


@dataclass(slots=True)
class Replay:
    """A replay of a dead letter, and its answer; empty when there was none."""

    id: str
    run: str
    at: float
    answer: str = ""


@dataclass(slots=True)
class Move:
    """A change of a queued job's priority, and its answer; empty when there was none."""

    id: str
    lane: str
    at: float
    answer: str = ""
    done: bool = False
    """The answer was `too late`, and yet the job is in that lane."""

    @property
    def announced(self) -> bool:
        """Whether the answer allows that the job runs twice."""
        return self.answer in ("", "may run twice")


@dataclass(slots=True)
class Ask:
    """A question or an order about one job, and its answer; empty when there was none."""

    action: str
    id: str
    run: str
    at: float
    answer: str = ""
    answered_at: float = 0.0
    moment: float = 0.0
    """The new due time, of `reschedule`."""
    error: str = ""


@dataclass(slots=True)
class History:
    """Everything the harness recorded."""

    started: float = field(default_factory=clock.now)
    sent: list[Sent] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    lives: list[Life] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    producer_trouble: list[str] = field(default_factory=list)
    """Errors of an enqueue that are not JetJobsErrors."""

    def note(self, text: str) -> None:
        self.notes.append(f"{clock.now() - self.started:8.3f} {text}")

    def __str__(self) -> str:
        """One line per entry, in the order of time."""
        rows: list[tuple[float, object]] = [(one.at, one) for one in self.sent]
        rows += [(span.start, span) for span in self.spans]
        rows += [(life.born, life) for life in self.lives]
        rows += [(replay.at, replay) for replay in self.replays]
        rows += [(move.at, move) for move in self.moves]
        rows += [(ask.at, ask) for ask in self.asks]
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

    # Servers that came back with an older store

    def undone(self, start: float, end: float) -> Span | None:
        """The fault that may have undone what was stored between these times."""
        for span in self.spans:
            if span.kind == OLDER_STORE and start <= span.stopped and span.start <= end <= span.end:
                return span
        return None

    def may_be_gone(self, job_id: str) -> bool:
        """Whether the server may have forgotten the job: each of its confirmations came after the store was copied
        and before the server stopped."""
        stored = [one for one in self.sent if one.id == job_id and one.answer in STORED]
        return bool(stored) and all(self.undone(one.at, one.answered_at) for one in stored)

    # The producer's part

    def dump(self, path: Path) -> None:
        """Write what the producer's process knows."""
        sent, asks = [asdict(one) for one in self.sent], [asdict(one) for one in self.asks]
        path.write_text(json.dumps({"sent": sent, "asks": asks, "trouble": self.producer_trouble}))

    def load(self, path: Path) -> None:
        found = json.loads(path.read_text())
        self.sent += [Sent(**one) for one in found["sent"]]
        self.asks += [Ask(**one) for one in found["asks"]]
        self.producer_trouble += found["trouble"]
