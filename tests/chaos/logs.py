"""Search the workers' logs for internal errors, for blocked loops, and for the lines about one job."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

from tests.chaos.history import Span
from tests.chaos.plan import LEAP, LEASE_S

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
    """Lines that show an internal error of jetjobs, each with the name of its log."""
    found = []
    for path in logs:
        lines = path.read_text(errors="replace").splitlines()
        found += [f"{path.name}: {line[:2000]}" for line in lines if _is_trouble(line)]
    return found


def _is_trouble(line: str) -> bool:
    """Whether the line shows an internal error. A task that fails on purpose has a traceback too."""
    if not any(word in line for word in NEVER):
        return False
    return not any(f'"event": "{event}"' in line for event in ("job.retried", "job.dead_lettered"))


def blocked(logs: list[Path], spans: list[Span]) -> list[tuple[int, float, float]]:
    """Process, start and end of each blocked event loop. Workers log only the start, so the end is an estimate."""
    found = []
    for path in logs:
        for line in path.read_text(errors="replace").splitlines():
            if "worker.loop_blocked" in line:
                entry = json.loads(line)
                _, worker, pid = path.stem.split("-")
                at = _true_time(datetime.fromisoformat(entry["ts"]).timestamp(), int(worker), spans)
                found.append((int(pid), at - float(entry["lag_s"]), at + LEASE_S))
    return found


def _true_time(at: float, worker: int, spans: list[Span]) -> float:
    """The time of a line, whatever the worker's wall clock said."""
    for span in spans:
        if span.kind == LEAP and worker in span.workers:
            right = at - float(span.note.split()[0])
            if span.start <= right <= span.end:
                return right
    return at


def unrecorded(logs: list[Path]) -> frozenset[str]:
    """Ids of jobs that a worker finished and acked without a record because storage was full."""
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
