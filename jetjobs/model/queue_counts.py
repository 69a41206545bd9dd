"""How a queue stands at one moment, as numbers."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple


class QueueCounts(NamedTuple):
    """Counts of one queue, asked of the server one after another: jobs move on meanwhile."""

    queue: str
    queued: int = 0
    """In their lane, not handed out."""
    running: int = 0
    """Handed out to a worker and not settled."""
    scheduled: int = 0
    """In lane `later` for their first attempt."""
    retrying: int = 0
    """In lane `later` after a failed attempt, as far as was found; the others count as scheduled."""
    dead: int = 0
    oldest_s: float = 0.0
    """How long the job that has waited longest has been due; 0 when none is queued."""
    paused_until: datetime | None = None
    bytes: int = 0
    limit_bytes: int = 0
    """0: the stream has no limit of its own."""
    exact: bool = True
    """False when there were more jobs for later than were looked at."""

    @property
    def paused(self) -> bool:
        return self.paused_until is not None

    @property
    def demand(self) -> int:
        """What workers are needed for: nothing while the queue is paused."""
        return 0 if self.paused else self.queued + self.running
