"""Reads the workers' logs: for what must never stand in them, and for all that they say of one job."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from tests.chaos.plan import LEASE_S

NEVER = (
    "worker.fault",
    "Traceback",
    "never retrieved",
    "never awaited",
    "was destroyed but it is pending",
    "Exception in callback",
    "Unhandled",
    "observer.failed",
)


def trouble(logs: list[Path]) -> list[str]:
    """Lines that show a fault of jetjobs itself, each with the log it stands in."""
    found = []
    for path in logs:
        lines = path.read_text(errors="replace").splitlines()
        found += [f"{path.name}: {line[:2000]}" for line in lines if any(word in line for word in NEVER)]
    return found


def blocked(logs: list[Path]) -> list[tuple[int, float, float]]:
    """Process, start and end of each time a worker said that its event loop did not turn. It tells the beginning
    only, so the end is a guess."""
    found = []
    for path in logs:
        for line in path.read_text(errors="replace").splitlines():
            if "worker.loop_blocked" in line:
                told = json.loads(line)
                at = datetime.fromisoformat(told["ts"]).timestamp()
                found.append((int(path.stem.split("-")[2]), at - float(told["lag_s"]), at + LEASE_S))
    return found


def unrecorded(logs: list[Path]) -> frozenset[str]:
    """Ids of jobs that a worker has done and acked without a record, for storage was full by then."""
    found = set()
    for path in logs:
        for line in path.read_text(errors="replace").splitlines():
            if '"job.record_dropped"' in line:
                found.add(str(json.loads(line)["job_id"]))
    return frozenset(found)


def about(logs: list[Path], job_id: str) -> list[str]:
    return [
        f"{path.stem} {line[:600]}"
        for path in logs
        for line in path.read_text(errors="replace").splitlines()
        if job_id and job_id in line
    ]
