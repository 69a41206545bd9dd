"""Findings of the doctor, and the context and result of a single check."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from jetjobs.define.router import Router
from jetjobs.jetstream.client import JetStreamClient
from jetjobs.model.public import Record, public
from jetjobs.model.settings import Settings

Level = Literal["ok", "warn", "fail", "skip"]
Area = Literal["nats", "topology", "queues", "schedules", "workers", "app"]
AREAS: tuple[Area, ...] = ("nats", "topology", "queues", "schedules", "workers", "app")


@public("jetjobs.admin")
@dataclass(frozen=True, slots=True)
class Finding(Record):
    """One line of the doctor's report. Level `skip` means that the check could not run; the text says why."""

    level: Level
    area: Area
    text: str
    hint: str = ""
    check: str = ""
    """Name of the check. Names are stable between versions."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON. A finding without a hint has `null`."""
        return {
            "level": self.level,
            "area": self.area,
            "check": self.check,
            "text": self.text,
            "hint": self.hint or None,
        }


class CheckResult(NamedTuple):
    """A finding as a check returns it. The runner adds the area and the name of the check."""

    level: Level
    text: str
    hint: str = ""
    check: str = ""
    """Replaces the name of the check's function."""


@dataclass(frozen=True, slots=True)
class CheckContext:
    """What checks read. No check changes anything."""

    jetstream: JetStreamClient
    settings: Settings
    queues: tuple[str, ...]
    """The queues on the server."""
    router: Router | None
    """The tasks of the app; None without an app."""


Check = Callable[[CheckContext], Awaitable[list[CheckResult]]]


def count(findings: Sequence[Finding]) -> dict[str, int]:
    """The number of findings of each level, under the keys of the JSON document."""
    keys: dict[str, Level] = {"failed": "fail", "warnings": "warn", "ok": "ok", "left_out": "skip"}
    return {key: sum(finding.level == level for finding in findings) for key, level in keys.items()}


def size(count: float) -> str:
    """A number of bytes for people.

    >>> [size(n) for n in (900, 1_500_000, 20_000_000_000)]
    ['900 B', '1.5 MB', '20.0 GB']
    """
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def many(number: int, noun: str = "job") -> str:
    """A number with its noun.

    >>> many(1), many(1200, "lane")
    ('1 job', '1,200 lanes')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
