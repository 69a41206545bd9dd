"""Retry policies: how often a job is retried, and how long it waits before the next attempt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, Self

from jetjobs.model.durations import Duration, to_duration
from jetjobs.model.errors import DefinitionError
from jetjobs.model.public import public
from jetjobs.model.views.error_text import type_name
from jetjobs.model.wire.lenient_json import read_json

Backoff = Literal["exponential", "linear", "fixed"] | Callable[[int], Duration]
"""A function gets the number of the failed attempt, from 1."""

_KINDS = ("exponential", "linear", "fixed")


@public("jetjobs")
@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """Which failures are retried, how often, and after how long.

    The wait is `base` doubled after each failure (exponential), `base` times the attempt (linear), `base` (fixed),
    or the result of a function; at most `cap`. With jitter (the default) it is then a random time between half of
    that and all of it: jobs that failed together are not retried together, and none is retried at once.
    """

    max_attempts: int
    base: timedelta
    cap: timedelta
    jitter: bool
    backoff: Backoff
    max_age: timedelta | None
    """Since the job was enqueued: no attempt starts later than this."""
    retry_on: tuple[type[BaseException], ...]
    """If not empty, only these exceptions are retried."""
    dead_on: tuple[type[BaseException], ...]
    """These exceptions are never retried; takes precedence over `retry_on`."""

    # Written out, because durations are given in several forms and kept as timedelta.
    def __init__(
        self,
        max_attempts: int = 5,
        base: Duration = timedelta(seconds=2),
        cap: Duration = timedelta(hours=1),
        jitter: bool = True,
        backoff: Backoff = "exponential",
        max_age: Duration | None = None,
        retry_on: tuple[type[BaseException], ...] = (),
        dead_on: tuple[type[BaseException], ...] = (),
    ) -> None:
        of = "RetryPolicy: "
        fields: dict[str, object] = {
            "max_attempts": max_attempts,
            "base": to_duration("base", base, of=of),
            "cap": to_duration("cap", cap, of=of),
            "jitter": jitter,
            "backoff": backoff,
            "max_age": None if max_age is None else to_duration("max_age", max_age, of=of, positive=True),
            "retry_on": retry_on,
            "dead_on": dead_on,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        check_attempts(self.max_attempts)
        if self.cap < self.base:
            raise DefinitionError("retry base must not be above cap")
        if not isinstance(self.jitter, bool):
            raise DefinitionError("retry jitter must be True or False")
        if self.backoff not in _KINDS and not callable(self.backoff):
            raise DefinitionError(f"backoff must be a function or one of {', '.join(_KINDS)}")
        for name in ("retry_on", "dead_on"):
            kinds = getattr(self, name)
            if not isinstance(kinds, tuple) or not all(
                isinstance(k, type) and issubclass(k, BaseException) for k in kinds
            ):
                raise DefinitionError(f"{name} must be a tuple of exception classes")

    def as_dict(self) -> dict[str, Any]:
        """The policy as JSON: functions and exception classes by name."""
        named = callable(self.backoff)
        return {
            "max_attempts": self.max_attempts,
            "base_s": self.base.total_seconds(),
            "cap_s": self.cap.total_seconds(),
            "jitter": self.jitter,
            "backoff": getattr(self.backoff, "__qualname__", "function") if named else self.backoff,
            "max_age_s": None if self.max_age is None else self.max_age.total_seconds(),
            "retry_on": [type_name(kind) for kind in self.retry_on],
            "dead_on": [type_name(kind) for kind in self.dead_on],
        }

    # The policy of a single job is sent in a header.

    def to_header(self) -> str:
        """The policy as JSON. DefinitionError for functions and exception classes, which have no JSON form."""
        if callable(self.backoff) or self.retry_on or self.dead_on:
            raise DefinitionError(
                "the retry policy of a single job cannot have a function, retry_on or dead_on",
                hint="set those on the task",
            )
        values: dict[str, Any] = {
            "max_attempts": self.max_attempts,
            "base_s": self.base.total_seconds(),
            "cap_s": self.cap.total_seconds(),
            "jitter": self.jitter,
            "backoff": self.backoff,
        }
        if self.max_age is not None:
            values["max_age_s"] = self.max_age.total_seconds()
        return json.dumps(values, separators=(",", ":"))

    def with_header(self, text: str) -> Self:
        """This policy, changed by the header of a job. ValueError if the header is invalid."""
        values = read_json(text)
        if not isinstance(values, dict):
            raise ValueError("not a JSON object")
        try:
            return type(self)(
                max_attempts=values.get("max_attempts", self.max_attempts),
                base=_seconds(values.get("base_s"), self.base),
                cap=_seconds(values.get("cap_s"), self.cap),
                jitter=values.get("jitter", self.jitter),
                backoff=values.get("backoff", self.backoff),
                max_age=self._max_age(values),
                retry_on=self.retry_on,
                dead_on=self.dead_on,
            )
        except (DefinitionError, TypeError, OverflowError) as error:
            raise ValueError(str(error)) from error

    def _max_age(self, values: dict[str, Any]) -> timedelta | None:
        if "max_age_s" not in values:
            return self.max_age
        return None if values["max_age_s"] is None else timedelta(seconds=values["max_age_s"])


def check_attempts(number: object, of: str = "") -> int:
    """The number itself. DefinitionError if it is not a possible number of attempts; `of` precedes its text."""
    # True is an int in Python, and would become the text "True" on the wire.
    if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < 10**9:
        raise DefinitionError(f"{of}max_attempts must be a whole number from 1 to 999,999,999")
    return number


def _seconds(value: Any, default: timedelta) -> timedelta:
    return default if value is None else timedelta(seconds=value)


def backoff_s(attempt: int, policy: RetryPolicy) -> float:
    """Seconds to wait after `attempt` failed, before jitter. Attempts count from 1.

    >>> [backoff_s(n, RetryPolicy(base=timedelta(seconds=2), cap=timedelta(seconds=10))) for n in (1, 2, 3, 4)]
    [2.0, 4.0, 8.0, 10.0]
    """
    base = policy.base.total_seconds()
    if policy.backoff == "exponential":
        # The exponent is limited, so that a forged attempt number of a million cannot overflow.
        wait = base * 2.0 ** min(attempt - 1, 64)
    elif policy.backoff == "linear":
        wait = base * min(attempt, 10**9)
    elif policy.backoff == "fixed":
        wait = base
    else:
        wait = _custom_backoff(policy.backoff, attempt, base)
    return min(wait, policy.cap.total_seconds())


def _custom_backoff(function: Any, attempt: int, default: float) -> float:
    """The wait from the user's function. If that fails, `default` is used: the job must not get lost."""
    try:
        return to_duration("backoff", function(attempt)).total_seconds()
    except Exception:
        return default


def delay_s(attempt: int, policy: RetryPolicy, draw: float) -> float:
    """Seconds to wait after `attempt` failed; `draw` is a random number from 0 to 1."""
    wait = backoff_s(attempt, policy)
    return wait * (0.5 + draw / 2) if policy.jitter else wait
