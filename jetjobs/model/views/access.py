"""What the bearer of a token may do: enqueue some tasks, read, operate, administer, in some queues or in all."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jetjobs.model.errors import ConfigError
from jetjobs.model.public import Record, public
from jetjobs.model.wire.validation import check_token

READ, OPERATE, ADMIN = "read", "operate", "admin"
LOCAL_NAME = "local"
"""The name of a caller on loopback without a token."""
_ENQUEUE = "enqueue:"


@public("jetjobs.http")
@dataclass(frozen=True, slots=True)
class Access(Record):
    """Who calls, and what they may do. `admin` includes all other scopes; `operate` does not include `read`."""

    name: str
    """Recorded with every job and every change."""
    scopes: frozenset[str]
    """`enqueue:TASK`, `enqueue:*`, `read`, `operate`, `admin`."""
    queues: frozenset[str] | None = None
    """The only queues whose jobs are visible and may be changed; None for all."""

    def may(self, scope: str) -> bool:
        """Whether the scope, `read`, `operate` or `admin`, is granted."""
        return scope in self.scopes or ADMIN in self.scopes

    def may_enqueue(self, task: str) -> bool:
        return self.may(f"{_ENQUEUE}{task}") or f"{_ENQUEUE}*" in self.scopes

    def sees(self, queue: str) -> bool:
        """Whether jobs of the queue are visible."""
        return self.queues is None or queue in self.queues


def check_scopes(scopes: Iterable[str]) -> frozenset[str]:
    """The scopes themselves. ConfigError for an unknown one, or if there are none."""
    found = frozenset(scopes)
    for scope in sorted(found):
        task = scope.removeprefix(_ENQUEUE)
        if scope.startswith(_ENQUEUE):
            if task != "*":
                check_token("task", task)
        elif scope not in (READ, OPERATE, ADMIN):
            raise ConfigError(
                f"unknown scope {scope!r}", hint="use enqueue:TASK, enqueue:*, read, operate or admin"
            )
    if not found:
        raise ConfigError(
            "a token needs at least one scope", hint="use enqueue:TASK, enqueue:*, read, operate or admin"
        )
    return found
