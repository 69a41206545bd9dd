"""Worker processes of the journal's app, and the entries they wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple

from jetjobs.dev_server import EmbeddedServer
from tests.support.probe import wait_until
from tests.support.processes import Process

ROOT = Path(__file__).parent.parent.parent
APP = "tests.e2e.journal_tasks:app"


class Entry(NamedTuple):
    """One line of the journal."""

    kind: str
    n: int
    job_id: str
    attempt: int
    delivery: int
    pid: int
    at: float


def lines(journal: Path, kind: str) -> list[list[str]]:
    return [line.split() for line in journal.read_text().splitlines() if line.startswith(f"{kind} ")]


def entries(journal: Path, *kinds: str) -> list[Entry]:
    """The entries in the order in which they were written."""
    found = (line.split() for line in journal.read_text().splitlines())
    return [
        Entry(kind, int(n), job_id, int(attempt), int(delivery), int(pid), float(at))
        for kind, n, job_id, attempt, delivery, pid, at in found
        if kind in kinds
    ]


def worker(
    server: EmbeddedServer, journal: Path, *options: str, lease: str = "30s", max_crashes: int = 3
) -> Process:
    arguments = ["worker", APP, "--log-format", "json", *options]
    env = {
        "NATS_URL": server.url,
        "JOURNAL": str(journal),
        "JETJOBS_QUEUES__LEASE": lease,
        "JETJOBS_QUEUES__MAX_CRASHES": str(max_crashes),
    }
    return Process(arguments, ROOT, env)


async def until(process: Process, text: str, count: int = 1) -> str:
    return await asyncio.to_thread(process.wait_for, text, count)


async def until_journal(journal: Path, kind: str, count: int, timeout: float = 30) -> None:
    await wait_until(lambda: len(lines(journal, kind)) >= count, timeout)
