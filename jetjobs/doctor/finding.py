"""What a check has found, and what it is given to look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.public import public
from jetjobs.model.settings import Settings

Level = Literal["ok", "warn", "fail", "skip"]
Area = Literal["nats", "topology", "queues", "schedules", "workers", "app"]
AREAS: tuple[Area, ...] = ("nats", "topology", "queues", "schedules", "workers", "app")


@public("jetjobs.admin")
class Finding(NamedTuple):
    """One line of the doctor. `skip` is what could not be looked at, and why."""

    level: Level
    area: Area
    text: str
    hint: str = ""
    check: str = ""
    """Name of the check, the same in every version."""

    def to_json(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "area": self.area,
            "check": self.check,
            "text": self.text,
            "hint": self.hint or None,
        }


class Answer(NamedTuple):
    """A finding as its check gives it: the examination adds area and name."""

    level: Level
    text: str
    hint: str = ""
    check: str = ""
    """Instead of the name of the check's function."""


@dataclass(frozen=True, slots=True)
class Look:
    """What checks look at. They read; none of them changes anything."""

    jetstream: JetStreamClient
    settings: Settings
    queues: tuple[str, ...]
    """Those on the server."""
    router: Router | None
    """The tasks; None without an app."""


Check = Callable[[Look], Awaitable[list[Answer]]]


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """How many of each kind, under the keys of the JSON document."""
    keys: dict[str, Level] = {"failed": "fail", "warnings": "warn", "ok": "ok", "left_out": "skip"}
    return {key: sum(finding.level == level for finding in findings) for key, level in keys.items()}


def size(count: float) -> str:
    """Bytes for people.

    >>> [size(n) for n in (900, 1_500_000, 20_000_000_000)]
    ['900 B', '1.5 MB', '20.0 GB']
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def many(number: int, noun: str = "job") -> str:
    """A count with its noun.

    >>> many(1), many(1200, "lane")
    ('1 job', '1,200 lanes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
