"""Reads the workers' logs: for what must never stand in them, and for all that they say of one job."""

from __future__ import annotations

from pathlib import Path

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


def about(logs: list[Path], job_id: str) -> list[str]:
    return [
        f"{path.stem} {line[:600]}"
        for path in logs
        for line in path.read_text(errors="replace").splitlines()
        if job_id and job_id in line
    ]
