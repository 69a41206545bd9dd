"""The pages of the live view: their tables and lines between the heading and the footer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from jetjobs.cli.live.columns import (
    BOLD,
    CAME,
    CHOSEN,
    DEAD,
    DIM,
    LATE,
    PAUSED,
    PLAIN,
    WENT,
    Column,
    Line,
    bar,
    clean,
    fitted,
    heading,
    row,
    shares,
    width_of,
    widths,
)
from jetjobs.cli.live.job_page import help_lines, job_lines
from jetjobs.cli.live.rate_history import spark
from jetjobs.cli.live.snapshot import Content, Data, Snapshot
from jetjobs.cli.live.tables import (
    held_table,
    job_table,
    letter_table,
    moment_text,
    names,
    phase_style,
    queue_table,
    schedule_table,
    short_rate,
    worker_table,
)
from jetjobs.cli.live.view_state import Extent, Item, View, selected_index
from jetjobs.cli.terminal.empty import NOT_SET_UP

if TYPE_CHECKING:
    from jetjobs.model.views.queue_info import QueueState
    from jetjobs.model.views.worker_info import WorkerRecord


class Body:
    """The part between the heading and the footer."""

    def __init__(self, view: View, data: Data, columns: int, rows: int) -> None:
        self._view, self._data = view, data
        self._snapshot, self._page = data.snapshot, view.page
        self._content = data.content or Content()
        self._columns, self._rows = columns, rows
        self._items: list[Item] = []
        self._paused = False
        self.lines: list[Line] = []
        self.visible: list[str] = []
        self.extent = Extent()
        getattr(self, f"_{self._page.kind}")()

    # Pages

    def _queues(self) -> None:
        queues, jobs = queue_items(self._snapshot), job_items(self._snapshot.running)
        if not queues and self._snapshot.at:
            self._note(NOT_SET_UP)
        self._panes(
            ("Queues", len(queues), queue_table(self._snapshot), self._matching(queues)),
            ("Running jobs", len(jobs), job_table(self._snapshot), self._matching(jobs)),
        )

    def _running(self) -> None:
        jobs = self._matching(job_items(self._snapshot.running))
        self._panes(("Running jobs", len(self._snapshot.running), job_table(self._snapshot), jobs))

    def _queue(self) -> None:
        (name,) = self._page.subject
        found = [queue for queue in self._snapshot.queues if queue.queue == name]
        self.visible.append(name)
        if found:
            self._paused = found[0].pause is not None
            self.lines += _queue_lines(found[0], self._snapshot, self._columns)
        else:
            self._note("this queue does not exist", LATE)
        running = [job for job in self._snapshot.running if job.queue == name]
        there = {job.id for job in running}
        jobs = [*running, *(job for job in self._content.jobs if job.id not in there)]
        self._error()
        items = self._matching(job_items(jobs))
        table = job_table(self._snapshot, queue=False, state=True)
        self._panes(("Jobs, first" if self._content.more else "Jobs", len(jobs), table, items))

    def _job(self) -> None:
        self._text(job_lines(self._content, self._snapshot, self._columns))

    def _help(self) -> None:
        self._text(help_lines(self._columns))

    def _dead(self) -> None:
        letters = self._content.letters
        self._error()
        items = [Item("letter", f"{x.sequence}", x, x.queue, (x.queue, x.task, x.id)) for x in letters]
        of = f" of {self._page.queue}" if self._page.queue else ""
        title = f"Dead letters{of}" + (f", newest {len(letters)}" if self._content.more else "")
        if self._data.content is not None and not letters and not self._content.error:
            self._note("no dead letters")
        table = letter_table(self._snapshot, queue=not self._page.queue)
        self._panes((title, len(letters), table, self._matching(items)))

    def _workers(self) -> None:
        items = [Item("worker", worker.key, worker) for worker in self._snapshot.workers]
        if not items and self._snapshot.at:
            self._note("no running workers; start one with `jetjobs worker`")
        self._panes(("Workers", len(items), worker_table(self._snapshot), self._matching(items)))

    def _worker(self) -> None:
        (key,) = self._page.subject
        found = [worker for worker in self._snapshot.workers if worker.key == key]
        if not found:
            self._note("this worker has stopped, or died", LATE)
            return
        self.lines += _worker_lines(found[0], self._snapshot)
        items = [Item("job", job.id, job, job.queue, (job.queue, job.task, job.id)) for job in found[0].running]
        self._panes(("Its jobs", found[0].busy, held_table(self._snapshot), self._matching(items)))

    def _schedules(self) -> None:
        self._error()
        items = []
        for info in self._content.schedules:
            of = info.schedule
            job = (of.queue, of.task, info.last_job) if info.last_job is not None else None
            items.append(Item("schedule", of.name, info, of.queue, job))
        if self._data.content is not None and not items and not self._content.error:
            self._note("no schedules; declare one with task.cron(...), or `jetjobs schedules put`")
        self._panes(("Schedules", len(items), schedule_table(self._snapshot), self._matching(items)))

    # Parts

    def _note(self, text: str, style: str = DIM) -> None:
        self.lines += [[], [(clean(text), style)]]

    def _error(self) -> None:
        if self._content.error:
            self._note(self._content.error, LATE)

    def _matching(self, items: list[Item]) -> list[Item]:
        text = self._view.search.lower()
        return [item for item in items if any(text in name.lower() for name in names(item))] if text else items

    def _text(self, lines: list[Line]) -> None:
        room = max(1, self._rows - 1)
        start = max(0, min(self._page.at, len(lines) - room))
        self.lines += [[], *(fitted(line, self._columns) for line in lines[start : start + room])]
        self.extent = Extent((), room, len(lines), self._paused)

    def _panes(self, *panes: tuple[str, int, list[Column], list[Item]]) -> None:
        """Tables one below the other. Only rows on the screen are made."""
        items = [item for pane in panes for item in pane[3]]
        chosen = selected_index(self._page, items)
        room = max(0, self._rows - len(self.lines) - 2 * len(panes))
        given = shares([len(pane[3]) for pane in panes], room)
        before = 0
        for (title, total, table, own), share in zip(panes, given, strict=True):
            at = chosen - before if before <= chosen < before + len(own) else None
            start = max(0, min((at or 0) - share // 2, len(own) - share))
            shown = own[start : start + share]
            self.lines.append(self._section(title, total, own, start, len(shown)))
            self.lines += self._table(table, own, shown, None if at is None else at - start)
            self.visible += [item.queue for item in shown if item.kind == "queue"]
            before += len(own)
        page = room if len(items) <= room else max(given)
        self.extent = Extent(items, max(1, page), 0, self._paused)

    def _section(self, title: str, total: int, own: list[Item], start: int, shown: int) -> Line:
        search = clean(self._view.search)
        count = f" {len(own):,} of {total:,}" if search else f" {total:,}"
        where = f" {start + 1:,}–{start + shown:,} of {len(own):,}" if shown and shown < len(own) else ""
        line: Line = [(clean(title), BOLD), (count, DIM)]
        if search:
            line.append((f"  [{search}]", PAUSED))
        room = self._columns - sum(width_of(text) for text, _ in line) - len(where) - 1
        return fitted([*line, (f" {'─' * max(0, room)}", DIM), (where, DIM)], self._columns)

    def _table(self, table: list[Column], own: list[Item], shown: list[Item], at: int | None) -> list[Line]:
        longest = max((width_of(clean(names_first(item))) for item in own[:1000]), default=0)
        kept = widths(table, self._columns - 2, max(longest, len(table[0].head)))
        lines = [[("  ", PLAIN), *heading(table, kept)]]
        for number, item in enumerate(shown):
            line = row(table, kept, item)
            if number == at:
                line = fitted([("▸ ", BOLD), *line], self._columns)
                line = [(text, f"{style} {CHOSEN}".strip()) for text, style in line]
            else:
                line = [("  ", PLAIN), *line]
            lines.append(line)
        return lines


def names_first(item: Item) -> str:
    """The text of the first column."""
    if item.kind == "schedule":
        return str(item.value.schedule.name)
    return item.queue if item.kind == "queue" else item.key if item.kind == "worker" else str(item.value.task)


def queue_items(snapshot: Snapshot) -> list[Item]:
    return [Item("queue", f"q {q.queue}", q, q.queue, paused=q.pause is not None) for q in snapshot.queues]


def job_items(jobs: Sequence[Any]) -> list[Item]:
    return [Item("job", f"j {job.id}", job, job.queue, (job.queue, job.task, job.id)) for job in jobs]


def _queue_lines(queue: QueueState, snapshot: Snapshot, columns: int) -> Iterator[Line]:
    counts = snapshot.counts(queue)
    share = counts.running / counts.slots if counts.slots else 0.0
    yield []
    yield fitted([
        (f"{counts.queued:,} queued  ", PLAIN), (f"{counts.running:,}/{counts.slots:,} running ", PLAIN),
        *bar(share, 16), (f"  {queue.scheduled:,} scheduled  {queue.retrying:,} retrying  ", PLAIN),
        (f"{queue.dead:,} dead", DEAD if queue.dead else DIM),
    ], columns)  # fmt: skip
    if queue.pause is not None:
        until = "until resumed" if queue.pause.until is None else moment_text(queue.pause.until, snapshot.at)
        why = f"paused {until}: {queue.pause.reason or 'no reason given'} ({queue.pause.by or 'unknown'})"
        yield fitted([(clean(why), PAUSED)], columns)
    history = snapshot.history.get(queue.queue)
    if history is not None:
        came, went = history.series(queue.at)
        top = max((value for value in (*came, *went) if value is not None), default=0.0)
        size = max(0, min(60, columns - 16))
        yield [("out ", DIM), (spark(went, size, top), WENT), (f" {short_rate(queue.out_per_s)}/s", PLAIN)]
        yield [("in  ", DIM), (spark(came, size, top), CAME), (f" {short_rate(queue.in_per_s)}/s", PLAIN)]


def _worker_lines(worker: WorkerRecord, snapshot: Snapshot) -> Iterator[Line]:
    yield []
    yield [
        (clean(worker.phase), phase_style(worker)),
        (f"  {worker.busy:,}/{worker.total:,} slots ", PLAIN),
        *bar(min(1.0, worker.busy / worker.total) if worker.total else 0.0, 16),
    ]
    version = f"jetjobs {worker.version}, Python {worker.python}, {worker.host}, process {worker.pid}"
    yield [(clean(version), DIM)]
    yield [(clean(f"started {moment_text(worker.started_at, snapshot.at)}"), DIM)]
    for reason in worker.refused[:3]:
        yield [(clean(f"refused: {reason}"), LATE)]
