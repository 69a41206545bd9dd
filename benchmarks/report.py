"""Print measurements as tables of 80 columns and write them as JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.processes import LOG_LEVEL

_LINE = "{:<30} {:>10} {:>10} {:<{width}} {:>6} {:>6}  {}"

_FEW_PAIRS = 6
"""With fewer pairs, even the smallest and largest ratio do not enclose the true one with 95 % confidence."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `least` and `most` bound the ratio of the two figures, `limit` bounds the first figure."""

    name: str
    unit: str
    ours: float
    other: float | None = None
    least: float | None = None
    most: float | None = None
    limit: float | None = None
    samples: dict[str, list[float]] = field(default_factory=dict)
    of_pairs: bool = False

    @property
    def ratio(self) -> float | None:
        if self.of_pairs:
            return statistics.median(self._ratios)
        return self.ours / self.other if self.other else None

    @property
    def between(self) -> tuple[float, float] | None:
        """The 95 % confidence interval of the ratio, by rank."""
        if len(self._ratios) < _FEW_PAIRS:
            return None
        ratios, off = sorted(self._ratios), 0.98 * math.sqrt(len(self._ratios))
        middle = (len(ratios) - 1) / 2
        return ratios[max(0, math.floor(middle - off))], ratios[min(len(ratios) - 1, math.ceil(middle + off))]

    @property
    def _ratios(self) -> list[float]:
        if not self.of_pairs:
            return []
        return [mine / theirs for mine, theirs in zip(self.samples["ours"], self.samples["other"], strict=True)]

    @property
    def target(self) -> str:
        if self.least is not None:
            return f">={self.least:.2f}"
        if self.most is not None:
            return f"<={self.most:.2f}"
        return f"<={self.limit:g} {self.unit}" if self.limit is not None else ""

    @property
    def verdict(self) -> str:
        """Computed from the unrounded value: a ratio printed as 0.80 may be slightly below it."""
        if self.least is not None and self.ratio is not None:
            return "ok" if self.ratio >= self.least else "below"
        if self.most is not None and self.ratio is not None:
            return "ok" if self.ratio <= self.most else "below"
        if self.limit is not None:
            return "ok" if self.ours <= self.limit else "below"
        return ""


def compared(
    name: str,
    unit: str,
    ours: list[float],
    other: list[float],
    *,
    least: float | None = None,
    most: float | None = None,
    limit: float | None = None,
) -> Row:
    """A row of medians; the JSON has the samples."""
    medians = statistics.median(ours), statistics.median(other)
    return Row(name, unit, *medians, least, most, limit, {"ours": ours, "other": other})


def paired(name: str, unit: str, ours: list[float], other: list[float], **bounds: float | None) -> Row:
    """A row of medians with the median ratio of the pairs, for samples that were taken in pairs."""
    return replace(compared(name, unit, ours, other, **bounds), of_pairs=True)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows with two columns: the measured side and the side it is compared with."""

    title: str
    ours: str
    other: str
    rows: list[Row]

    def text(self) -> str:
        line = partial(_LINE.format, width=max(len(row.unit) for row in self.rows))
        lines = [self.title, line("", self.ours, self.other, "unit", "ratio", "target", "").rstrip()]
        for row in self.rows:
            other = _figure(row.other) if row.other is not None else "-"
            ratio = f"{row.ratio:.2f}" if row.ratio is not None else "-"
            figures = (_figure(row.ours), other, row.unit, ratio, row.target, row.verdict)
            lines.append(line(row.name, *figures).rstrip())
            if row.between is not None:
                low, high = row.between
                pairs = len(row.samples["ours"])
                lines.append(f"  {low:.3f} to {high:.3f} with 95 % confidence, {pairs:,} pairs")
        return "\n".join(lines)


def environment(server: str, rounds: int, scale: float) -> dict[str, Any]:
    """The versions and settings that the figures depend on."""
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
    """Write everything, samples included, as JSON."""
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
    return {**asdict(row), "ratio": row.ratio, "between": row.between, "verdict": row.verdict}


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
