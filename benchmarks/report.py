"""What was measured, as a table of 80 columns and as JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.processes import LOG_LEVEL

_LINE = "{:<30} {:>10} {:>10} {:<6} {:>6} {:>6}  {}"


@dataclass(frozen=True, slots=True)
class Row:
    """One line. `least` and `most` bound the ratio of the two figures, `limit` bounds the first itself."""

    name: str
    unit: str
    ours: float
    other: float | None = None
    least: float | None = None
    most: float | None = None
    limit: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.other if self.other else None

    @property
    def target(self) -> str:
        if self.least is not None:
            return f">={self.least:.2f}"
        if self.most is not None:
            return f"<={self.most:.2f}"
        return f"<={self.limit:g} {self.unit}" if self.limit is not None else ""

    @property
    def verdict(self) -> str:
        """Judged as measured, not as printed: a ratio shown as 0.80 may be a hair below it."""
        if self.least is not None and self.ratio is not None:
            return "ok" if self.ratio >= self.least else "below"
        if self.most is not None and self.ratio is not None:
            return "ok" if self.ratio <= self.most else "below"
        if self.limit is not None:
            return "ok" if self.ours <= self.limit else "below"
        return ""


def compared(name: str, unit: str, ours: list[float], other: list[float], **bounds: float | None) -> Row:
    """A row of medians; the samples stay in the JSON."""
    samples = {"ours": ours, "other": other}
    return Row(name, unit, statistics.median(ours), statistics.median(other), **bounds, samples=samples)


def fastest(name: str, unit: str, ours: list[float], other: list[float], **bounds: float | None) -> Row:
    """A row of rates by processor time, the best of each side: whatever disturbs a process only adds to it."""
    return Row(name, unit, max(ours), max(other), **bounds, samples={"ours": ours, "other": other})


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under two headings: what is measured, and what it is compared with."""

    title: str
    ours: str
    other: str
    rows: list[Row]

    def text(self) -> str:
        lines = [self.title, _LINE.format("", self.ours, self.other, "unit", "ratio", "target", "").rstrip()]
        for row in self.rows:
            other = _figure(row.other) if row.other is not None else "-"
            ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
            figures = (_figure(row.ours), other, row.unit, ratio, row.target, row.verdict)
            lines.append(_LINE.format(row.name, *figures).rstrip())
        return "\n".join(lines)


def environment(server: str, rounds: int, scale: float) -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "jetjobs": version("jetjobs"),
        "python": platform.python_version(),
        "nats-server": server,
        "nats-py": version("nats-py"),
        "uvloop": version("uvloop"),
        "cpus": os.cpu_count(),
        "rounds": rounds,
        "scale": scale,
        "log level": LOG_LEVEL,
        "fsync": "server default (sync_interval 2m)",
    }


def header(facts: dict[str, Any]) -> str:
    lines = [""]
    for part in (f"{name} {value}" for name, value in facts.items()):
        if lines[-1] and len(lines[-1]) + len(part) + 2 > 80:
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return "\n".join(lines)


def write(path: Path, facts: dict[str, Any], tables: list[Table], failures: dict[str, str]) -> None:
    """Everything, samples included."""
    content = {
        "environment": facts,
        "tables": [
            {"title": t.title, "columns": [t.ours, t.other], "rows": [_plain(row) for row in t.rows]}
            for t in tables
        ],
        "failures": failures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def _plain(row: Row) -> dict[str, Any]:
    return {**asdict(row), "ratio": row.ratio, "verdict": row.verdict}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
