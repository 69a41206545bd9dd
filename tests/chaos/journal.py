"""The journal: the workers' tasks append one line per start and per end of an attempt."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from jetjobs import current_job
from jetjobs.errors import Signal
from tests.chaos import clock

VARIABLE = "CHAOS_JOURNAL"

START, FINISH, FAIL, CANCELLED = "start", "finish", "fail", "cancelled"


class Line(NamedTuple):
    """One line. `hop` counts the moves of the job, `delivery` the server's deliveries of this message."""

    at: float
    pid: int
    event: str
    task: str
    id: str
    run: str
    hop: int
    attempt: int
    delivery: int
    place: str
    """The QUEUE/LANE that the message was delivered from."""
    n: int = 0
    """The argument `n` of the job, a number of its own."""

    @property
    def message(self) -> tuple[str, str, int]:
        """Identifies the delivered message: every move of a job stores a new one."""
        return (self.id, self.run, self.hop)

    def __str__(self) -> str:
        return " ".join(f"{v:.3f}" if isinstance(v, float) else str(v) for v in self)


def write(event: str, pid: int, n: int) -> None:
    """Append one line atomically: many processes write concurrently."""
    context = current_job()
    job = context.job
    at = f"{clock.now():.6f}"
    place = f"{job.queue}/{job.lane}"
    line = Line(0.0, pid, event, job.task, job.id, job.run, job.hop, job.attempt, context.delivery, place, n)
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (" ".join([at, *map(str, line[1:])]) + "\n").encode())
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def journaled(n: int, *, in_child: bool = False) -> Iterator[None]:
    """Record the start and end of a task's work. The process id is the worker's, also for a child process."""
    pid = os.getppid() if in_child else os.getpid()
    write(START, pid, n)
    try:
        yield
    except asyncio.CancelledError:
        write(CANCELLED, pid, n)
        raise
    except (Exception, Signal):
        write(FAIL, pid, n)
        raise
    write(FINISH, pid, n)


def read(path: Path) -> list[Line]:
    """All lines, in the order of time."""
    lines = []
    for text in path.read_text().splitlines():
        at, pid, event, task, job_id, run, hop, attempt, delivery, place, n = text.split(" ")
        numbers = (int(hop), int(attempt), int(delivery))
        lines.append(Line(float(at), int(pid), event, task, job_id, run, *numbers, place, int(n)))
    return sorted(lines, key=lambda line: line.at)
