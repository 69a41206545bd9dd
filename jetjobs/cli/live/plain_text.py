"""The whole view of `jetjobs top` as text for a file or a pipe: no colour, nothing cut."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from jetjobs.cli.live.snapshot import Snapshot
from jetjobs.cli.terminal.table import natural_widths, printable_rows
from jetjobs.cli.terminal.text import rate
from jetjobs.model.durations import show_duration
from jetjobs.model.job import JobStatus

_QUEUES = ("QUEUE", "STATE", "QUEUED", "RUNNING", "OUT/s", "IN/s", "OLDEST", "LATER", "DEAD", "WORKERS", "SLOTS")
_JOBS = ("TASK", "FOR", "PROGRESS", "JOB", "QUEUE", "WORKER")
_WORKERS = ("WORKER", "PHASE", "SLOTS", "LAG", "MEMORY", "UP", "QUEUES")
_LEFT = {"QUEUE", "STATE", "TASK", "PROGRESS", "JOB", "WORKER", "PHASE", "QUEUES"}
"""Columns of text. The others contain numbers and are aligned to the right."""
Table = tuple[tuple[str, ...], list[list[str]]]


def plain(snapshot: Snapshot) -> list[str]:
    """A heading and three tables."""
    lines = [heading(snapshot)]
    for head, cells in (_queues(snapshot), _running(snapshot), _workers(snapshot)):
        lines += ["", *table(head, cells)]
    return lines


def heading(snapshot: Snapshot) -> str:
    total, workers = snapshot.total, len(snapshot.workers)
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    counted = f"{workers} worker{'s' * (workers != 1)}"
    return f"{clock}  {total.queued:,} queued  {total.running:,} running  {counted}  {total.slots:,} slots"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Aligned lines.

    >>> table(("QUEUE", "QUEUED"), [["mail", "12"]])
    ['QUEUE  QUEUED', 'mail       12']
    """
    rows = printable_rows(rows)
    widths = natural_widths(head, rows)
    lines = []
    for cells in (head, *rows):
        fields = zip(cells, widths, head, strict=True)
        line = "  ".join(c.ljust(w) if name in _LEFT else c.rjust(w) for c, w, name in fields)
        lines.append(line.rstrip())
    return lines


def _queues(snapshot: Snapshot) -> Table:
    rows = []
    for q in snapshot.queues:
        counts = snapshot.counts(q)
        rows.append([
            q.queue, q.activity, f"{counts.queued:,}", f"{counts.running:,}",
            rate(q.out_per_s), rate(q.in_per_s), "-" if q.oldest is None else show_duration(q.oldest),
            f"{q.scheduled + q.retrying:,}", f"{q.dead:,}", str(q.workers), f"{counts.running}/{counts.slots}",
        ])  # fmt: skip
    return _QUEUES, rows


def _running(snapshot: Snapshot) -> Table:
    rows = []
    for job in snapshot.running:
        lasting = _age(job.started_at, snapshot.at)
        rows.append([job.task, lasting, _progress(job), job.id, job.queue, job.worker or "-"])
    return _JOBS, rows


def _age(since: datetime | None, now: float) -> str:
    return show_duration(max(0.0, now - since.timestamp()) if since is not None else 0.0)


def _workers(snapshot: Snapshot) -> Table:
    return _WORKERS, [
        [
            w.key, w.phase, f"{w.busy}/{w.total}", show_duration(w.lag), f"{w.memory_bytes / 1_000_000:.0f} MB",
            _age(w.started_at, snapshot.at), ",".join(sorted(w.queues)),
        ]
        for w in snapshot.workers
    ]  # fmt: skip


def _progress(job: JobStatus) -> str:
    if job.progress is None:
        return "-"
    full = int(job.progress * 8)
    return f"{'#' * full}{'·' * (8 - full)} {int(job.progress * 100)} % {job.message or ''}".rstrip()
