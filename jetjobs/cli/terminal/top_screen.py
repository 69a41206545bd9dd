"""The view of `jetjobs top` as lines of text, for a terminal of any size."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from jetjobs.cli.terminal.table import aligned, natural_widths, printable_rows, total
from jetjobs.cli.terminal.text import rate
from jetjobs.model.durations import show_duration
from jetjobs.model.job import JobStatus
from jetjobs.model.views.queue_info import QueueState
from jetjobs.model.views.worker_info import WorkerRecord

_WIDEST = 32
_QUEUES = ("QUEUE", "STATE", "QUEUED", "RUNNING", "OUT/s", "IN/s", "OLDEST", "LATER", "DEAD", "WORKERS", "SLOTS")
_JOBS = ("TASK", "FOR", "PROGRESS", "JOB", "QUEUE", "WORKER")
_WORKERS = ("WORKER", "PHASE", "SLOTS", "LAG", "MEMORY", "UP", "QUEUES")
Table = tuple[tuple[str, ...], list[list[str]]]


class Snapshot(NamedTuple):
    """Everything that is shown, as of one moment of the local clock."""

    at: float
    queues: Sequence[QueueState]
    running: Sequence[JobStatus]
    workers: Sequence[WorkerRecord]

    def filtered(self, text: str) -> Snapshot:
        """Only items with the text in one of their names."""
        if not text:
            return self
        return self._replace(
            queues=[q for q in self.queues if _has(text, q.queue)],
            running=[j for j in self.running if _has(text, j.queue, j.task, j.id, j.worker or "")],
            workers=[w for w in self.workers if _has(text, w.key, w.host, *w.queues)],
        )

    def only(self, queue: str | None, task: str | None) -> Snapshot:
        """Only running jobs of this queue and this task, where given."""
        running = [j for j in self.running if queue in (None, j.queue) and task in (None, j.task)]
        return self._replace(running=running)

    def to_json(self) -> dict[str, Any]:
        return {
            "queues": [queue.summary() for queue in self.queues],
            "running": [job.as_dict() for job in self.running],
            "workers": [worker.summary() for worker in self.workers],
        }


def view(
    snapshot: Snapshot, columns: int, rows: int, foot: str, *, only_running: bool = False, text: str = ""
) -> list[str]:
    """Exactly `rows` lines: a heading, up to three tables that share the room, and the footer.

    The tables show items with `text` in a name; the heading always counts everything.
    """
    whole, snapshot = snapshot, snapshot.filtered(text)
    tables = [_running(snapshot)] if only_running else [_queues(snapshot), _running(snapshot), _workers(snapshot)]
    room = max(0, rows - 2 - 2 * len(tables))
    lines = [heading(whole)]
    for (head, cells), share in zip(tables, shares([len(t[1]) for t in tables], room), strict=True):
        shown = cells[:share]
        if share and len(cells) > share:
            more = len(cells) - share + 1
            shown = [*cells[: share - 1], [f"… {more:,} more", *[""] * (len(head) - 1)]]
        lines += ["", *table(head, shown, columns)]
    lines = lines[: max(0, rows - 1)]
    return [*lines, *[""] * (rows - 1 - len(lines)), foot]


def plain(snapshot: Snapshot, *, only_running: bool = False) -> list[str]:
    """The whole view for a file or pipe: nothing is cut."""
    tables = [_running(snapshot)] if only_running else [_queues(snapshot), _running(snapshot), _workers(snapshot)]
    lines = [] if only_running else [heading(snapshot)]
    for head, cells in tables:
        lines += ["", *table(head, cells, 0)] if lines else table(head, cells, 0)
    return lines


def heading(snapshot: Snapshot) -> str:
    queued, running = sum(q.queued for q in snapshot.queues), sum(q.running for q in snapshot.queues)
    busy, total = sum(w.busy for w in snapshot.workers), sum(w.total for w in snapshot.workers)
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    workers = f"{len(snapshot.workers)} worker{'s' * (len(snapshot.workers) != 1)}"
    return f"{clock}  {queued:,} queued  {running:,} running  {workers}  {busy}/{total} slots"


def shares(wanted: Sequence[int], room: int) -> list[int]:
    """Rows for each table: as many as it wants, or its fair share of the room.

    >>> shares([2, 50, 3], 20), shares([9, 9, 9], 10), shares([1, 1], 0)
    ([2, 15, 3], [3, 3, 4], [0, 0])
    """
    given = [0] * len(wanted)
    left = room
    for number, index in enumerate(sorted(range(len(wanted)), key=lambda i: wanted[i])):
        given[index] = min(wanted[index], left // (len(wanted) - number))
        left -= given[index]
    return given


def table(head: Sequence[str], rows: Sequence[Sequence[str]], columns: int) -> list[str]:
    """Aligned lines. Columns that do not fit are left out from the right; 0 `columns` means no limit.

    >>> table(("QUEUE", "QUEUED", "SLOTS"), [["mail", "12", "1/4"]], 14)
    ['QUEUE  QUEUED', 'mail   12']
    """
    rows = printable_rows(rows)
    widths = natural_widths(head, rows)
    if columns:
        widths = [min(width, _WIDEST) for width in widths]
        widths[0] = min(widths[0], max(8, columns // 3))
        while len(widths) > 1 and total(widths) > columns:
            widths.pop()
    return list(aligned([head, *rows], widths))


def _queues(snapshot: Snapshot) -> Table:
    return _QUEUES, [
        [
            q.queue, "running" if q.pause is None else "paused", f"{q.queued:,}", f"{q.running:,}",
            rate(q.out_per_s), rate(q.in_per_s), "-" if q.oldest is None else show_duration(q.oldest),
            f"{q.scheduled + q.retrying:,}", f"{q.dead:,}", str(q.workers), f"{q.busy}/{q.slots}",
        ]
        for q in snapshot.queues
    ]  # fmt: skip


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


def _has(text: str, *names: str) -> bool:
    return any(text.lower() in name.lower() for name in names)
