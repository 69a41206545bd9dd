"""How long to wait before the next attempt, and when to stop trying. Arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from jetjobs.model.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff: `base`, doubled after each failure, at most `cap`, then jittered.

    With jitter (the default) the wait is drawn evenly from zero to the backoff, so that jobs which
    failed together do not come back together.
    """

    max_attempts: int = 5
    base: timedelta = timedelta(seconds=2)
    cap: timedelta = timedelta(hours=1)
    jitter: bool = True

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise DefinitionError("max_attempts must be at least 1")
        if self.base < timedelta(0) or self.cap < self.base:
            raise DefinitionError("retry base must not be negative, nor above cap")


def backoff_s(attempt: int, policy: RetryPolicy) -> float:
    """Seconds to wait after `attempt` failed, before jitter. Attempts count from 1.

    >>> [backoff_s(n, RetryPolicy(base=timedelta(seconds=2), cap=timedelta(seconds=10))) for n in (1, 2, 3, 4)]
    [2.0, 4.0, 8.0, 10.0]
    """
    # The exponent is bounded so that a hand-made attempt number of a million cannot overflow.
    return min(policy.base.total_seconds() * 2.0 ** min(attempt - 1, 64), policy.cap.total_seconds())


def delay_s(attempt: int, policy: RetryPolicy, draw: float) -> float:
    """Seconds to wait after `attempt` failed; `draw` is a random number from 0 to 1."""
    wait = backoff_s(attempt, policy)
    return wait * draw if policy.jitter else wait
