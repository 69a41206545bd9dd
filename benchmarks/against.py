"""Compare this checkout with another one: the same measurements in both, in turn, in one run."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.report import Row, Table, compared

ROUNDS = 5
NAMES = ("enqueue", "drain", "pickup")
_LEAST = 0.95

Samples = dict[tuple[str, str], list[float]]
"""Samples by name and unit of the row."""


def against(other: Path, rounds: int, names: list[str]) -> Table:
    """Rates and latencies of this checkout and of `other`, which needs its own environment in .venv."""
    python = other / ".venv" / "bin" / "python"
    if not python.exists():
        raise FileNotFoundError(f"no environment in {other}: run `make setup` there")
    ours: Samples = defaultdict(list)
    theirs: Samples = defaultdict(list)
    sides = [(Path.cwd(), Path(sys.executable), ours), (other, python, theirs)]
    for number in range(rounds):
        print(f"round {number + 1} of {rounds} ...", file=sys.stderr, flush=True)
        # The order alternates, so that neither side always runs after the other.
        for folder, interpreter, samples in sides if number % 2 == 0 else reversed(sides):
            _measure(folder, interpreter, names, samples)
    return Table("beside another checkout", "this", "other", [_row(key, ours[key], theirs[key]) for key in ours])


def _measure(folder: Path, python: Path, names: list[str], samples: Samples) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.json"
        command = [str(python), "-m", "benchmarks", "--rounds", "1", "--out", str(out), "--only", *names]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        for table in json.loads(out.read_text())["tables"]:
            for row in table["rows"]:
                samples[row["name"], row["unit"]] += row["samples"]["ours"]


def _row(key: tuple[str, str], ours: list[float], theirs: list[float]) -> Row:
    name, unit = key
    if unit.endswith("/s"):
        return compared(name, unit, ours, theirs, least=_LEAST)
    return compared(name, unit, ours, theirs, most=1 / _LEAST if "p50" in name else None)
